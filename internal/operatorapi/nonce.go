package operatorapi

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/validate"
)

// MaxNonce bounds a nonce, in bytes, as package registration does.
const MaxNonce = 4 << 10

// Claims are the claims of a nonce that its holder needs. The server checks its
// signature.
type Claims struct {
	Cluster nstance.ClusterID
	Shard   nstance.ShardID // empty: any
	Expiry  time.Time
}

// ReadNonce returns the claims of a nonce for a role. Fails with Invalid for
// what is no such nonce.
func ReadNonce(token string, role nstance.Role) (Claims, error) {
	const remedy = "pass the nonce exactly as nstance-admin cluster nonce printed it"
	var c struct {
		Kind    nstance.Role      `json:"kind"`
		Cluster nstance.ClusterID `json:"cluster_id"`
		Shard   nstance.ShardID   `json:"shard"`
		Expiry  int64             `json:"exp"` // seconds since 1970
	}
	parts := strings.Split(strings.TrimSpace(token), ".")
	if len(parts) != 3 || len(token) > MaxNonce {
		return Claims{}, nstance.FieldError("nonce", remedy, "is not a signed JSON Web Token")
	}
	data, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(data, &c) != nil {
		return Claims{}, nstance.FieldError("nonce", remedy, "has no readable claims")
	}
	if c.Kind != role {
		return Claims{}, nstance.FieldError("nonce", "mint one with nstance-admin cluster nonce --kind "+string(role), "is of kind %q, not %s", c.Kind, role)
	}
	if err := validate.Name("nonce: cluster_id", c.Cluster); err != nil {
		return Claims{}, err
	}
	if c.Shard != "" {
		if err := validate.Shard("nonce: shard", c.Shard); err != nil {
			return Claims{}, err
		}
	}
	return Claims{c.Cluster, c.Shard, time.Unix(c.Expiry, 0)}, nil
}
