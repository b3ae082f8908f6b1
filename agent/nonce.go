package agent

import (
	"encoding/base64"
	"encoding/json"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/validate"
)

// maxNonce bounds the nonce file, in bytes: it travels in user data, which
// clouds limit to about this size.
const maxNonce = 16 << 10

// claims are the claims that the agent reads from its nonce. It does not verify
// the signature: it has no key for that and needs none. The claims name the
// server, and the server proves its identity by its own certificate.
type claims struct {
	Kind       string             `json:"kind"`
	Subject    nstance.InstanceID `json:"sub"`
	Cluster    nstance.ClusterID  `json:"cluster_id"`
	Shard      nstance.ShardID    `json:"shard"`
	ConfigHash string             `json:"config_hash"`
}

// parseNonce reads the claims of a compact JWT (RFC 7519 §3, RFC 7515 §7.1).
// It fails with Invalid, and never quotes the nonce, which is a secret.
func parseNonce(token string) (claims, error) {
	if len(token) > maxNonce {
		return claims{}, nstance.Errorf(nstance.Invalid, "nonce has %d bytes, the limit is %d", len(token), maxNonce)
	}
	parts := strings.Split(strings.TrimSpace(token), ".")
	if len(parts) != 3 || parts[0] == "" || parts[2] == "" {
		return claims{}, nstance.Errorf(nstance.Invalid, "nonce is not a signed JWT of three parts")
	}
	body, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return claims{}, nstance.Errorf(nstance.Invalid, "nonce's payload is not base64url")
	}
	var c claims
	if err := json.Unmarshal(body, &c); err != nil {
		return claims{}, nstance.Errorf(nstance.Invalid, "nonce's payload is not a JSON object of claims")
	}
	return c, c.validate()
}

func (c claims) validate() error {
	if c.Kind != string(nstance.RoleAgent) {
		return nstance.FieldError("nonce kind", "use the nonce from this machine's user data", "nonce is not for an agent")
	}
	if _, err := nstance.ParseInstanceID(string(c.Subject)); err != nil {
		return nstance.FieldError("nonce sub", "use the nonce from this machine's user data", "%v", err)
	}
	if err := validate.Name("nonce cluster_id", c.Cluster); err != nil {
		return err
	}
	if len(c.ConfigHash) > 256 {
		return nstance.FieldError("nonce config_hash", "mint the nonce again", "has %d characters", len(c.ConfigHash))
	}
	return validate.Shard("nonce shard", c.Shard)
}
