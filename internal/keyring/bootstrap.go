package keyring

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

// The objects of a Vault. Names ending in .crt are public; all others are secret,
// except the installation's ID.
const (
	VaultInstallation = "installation"
	VaultNonceKey     = "nonce.key"
)

// VaultKey names the first private key of an authority in a Vault.
func VaultKey(authority string) string { return keyObject(authority, 1) }

// VaultCert names the certificate of VaultKey in a Vault.
func VaultCert(authority string) string { return certObject(authority, 1) }

// A Vault stores the keys of a cluster, which must exist exactly once. Secrets are
// stored in it encrypted (package storage/secret).
type Vault interface {
	// Get returns an object, or NotFound when it definitely does not exist.
	Get(ctx context.Context, name string) ([]byte, error)
	// PutIfAbsent stores an object, durably, or fails with Conflict when there
	// is one, and Ambiguous when it may have been stored.
	PutIfAbsent(ctx context.Context, name string, data []byte) error
	// Destroy makes the content of an object unrecoverable, and prevents reuse of
	// its name. It is idempotent.
	Destroy(ctx context.Context, name string) error
	// Catalogue returns the catalogue, or the zero one when there definitely is
	// none.
	Catalogue(ctx context.Context) (Catalogue, error)
	// UpdateCatalogue applies fn to the catalogue by one conditional write,
	// durable when it returns. fn may be called again, on a newer one. Its
	// errors are returned so that errors.Is finds them, and nothing is written.
	UpdateCatalogue(ctx context.Context, fn func(*Catalogue) error) (Catalogue, error)
}

// Keys are the authorities and nonce keys of a cluster. They change during a
// rotation if they come from a [Keyring].
type Keys struct {
	Identity     *Authority
	Workload     *Authority
	Nonces       *NonceKeys
	Installation string // 32 random hexadecimal digits: distinguishes clusters of the same name
}

// Bootstrap returns the cluster's keys and creates those that do not exist. Any
// number of servers may call it at once, and any of them may crash at any point:
// each object is written only if absent, then read back, whatever the result of
// the write. A key is written before its certificate, and both before the
// catalogue that names them.
//
// An existing object is never replaced: a certificate without its key, or an
// object that cannot be read, is an error that an operator must resolve.
func Bootstrap(ctx context.Context, v Vault, now time.Time) (*Keys, error) {
	r, err := OpenKeyring(ctx, v, func() time.Time { return now })
	if err != nil {
		return nil, err
	}
	return r.Keys(), nil
}

// ensureCatalogue returns the catalogue, and makes the first generation of every
// key set that it does not name.
func ensureCatalogue(ctx context.Context, v Vault, now time.Time) (Catalogue, error) {
	c, err := v.Catalogue(ctx)
	if err != nil {
		return Catalogue{}, err
	}
	made := map[string]KeySet{}
	for _, name := range sets {
		if _, ok := c.Sets[name]; ok {
			continue
		}
		first, err := ensureFirst(ctx, v, name, now)
		if err != nil {
			return Catalogue{}, err
		}
		made[name] = KeySet{Last: 1, Keys: []KeyEntry{first}}
	}
	if len(made) == 0 {
		return c, nil
	}
	return v.UpdateCatalogue(ctx, func(c *Catalogue) error {
		for name, set := range made {
			if _, ok := c.Sets[name]; !ok {
				*c = c.with(name, set)
			}
		}
		return nil
	})
}

// ensureFirst makes the first key of a set.
func ensureFirst(ctx context.Context, v Vault, name string, now time.Time) (KeyEntry, error) {
	if err := neverRotated(ctx, v, name); err != nil {
		return KeyEntry{}, err
	}
	if err := ensureKey(ctx, v, name, 1, now); err != nil {
		return KeyEntry{}, err
	}
	m, err := loadMaterial(ctx, v, name, 1)
	if err != nil {
		return KeyEntry{}, err
	}
	first := m.entry(1)
	first.Phase, first.CreatedAt, first.Since = PhaseCurrent, now.UTC(), now.UTC()
	return first, nil
}

// neverRotated fails when a set that the catalogue does not name has a second
// generation: the catalogue has been lost, and it is unknown which key is current.
func neverRotated(ctx context.Context, v Vault, name string) error {
	_, err := v.Get(ctx, keyObject(name, 2))
	switch {
	case errors.Is(err, nstance.NotFound):
		return nil
	case err != nil:
		return fmt.Errorf("%s: %w", keyObject(name, 2), err)
	}
	return &nstance.Error{
		Code: nstance.Invalid, Remedy: "restore it from a backup",
		Msg: fmt.Sprintf("the catalogue of keys does not name the %s keys, although they have been rotated", name),
	}
}

// ensureKey creates the missing objects of one generation of a set.
func ensureKey(ctx context.Context, v Vault, name string, generation int, now time.Time) error {
	if name == Nonces {
		_, err := ensure(ctx, v, keyObject(name, generation), func() ([]byte, error) { return NewNonceKey().PEM() })
		return err
	}
	return ensureAuthority(ctx, v, name, generation, now)
}

func ensureAuthority(ctx context.Context, v Vault, name string, generation int, now time.Time) error {
	// The certificate is read first. If it exists, its key existed before and
	// must not be created again.
	keyName, certName := keyObject(name, generation), certObject(name, generation)
	_, err := v.Get(ctx, certName)
	certified := err == nil
	if err != nil && !errors.Is(err, nstance.NotFound) {
		return fmt.Errorf("%s: %w", certName, err)
	}
	keyPEM, err := ensure(ctx, v, keyName, func() ([]byte, error) {
		if certified {
			return nil, nstance.Errorf(nstance.Invalid, "is missing, although its certificate exists: restore it from a backup")
		}
		return pki.MarshalKey(pki.NewKey())
	})
	if err != nil {
		return err
	}
	_, err = ensure(ctx, v, certName, func() ([]byte, error) {
		key, err := pki.ParseKey(keyPEM)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", keyName, err)
		}
		der, err := certifyAuthority(name, key, now)
		if err != nil {
			return nil, err
		}
		return pki.MarshalCertificates(der), nil
	})
	return err
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

// ensure returns the stored object, after storing the result of fresh if there was
// none.
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
