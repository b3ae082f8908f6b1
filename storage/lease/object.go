package lease

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// object is lease/{shard}.json.
type object struct {
	storage.Header
	Holder  string `json:"holder"` // random, new with every process
	Address string `json:"address,omitempty"`
	Peer    string `json:"peer,omitempty"`

	Registration string `json:"registration,omitempty"`
	TTL          int64  `json:"ttl_ms"`
	Released     bool   `json:"released"` // given back: it may be taken at once
}

var known = []string{"format", "epoch", "write_id", "holder", "address", "peer", "ttl_ms", "released"}

// standing is what is known of the object in storage. It is never changed in
// place where others may hold it.
type standing struct {
	object
	rest    map[string]json.RawMessage // fields of newer versions
	version storage.Version            // empty: there is no object
}

// ttl is how long the object must stay unchanged before it may be taken. An
// object that does not say is given the longest; what no holder can have written
// counts as the nearest that one can.
func (s *standing) ttl() time.Duration {
	if s.version == "" || s.TTL <= 0 || s.TTL > MaxTTL.Milliseconds() {
		return MaxTTL
	}
	return max(time.Duration(s.TTL)*time.Millisecond, MinTTL)
}

// next returns the object that replaces s, with a write ID of its own.
func (s *standing) next(epoch uint64) standing {
	out := standing{object: s.object, rest: s.rest}
	out.Header = storage.NewHeader(epoch)
	if newer(s.Format) {
		out.Format = s.Format
	}
	return out
}

func (s *standing) encode() ([]byte, error) {
	own, err := marshal(s.object)
	if err != nil || len(s.rest) == 0 {
		return append(own, '\n'), err
	}
	rest, err := marshal(s.rest)
	if err != nil {
		return nil, err
	}
	own = append(own[:len(own)-1], ',')
	return append(append(own, rest[1:]...), '\n'), nil
}

// marshal returns compact JSON, with the characters that HTML escapes as they are.
func marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSpace(buf.Bytes()), err
}

// decode reads the object. One that is damaged, or of another major format, is
// Invalid: it stands there, and nobody may take it.
func decode(obj storage.Object) (standing, error) {
	s := standing{version: obj.Version}
	err := json.Unmarshal(obj.Data, &s.rest)
	if err == nil {
		err = checkFormat(s.rest["format"])
	}
	if err == nil {
		err = json.Unmarshal(obj.Data, &s.object)
	}
	if err != nil {
		return s, nstance.Errorf(nstance.Invalid, "%s cannot be read: %w", obj.Key, err)
	}
	for _, name := range known {
		delete(s.rest, name)
	}
	return s, nil
}

// checkFormat comes first: a newer major may mean anything by other fields.
func checkFormat(raw json.RawMessage) error {
	var format string
	if err := json.Unmarshal(raw, &format); err != nil {
		return nstance.Errorf(nstance.Invalid, "it has no format: %w", err)
	}
	have, _, _ := strings.Cut(format, ".")
	if want, _, _ := strings.Cut(storage.Format, "."); have != want {
		return nstance.FieldError("format", "upgrade this program if it is newer", "%q is not %s, which this program writes", format, storage.Format)
	}
	return nil
}

// newer reports whether a format of this program's major has a later minor.
func newer(format string) bool {
	minor := func(f string) int {
		_, m, _ := strings.Cut(f, ".")
		n, _ := strconv.Atoi(m) // none is 0
		return n
	}
	return minor(format) > minor(storage.Format)
}
