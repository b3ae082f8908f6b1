// Package vault keeps a cluster's keys in storage: certificates and the
// installation's ID as they are, everything else sealed. Servers and
// nstance-admin reach the keys through it, so both see one layout.
package vault

import (
	"context"
	"errors"
	"path"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/secret"
)

// certExt ends the names of certificates, which are public.
const certExt = ".crt"

// A Vault is a registration.Vault over a store. It is safe for concurrent use.
type Vault struct {
	store storage.Store
	box   *secret.Box
}

var _ registration.Vault = (*Vault)(nil)

// New returns the vault in store. A nil box leaves private keys readable for
// whoever can read the store: an explicit choice, for a private directory.
func New(store storage.Store, box *secret.Box) *Vault { return &Vault{store, box} }

// Get returns an object, or NotFound when it definitely does not exist. It
// fails with Denied when the object is sealed with a key that the vault lacks,
// or was altered, and Invalid when it is not sealed although it should be.
func (v *Vault) Get(ctx context.Context, name string) ([]byte, error) {
	obj, err := v.store.Get(ctx, Key(name))
	if err != nil {
		return nil, err
	}
	return v.open(name, obj.Data)
}

func (v *Vault) open(name string, data []byte) ([]byte, error) {
	switch {
	case public(name):
		return data, nil
	case v.box != nil:
		return v.box.Open(name, data)
	}
	// Without a box nothing can be opened, but what is sealed can be told from
	// a bare key, and is called by its name instead of "no PEM".
	if _, err := secret.Plain().Open(name, data); errors.Is(err, nstance.Denied) {
		return nil, err
	}
	return data, nil
}

// PutIfAbsent stores an object, durably, or fails with Conflict when there is
// one, and Ambiguous when it may have been stored.
func (v *Vault) PutIfAbsent(ctx context.Context, name string, data []byte) error {
	if v.box != nil && !public(name) {
		sealed, err := v.box.Seal(name, data)
		if err != nil {
			return err
		}
		data = sealed
	}
	_, err := v.store.PutIfAbsent(ctx, Key(name), data)
	return err
}

// Key returns where in the store an object is.
func Key(name string) string {
	if base, ok := strings.CutSuffix(name, certExt); ok {
		return storage.CACertKey(base)
	}
	return storage.SecretKey(name)
}

// public reports whether an object may be read by anybody.
func public(name string) bool {
	return path.Ext(name) == certExt || name == registration.VaultInstallation
}
