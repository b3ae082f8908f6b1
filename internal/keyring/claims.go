package keyring

import (
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/validate"
)

// Claims are the claims of a nonce.
type Claims struct {
	Kind       nstance.Role      // agent, operator or admin
	Subject    string            // agent: the instance ID; others: the cluster ID
	Cluster    nstance.ClusterID // where it is valid
	Shard      nstance.ShardID   // agent: required; others: empty means any shard
	Tenant     nstance.TenantID
	Group      nstance.GroupID // agent only
	OnDemand   bool            // agent only
	ConfigHash string          // agent only: the runtime hash of its definition
	JTI        string          // unique; empty means the subject, for agents only
	NotBefore  time.Time       // whole seconds count; also the time of issue
	Expiry     time.Time       // whole seconds count
}

// wireClaims is the payload of the JWT. Its names are read by agents, which
// learn cluster and shard from it.
type wireClaims struct {
	jwt.Claims
	Kind       nstance.Role      `json:"kind"`
	Cluster    nstance.ClusterID `json:"cluster_id"`
	Tenant     nstance.TenantID  `json:"tenant"`
	Shard      nstance.ShardID   `json:"shard,omitempty"`
	Group      nstance.GroupID   `json:"group,omitempty"`
	OnDemand   bool              `json:"on_demand,omitempty"`
	ConfigHash string            `json:"config_hash,omitempty"`
}

func issuerOf(c nstance.ClusterID) string   { return "nstance/" + string(c) }
func audienceOf(c nstance.ClusterID) string { return "nstance-registration/" + string(c) }

func (c Claims) wire() wireClaims {
	return wireClaims{
		Claims: jwt.Claims{
			Issuer: issuerOf(c.Cluster), Audience: jwt.Audience{audienceOf(c.Cluster)},
			Subject: c.Subject, ID: c.JTI,
			NotBefore: jwt.NewNumericDate(c.NotBefore), IssuedAt: jwt.NewNumericDate(c.NotBefore),
			Expiry: jwt.NewNumericDate(c.Expiry),
		},
		Kind: c.Kind, Cluster: c.Cluster, Tenant: c.Tenant, Shard: c.Shard,
		Group: c.Group, OnDemand: c.OnDemand, ConfigHash: c.ConfigHash,
	}
}

func (w wireClaims) claims() Claims {
	return Claims{
		Kind: w.Kind, Subject: w.Subject, Cluster: w.Cluster, Shard: w.Shard, Tenant: w.Tenant, Group: w.Group,
		OnDemand: w.OnDemand, ConfigHash: w.ConfigHash, JTI: w.ID,
		NotBefore: w.NotBefore.Time().UTC(), Expiry: w.Expiry.Time().UTC(),
	}
}

// missing returns the name of a missing required claim, or "".
func (w wireClaims) missing() string {
	switch {
	case w.Issuer == "":
		return "iss"
	case len(w.Audience) == 0:
		return "aud"
	case w.Subject == "":
		return "sub"
	case w.ID == "":
		return "jti"
	case w.NotBefore == nil:
		return "nbf"
	case w.Expiry == nil:
		return "exp"
	case w.IssuedAt == nil:
		return "iat"
	}
	return ""
}

// validate checks the rules for every nonce, independent of time and place.
func (c Claims) validate() error {
	if err := validate.Name("cluster_id", c.Cluster); err != nil {
		return err
	}
	if err := validate.Name("tenant", c.Tenant); err != nil {
		return err
	}
	if c.Shard != "" || c.Kind == nstance.RoleAgent {
		if err := validate.Shard("shard", c.Shard); err != nil {
			return err
		}
	}
	if err := validateJTI(c.JTI); err != nil {
		return err
	}
	if c.NotBefore.Unix() <= 0 || c.Expiry.Unix() <= c.NotBefore.Unix() {
		return nstance.FieldError("exp", "use a time after nbf, which is after 1970", "is %s, nbf is %s",
			c.Expiry.UTC().Format(time.RFC3339), c.NotBefore.UTC().Format(time.RFC3339))
	}
	return c.validateSubject()
}

func (c Claims) validateSubject() error {
	switch c.Kind {
	case nstance.RoleAgent:
		if _, err := nstance.ParseInstanceID(c.Subject); err != nil {
			return err
		}
		return validate.Name("group", c.Group)
	case nstance.RoleOperator, nstance.RoleAdmin:
		if c.Subject != string(c.Cluster) {
			return nstance.FieldError("sub", "use the cluster ID", "is %q, cluster is %q", clip.Quote(c.Subject), c.Cluster)
		}
		return nil
	}
	return nstance.FieldError("kind", "use agent, operator or admin", "%q does not exist", clip.Quote(string(c.Kind)))
}

// validateJTI accepts characters that are safe in the key of a stored object.
func validateJTI(jti string) error {
	const allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	if n := len(jti); n < 16 || n > 64 || strings.Trim(jti, allowed) != "" {
		return nstance.FieldError("jti", "use crypto/rand.Text", "%q is not 16 to 64 of A-Z, a-z, 0-9, - and _", clip.Quote(jti))
	}
	return nil
}
