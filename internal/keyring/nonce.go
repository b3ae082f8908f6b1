package keyring

import (
	"crypto/ed25519"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/pki"
)

const (
	// maxNonce bounds a nonce, in bytes. One with every claim at its longest
	// is below 1 KiB.
	maxNonce = 4 << 10
	// keyIDLen is the part of a key's fingerprint that names it, in characters.
	keyIDLen = 16
	// MaxNonceLife is the longest validity of an operator's or administrator's
	// nonce.
	MaxNonceLife = 366 * 24 * time.Hour
	// nbfLeeway is how far the clock of the verifying server may be behind that
	// of the minting server.
	nbfLeeway = time.Minute
)

// A NonceKey signs nonces and verifies them. It is safe for concurrent use.
type NonceKey struct {
	id  string
	key ed25519.PrivateKey
}

// NewNonceKey returns a fresh key.
func NewNonceKey() *NonceKey { return nonceKey(pki.NewKey()) }

// LoadNonceKey returns the key in PEM, or Invalid.
func LoadNonceKey(keyPEM []byte) (*NonceKey, error) {
	key, err := pki.ParseKey(keyPEM)
	if err != nil {
		return nil, err
	}
	return nonceKey(key), nil
}

func nonceKey(key ed25519.PrivateKey) *NonceKey {
	return &NonceKey{id: pki.KeyFingerprint(key.Public())[:keyIDLen], key: key}
}

// ID returns the key ID that its nonces carry.
func (k *NonceKey) ID() string { return k.id }

// PEM returns the private key, to store it in a Vault.
func (k *NonceKey) PEM() ([]byte, error) { return pki.MarshalKey(k.key) }

// Mint returns the nonce with the claims c. It is a pure function: equal claims
// yield equal bytes, so that user data rendered again is the same. It fails with
// Invalid, naming the claim, when c could never be accepted.
func (k *NonceKey) Mint(c Claims) (string, error) {
	if c.JTI == "" && c.Kind == nstance.RoleAgent {
		c.JTI = c.Subject
	}
	if err := c.validate(); err != nil {
		return "", err
	}
	if life := c.Expiry.Sub(c.NotBefore); life > MaxNonceLife && c.Kind != nstance.RoleAgent {
		return "", nstance.FieldError("exp", "use an expiry of 366 days or less", "is %s after nbf", life)
	}
	signer, err := jose.NewSigner(
		jose.SigningKey{Algorithm: jose.EdDSA, Key: jose.JSONWebKey{Key: k.key, KeyID: k.id}},
		(&jose.SignerOptions{}).WithType("JWT"),
	)
	if err != nil {
		return "", nstance.Errorf(nstance.Internal, "sign nonce: %w", err)
	}
	token, err := jwt.Signed(signer).Claims(c.wire()).Serialize()
	if err != nil {
		return "", nstance.Errorf(nstance.Internal, "sign nonce: %w", err)
	}
	return token, nil
}

// Verify is NonceKeys.Verify with this key only.
func (k *NonceKey) Verify(token string, now time.Time, want Expect) (Claims, error) {
	return newNonceKeys([]*NonceKey{k}).Verify(token, now, want)
}

// Expect says for what a nonce must be valid.
type Expect struct {
	Cluster nstance.ClusterID
	Shard   nstance.ShardID
	Kind    nstance.Role // empty: any that a nonce may have
}

// NonceKeys is a set of keys of which the first mints and all verify, so that the
// key can be replaced while nonces of the old one are still valid. A [Keyring]
// replaces the keys while they are in use. It is safe for concurrent use.
type NonceKeys struct{ keys atomic.Pointer[[]*NonceKey] }

func newNonceKeys(keys []*NonceKey) *NonceKeys {
	s := &NonceKeys{}
	s.keys.Store(&keys)
	return s
}

// NewNonceKeys returns the set, or Invalid when a key is nil or doubled.
func NewNonceKeys(mints *NonceKey, verify ...*NonceKey) (*NonceKeys, error) {
	var keys []*NonceKey
	for _, k := range append([]*NonceKey{mints}, verify...) {
		if k == nil {
			return nil, nstance.FieldError("nonce key", "make it with Bootstrap", "is nil")
		}
		if slices.ContainsFunc(keys, func(o *NonceKey) bool { return o.id == k.id }) {
			return nil, nstance.FieldError("nonce key", "name each key once", "%s appears twice", k.id)
		}
		keys = append(keys, k)
	}
	return newNonceKeys(keys), nil
}

// PEM returns the private key that mints.
func (s *NonceKeys) PEM() ([]byte, error) { return (*s.keys.Load())[0].PEM() }

// KeyID returns the ID of the key that mints.
func (s *NonceKeys) KeyID() string { return (*s.keys.Load())[0].id }

// Mint signs c with the key of that ID; an empty ID means the current key. With
// the key ID recorded in an intent it returns the same bytes again even after the
// current key has changed. Fails with NotFound when the key has been destroyed.
func (s *NonceKeys) Mint(keyID string, c Claims) (string, error) {
	if keyID == "" {
		keyID = s.KeyID()
	}
	key := s.find(keyID)
	if key == nil {
		return "", nstance.Errorf(nstance.NotFound, "nonce key %q has been retired", clip.Quote(keyID))
	}
	return key.Mint(c)
}

func (s *NonceKeys) find(id string) *NonceKey {
	for _, k := range *s.keys.Load() {
		if k.id == id {
			return k
		}
	}
	return nil
}

// Verify returns the claims of a nonce if it is genuine, meant for want, and valid
// at now. Fails with Invalid when token is not a nonce, Denied when it is forged,
// of another cluster, expired or not valid yet; the error contains the remedy.
func (s *NonceKeys) Verify(token string, now time.Time, want Expect) (Claims, error) {
	c, err := s.Authenticate(token, want)
	if err != nil {
		return Claims{}, err
	}
	if err := c.InTime(now); err != nil {
		return Claims{}, err
	}
	return c, nil
}

// Authenticate is Verify without the time of expiry.
func (s *NonceKeys) Authenticate(token string, want Expect) (Claims, error) {
	if len(token) > maxNonce {
		return Claims{}, malformed("is %d bytes long", len(token))
	}
	tok, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.EdDSA})
	if _, ok := errors.AsType[*jose.ErrUnexpectedSignatureAlgorithm](err); ok {
		return Claims{}, foreign("obtain one from this cluster", "nonce is not signed with EdDSA: forged")
	}
	if err != nil || len(tok.Headers) != 1 {
		return Claims{}, malformed("is not a signed JSON Web Token")
	}
	key := s.find(tok.Headers[0].KeyID)
	if key == nil {
		return Claims{}, unknownKey(tok, want)
	}
	var wire wireClaims
	switch err := tok.Claims(key.key.Public(), &wire); {
	case errors.Is(err, jose.ErrCryptoFailure):
		return Claims{}, foreign("obtain one from this cluster", "nonce's signature is wrong: forged")
	case err != nil:
		return Claims{}, malformed("holds claims that cannot be read")
	}
	return accept(wire, want)
}

// accept checks the claims of a nonce whose signature has been verified.
func accept(wire wireClaims, want Expect) (Claims, error) {
	if name := wire.missing(); name != "" {
		return Claims{}, foreign("mint it with nstance-admin cluster nonce", "nonce lacks the claim %s", name)
	}
	c := wire.claims()
	switch {
	case c.Cluster != want.Cluster:
		return Claims{}, otherCluster(c, want)
	case wire.Issuer != issuerOf(c.Cluster):
		return Claims{}, foreign("obtain a registration nonce", "nonce's issuer is %q", clip.Quote(wire.Issuer))
	case !wire.Audience.Contains(audienceOf(c.Cluster)):
		return Claims{}, foreign("obtain a registration nonce", "nonce is meant for another audience")
	}
	if err := c.validate(); err != nil {
		return Claims{}, foreign("mint it with nstance-admin cluster nonce", "nonce's claims: %v", err)
	}
	switch {
	case c.Shard != "" && c.Shard != want.Shard:
		return Claims{}, foreign("connect to the server of that shard", "nonce is for shard %q, this is shard %q", c.Shard, want.Shard)
	case want.Kind != "" && c.Kind != want.Kind:
		return Claims{}, foreign("obtain a nonce of the right kind", "nonce is of kind %s, this needs kind %s", c.Kind, want.Kind)
	}
	return c, nil
}

// InTime returns nil, or Denied when a nonce with these claims is expired or not
// valid yet at now.
func (c Claims) InTime(now time.Time) error {
	if at := c.NotBefore.Add(-nbfLeeway); now.Before(at) {
		return foreign("check the clocks of this server and of the one that minted it",
			"nonce is not valid before %s, it is now %s", c.NotBefore.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	if now.Before(c.Expiry) {
		return nil
	}
	remedy := "mint a new one with nstance-admin cluster nonce"
	if c.Kind == nstance.RoleAgent {
		remedy = "the instance is replaced; if this recurs, raise registration_timeout"
	}
	return foreign(remedy, "nonce expired at %s, it is now %s", c.Expiry.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
}

// unknownKey returns the error for a nonce by an unknown key: of another cluster,
// or forged. It reads unverified claims for the message only.
func unknownKey(tok *jwt.JSONWebToken, want Expect) error {
	var wire wireClaims
	if err := tok.UnsafeClaimsWithoutVerification(&wire); err == nil && wire.Cluster != "" && wire.Cluster != want.Cluster {
		return otherCluster(wire.claims(), want)
	}
	return foreign("obtain a new one from this cluster",
		"nonce is signed with the unknown key %q: forged, or of a key that has been retired", clip.Quote(tok.Headers[0].KeyID))
}

func otherCluster(c Claims, want Expect) error {
	return foreign("connect to that cluster, or obtain a nonce of this one",
		"nonce is for cluster %q, this is cluster %q", clip.Quote(string(c.Cluster)), want.Cluster)
}

// foreign returns a Denied error about a nonce.
func foreign(remedy, format string, args ...any) error {
	return refuse(nstance.Denied, remedy, format, args...)
}

func malformed(format string, args ...any) error {
	return refuse(nstance.Invalid, "pass the nonce exactly as it was given", "nonce "+format, args...)
}
