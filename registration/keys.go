package registration

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/validate"
)

// Keys are the authority of a cluster, which signs certificates, and its nonce key.
// They are safe for concurrent use.
type Keys struct {
	identity *keyring.Authority
	nonces   *keyring.NonceKeys
}

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

// NewKeys returns fresh keys. The authority is valid for ten years from now.
func NewKeys(now time.Time) (*Keys, error) {
	identity, err := keyring.NewAuthority(keyring.Identity, now)
	if err != nil {
		return nil, err
	}
	nonces, err := keyring.NewNonceKeys(keyring.NewNonceKey())
	if err != nil {
		return nil, err
	}
	return KeysOf(identity, nonces), nil
}

// LoadKeys returns the keys that MarshalPEM wrote. It fails with Invalid for
// anything else.
func LoadKeys(text []byte) (*Keys, error) {
	var blocks [3][]byte // the authority's certificate and key, and the nonce key
	for i := range blocks {
		block, rest := pem.Decode(text)
		if block == nil {
			return nil, nstance.FieldError("keys", "pass what MarshalPEM returned", "there are %d blocks of PEM instead of three", i)
		}
		blocks[i], text = pem.EncodeToMemory(block), rest
	}
	identity, err := keyring.LoadAuthority(blocks[0], blocks[1])
	if err != nil {
		return nil, err
	}
	if identity.Name() != keyring.Identity {
		return nil, nstance.FieldError("keys", "pass what MarshalPEM returned", "the authority is for %s certificates", identity.Name())
	}
	nonce, err := keyring.LoadNonceKey(blocks[2])
	if err != nil {
		return nil, err
	}
	nonces, err := keyring.NewNonceKeys(nonce)
	if err != nil {
		return nil, err
	}
	return KeysOf(identity, nonces), nil
}

// KeysOf returns the keys of a server of this module, which rotates them while
// they are in use. Other programs call NewKeys or LoadKeys.
func KeysOf(identity *keyring.Authority, nonces *keyring.NonceKeys) *Keys {
	return &Keys{identity: identity, nonces: nonces}
}

// MarshalPEM returns the certificate and the private keys of NewKeys. They are
// secret: a program that keeps them has the same authority after a restart.
func (k *Keys) MarshalPEM() ([]byte, error) {
	authority, err := k.identity.KeyPEM()
	if err != nil {
		return nil, err
	}
	nonce, err := k.nonces.PEM()
	if err != nil {
		return nil, err
	}
	return bytes.Join([][]byte{k.identity.CertPEM(), authority, nonce}, nil), nil
}

// Mint returns a nonce. Equal claims yield equal bytes, so that user data rendered
// again is the same. It fails with Invalid, naming the claim, when c could never be
// accepted.
func (k *Keys) Mint(c Claims) (string, error) { return k.nonces.Mint("", keyring.Claims(c)) }

// CertPEM returns the authority's certificate, for agents that must trust it before
// they register.
func (k *Keys) CertPEM() []byte { return k.identity.CertPEM() }

// Pool returns the keys that are trusted, as roots to verify agents and operators
// against. Do not change it.
func (k *Keys) Pool() *x509.CertPool { return k.identity.Pool() }

// ServerCertificate returns a certificate, with a fresh key, for the server of a
// shard. Fails with Invalid for a lifetime of less than a minute or more than is permitted
// to agents.
func (k *Keys) ServerCertificate(shard nstance.ShardID, cluster nstance.ClusterID, lifetime time.Duration, now time.Time) (*tls.Certificate, error) {
	if err := validate.Duration("lifetime", max(lifetime, 1), time.Minute, longestLifetime); err != nil {
		return nil, err
	}
	return k.identity.Server(shard, cluster, lifetime, now)
}
