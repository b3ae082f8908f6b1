package admin

import (
	"context"
	"errors"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/keyring"
)

// A dryVault is a vault whose writes stay in memory. It reads each object once,
// since objects of other writers would not match its own. It is for one goroutine.
type dryVault struct {
	keyring.Vault
	known     map[string]answer
	catalogue *keyring.Catalogue // nil: not read yet
}

// An answer is a vault's answer about an object.
type answer struct {
	data []byte
	err  error // nil or NotFound
}

func newDryVault(v keyring.Vault) *dryVault {
	return &dryVault{Vault: v, known: map[string]answer{}}
}

// Get implements keyring.Vault.
func (r *dryVault) Get(ctx context.Context, name string) ([]byte, error) {
	a, ok := r.known[name]
	if !ok {
		a.data, a.err = r.Vault.Get(ctx, name)
		if a.err != nil && !errors.Is(a.err, nstance.NotFound) {
			return nil, a.err
		}
		r.known[name] = a
	}
	return a.data, a.err
}

// PutIfAbsent implements keyring.Vault.
func (r *dryVault) PutIfAbsent(ctx context.Context, name string, data []byte) error {
	_, err := r.Get(ctx, name)
	switch {
	case err == nil:
		return nstance.Errorf(nstance.Conflict, "%s exists", name)
	case !errors.Is(err, nstance.NotFound):
		return err
	}
	r.known[name] = answer{data: data}
	return nil
}

// Catalogue implements keyring.Vault.
func (r *dryVault) Catalogue(ctx context.Context) (keyring.Catalogue, error) {
	if r.catalogue != nil {
		return *r.catalogue, nil
	}
	c, err := r.Vault.Catalogue(ctx)
	if err == nil {
		r.catalogue = &c
	}
	return c, err
}

// UpdateCatalogue implements keyring.Vault.
func (r *dryVault) UpdateCatalogue(ctx context.Context, fn func(*keyring.Catalogue) error) (keyring.Catalogue, error) {
	c, err := r.Catalogue(ctx)
	if err == nil {
		err = fn(&c)
	}
	if err == nil {
		r.catalogue = &c
	}
	return c, err
}
