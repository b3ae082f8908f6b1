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
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/secret"
)

// certExt ends the names of certificates, which are public.
const certExt = ".crt"

// A Vault is a keyring.Vault over a store. It is safe for concurrent use.
type Vault struct {
	store     storage.Store
	box       *secret.Box
	catalogue *records.Doc[catalogue]
}

var _ keyring.Vault = (*Vault)(nil)

// New returns the vault in store. A nil box leaves private keys readable for
// every reader of the store: an explicit choice, for a private directory.
func New(store storage.Store, box *secret.Box) *Vault {
	return &Vault{store, box, openCatalogue(store)}
}

// Get returns an object, or NotFound when it definitely does not exist. It
// fails with Denied when the object is sealed with a key that the vault lacks,
// or was altered, and Invalid when it is not sealed although it should be.
func (v *Vault) Get(ctx context.Context, name string) ([]byte, error) {
	obj, err := v.store.Get(ctx, Key(name))
	if err != nil {
		return nil, err
	}
	return v.Open(name, obj.Data)
}

// Open returns what Seal has sealed under that name. Fails as Get does.
func (v *Vault) Open(name string, data []byte) ([]byte, error) {
	switch {
	case public(name):
		return data, nil
	case v.box != nil:
		return v.box.Open(name, data)
	}
	if id, sealed := secret.SealedWith(data); sealed {
		return nil, &nstance.Error{Code: nstance.Denied, Field: "secret " + name, Msg: "is encrypted with key " + id, Remedy: "pass that key"}
	}
	return data, nil
}

// PutIfAbsent stores an object, durably, or fails with Conflict when there is
// one, and Ambiguous when it may have been stored. It does not use
// records.PutOnce: its callers read back after every answer, success included,
// and must open what they read.
func (v *Vault) PutIfAbsent(ctx context.Context, name string, data []byte) error {
	data, err := v.Seal(name, data)
	if err != nil {
		return err
	}
	_, err = v.store.PutIfAbsent(ctx, Key(name), data)
	return err
}

// Seal returns data as it is stored under that name: sealed, if the vault has a key.
func (v *Vault) Seal(name string, data []byte) ([]byte, error) {
	if v.box == nil || public(name) {
		return data, nil
	}
	return v.box.Seal(name, data)
}

// destroyedMarker replaces a destroyed private key. It cannot be parsed as a key, and
// it exists, so that no other key is created under the name.
const destroyedMarker = "destroyed\n"

// Destroy replaces an object by a marker. It does not reach backups and older
// versions that a bucket keeps.
func (v *Vault) Destroy(ctx context.Context, name string) error {
	obj, err := v.store.Get(ctx, Key(name))
	if errors.Is(err, nstance.NotFound) {
		return v.checkDestroyed(ctx, name, v.PutIfAbsent(ctx, name, []byte(destroyedMarker)))
	}
	if err != nil {
		return err
	}
	if data, err := v.Open(name, obj.Data); err == nil && string(data) == destroyedMarker {
		return nil
	}
	data, err := v.Seal(name, []byte(destroyedMarker))
	if err != nil {
		return err
	}
	_, err = v.store.PutIfMatch(ctx, Key(name), data, obj.Version)
	return v.checkDestroyed(ctx, name, err)
}

// checkDestroyed reads back after a write that was refused or got no answer: another
// process may have destroyed the same key at the same time.
func (v *Vault) checkDestroyed(ctx context.Context, name string, err error) error {
	if err == nil {
		return nil
	}
	if data, gerr := v.Get(ctx, name); gerr == nil && string(data) == destroyedMarker {
		return nil
	}
	return err
}

// Catalogue implements keyring.Vault.
func (v *Vault) Catalogue(ctx context.Context) (keyring.Catalogue, error) {
	c, err := v.catalogue.Load(ctx)
	return c.Catalogue, err
}

// UpdateCatalogue implements keyring.Vault.
func (v *Vault) UpdateCatalogue(ctx context.Context, fn func(*keyring.Catalogue) error) (keyring.Catalogue, error) {
	c, err := v.catalogue.Update(ctx, func(c *catalogue) error { return fn(&c.Catalogue) })
	return c.Catalogue, err
}

// catalogue is the stored form of a keyring.Catalogue. It belongs to no
// shard, so its epoch is 0.
type catalogue struct {
	records.Header
	keyring.Catalogue
}

func openCatalogue(store storage.Store) *records.Doc[catalogue] {
	return records.NewDoc[catalogue](store, layout.ClusterLeaseKey, nil)
}

// Key returns where in the store an object is.
func Key(name string) string {
	if base, ok := strings.CutSuffix(name, certExt); ok {
		return layout.CACertKey(base)
	}
	return layout.SecretKey(name)
}

// public reports whether an object is public.
func public(name string) bool {
	return path.Ext(name) == certExt || name == keyring.VaultInstallation
}
