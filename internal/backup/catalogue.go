package backup

import (
	"crypto/rand"
	"encoding/json"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
)

// A catalogue is the catalogue of keys with all its fields, those of other versions too.
type catalogue map[string]json.RawMessage

func parseCatalogue(data []byte) (catalogue, error) {
	var c catalogue
	if err := records.Readable(layout.ClusterLeaseKey, data); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, nstance.Errorf(nstance.Invalid, "%s cannot be read: %w", layout.ClusterLeaseKey, err)
	}
	return c, nil
}

// cluster returns whose keys they are; empty: not said.
func (c catalogue) cluster() (id nstance.ClusterID) {
	_ = json.Unmarshal(c["cluster"], &id) // what cannot be read is not said
	return id
}

// moved returns the catalogue of a storage at another location. Unless grants are kept it names
// no key for nonces: the first server makes one.
func (c catalogue) moved(location string, keepGrants bool) ([]byte, error) {
	var sets map[string]json.RawMessage
	if err := json.Unmarshal(c["sets"], &sets); err != nil {
		return nil, nstance.Errorf(nstance.Invalid, "%s names no keys: %w", layout.ClusterLeaseKey, err)
	}
	if !keepGrants {
		delete(sets, keyring.Nonces)
	}
	for name, value := range map[string]any{"sets": sets, "location": location, "write_id": rand.Text()} {
		data, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		c[name] = data
	}
	return json.Marshal(c)
}
