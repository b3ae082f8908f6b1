package registration

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/pki"
)

// The objects of a Vault. Names ending in .crt are public; all others are
// secret, but for the installation's ID, which is neither.
const (
	VaultInstallation = "installation"
	VaultNonceKey     = "nonce.key"
)

// VaultKey names the private key of an authority in a Vault.
func VaultKey(authority string) string { return authority + "-ca.key" }

// VaultCert names the certificate of an authority in a Vault.
func VaultCert(authority string) string { return authority + "-ca.crt" }

// A Vault keeps what must exist once for a cluster. Secrets belong in it
// encrypted (package storage/secret).
type Vault interface {
	// Get returns an object, or NotFound when it definitely does not exist.
	Get(ctx context.Context, name string) ([]byte, error)
	// PutIfAbsent stores an object, durably, or fails with Conflict when there
	// is one, and Ambiguous when it may have been stored.
	PutIfAbsent(ctx context.Context, name string, data []byte) error
}

// Keys are what a cluster's trust rests on.
type Keys struct {
	Identity     *Authority
	Workload     *Authority
	Nonces       *NonceKeys
	Installation string // 32 hexadecimal digits, random: tells apart clusters of one name
}

// Bootstrap returns the cluster's keys, making those that do not exist. Any
// number of servers may call it at once, and any of them may die at any point:
// each object is written only if absent, and what stands is read back and used,
// whatever the write answered. A key comes before the certificate made from it.
//
// Nothing that exists is ever made anew: a certificate whose key is gone, or an
// object that cannot be read, is an error for a person.
func Bootstrap(ctx context.Context, v Vault, now time.Time) (*Keys, error) {
	identity, err := ensureAuthority(ctx, v, Identity, now)
	if err != nil {
		return nil, err
	}
	workload, err := ensureAuthority(ctx, v, Workload, now)
	if err != nil {
		return nil, err
	}
	nonces, err := ensureNonceKeys(ctx, v)
	if err != nil {
		return nil, err
	}
	installation, err := ensureInstallation(ctx, v)
	if err != nil {
		return nil, err
	}
	return &Keys{Identity: identity, Workload: workload, Nonces: nonces, Installation: installation}, nil
}

func ensureNonceKeys(ctx context.Context, v Vault) (*NonceKeys, error) {
	data, err := ensure(ctx, v, VaultNonceKey, func() ([]byte, error) { return NewNonceKey().PEM() })
	if err != nil {
		return nil, err
	}
	nonce, err := LoadNonceKey(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", VaultNonceKey, err)
	}
	return NewNonceKeys(nonce)
}

func ensureAuthority(ctx context.Context, v Vault, name string, now time.Time) (*Authority, error) {
	// The certificate is looked for first. If it is there, its key was there
	// before, and must not be made again.
	_, err := v.Get(ctx, VaultCert(name))
	certified := err == nil
	if err != nil && !errors.Is(err, nstance.NotFound) {
		return nil, fmt.Errorf("%s: %w", VaultCert(name), err)
	}
	keyPEM, err := ensure(ctx, v, VaultKey(name), func() ([]byte, error) {
		if certified {
			return nil, nstance.Errorf(nstance.Invalid, "is missing, though there is a certificate for it: restore it from a backup")
		}
		return pki.MarshalKey(pki.NewKey())
	})
	if err != nil {
		return nil, err
	}
	certPEM, err := ensure(ctx, v, VaultCert(name), func() ([]byte, error) { return certifyKey(name, keyPEM, now) })
	if err != nil {
		return nil, err
	}
	return loadAuthority(name, certPEM, keyPEM)
}

func certifyKey(name string, keyPEM []byte, now time.Time) ([]byte, error) {
	key, err := pki.ParseKey(keyPEM)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", VaultKey(name), err)
	}
	der, err := certifyAuthority(name, key, now)
	if err != nil {
		return nil, err
	}
	return pki.MarshalCertificates(der), nil
}

func loadAuthority(name string, certPEM, keyPEM []byte) (*Authority, error) {
	a, err := LoadAuthority(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %w", VaultCert(name), VaultKey(name), err)
	}
	if a.name != name {
		return nil, nstance.Errorf(nstance.Invalid, "%s is of the %s authority", VaultCert(name), a.name)
	}
	return a, nil
}

func ensureInstallation(ctx context.Context, v Vault) (string, error) {
	const size = 16
	data, err := ensure(ctx, v, VaultInstallation, func() ([]byte, error) {
		b := make([]byte, size)
		rand.Read(b) // never fails: crypto/rand ends the process instead
		return []byte(hex.EncodeToString(b)), nil
	})
	if err != nil {
		return "", err
	}
	id := strings.TrimSpace(string(data))
	if b, err := hex.DecodeString(id); err != nil || len(b) != size || id != strings.ToLower(id) {
		return "", nstance.Errorf(nstance.Invalid, "%s: not 32 lower-case hexadecimal digits", VaultInstallation)
	}
	return id, nil
}

// ensure returns the object as it stands, after putting there what fresh makes
// if there was none.
func ensure(ctx context.Context, v Vault, name string, fresh func() ([]byte, error)) ([]byte, error) {
	data, err := v.Get(ctx, name)
	if err == nil {
		return data, nil
	}
	if !errors.Is(err, nstance.NotFound) {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	made, err := fresh()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	putErr := v.PutIfAbsent(ctx, name, made)
	switch data, err = v.Get(ctx, name); {
	case err == nil:
		return data, nil
	case putErr != nil:
		return nil, fmt.Errorf("%s: %w", name, putErr)
	}
	return nil, nstance.Errorf(nstance.Unavailable, "%s: stored, but cannot be read back: %w", name, err)
}
