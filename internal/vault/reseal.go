package vault

import (
	"context"
	"errors"
	"iter"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/secret"
)

// maxResealAttempts bounds the attempts for one object that other processes write
// in the meantime.
const maxResealAttempts = 5

// A Sealing is the result for one secret object.
type Sealing struct {
	Name  string // of the secret, without the folder that all of them are in; of bootstrap data, its key
	Stale bool   // it was sealed again with the first key, or would be
	Err   error  // why it was not changed
}

// Reseal seals every secret in store again that was sealed with another key than the
// first one of box, and reports each secret. Secrets that cannot be opened or are
// not sealed are reported and not changed. A dry run writes nothing. The error is
// that of listing.
//
// It may be repeated, and run beside servers and itself: each object is replaced
// only if it has not been written since it was read.
func Reseal(ctx context.Context, store storage.Store, box *secret.Box, dryRun bool, report func(Sealing)) error {
	for entry, err := range listSealed(ctx, store) {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(entry.Key, layout.SecretKey(""))
		if name == keyring.VaultInstallation {
			continue // no secret
		}
		stale, err := reseal(ctx, store, box, entry.Key, name, dryRun)
		if errors.Is(err, nstance.NotFound) {
			continue // deleted in the meantime
		}
		report(Sealing{Name: name, Stale: stale, Err: err})
		if ctx.Err() != nil {
			return nstance.Errorf(nstance.Unavailable, "interrupted: %w", ctx.Err())
		}
	}
	return nil
}

// listSealed yields all objects that are sealed: secrets, under their names without the
// folder, and bootstrap data, under its whole keys.
func listSealed(ctx context.Context, store storage.Store) iter.Seq2[storage.Entry, error] {
	return func(yield func(storage.Entry, error) bool) {
		for _, prefix := range []string{layout.SecretKey(""), layout.BootstrapPrefix} {
			for entry, err := range store.List(ctx, prefix, "") {
				if !yield(entry, err) || err != nil {
					return
				}
			}
		}
	}
}

func reseal(ctx context.Context, store storage.Store, box *secret.Box, key, name string, dryRun bool) (stale bool, err error) {
	lost := false // the answer to the last write
	for range maxResealAttempts {
		var obj storage.Object
		if obj, err = store.Get(ctx, key); err != nil {
			return false, err
		}
		plain, err := box.Open(name, obj.Data)
		if err != nil || !box.Stale(obj.Data) || dryRun {
			return err == nil && (lost || box.Stale(obj.Data)), err
		}
		data, err := box.Seal(name, plain)
		if err != nil {
			return false, err
		}
		if _, err = store.PutIfMatch(ctx, obj.Key, data, obj.Version); err == nil {
			return true, nil
		}
		if !errors.Is(err, nstance.Conflict) && !errors.Is(err, nstance.Ambiguous) {
			return true, err
		}
		lost = errors.Is(err, nstance.Ambiguous) // read again: another process wrote it, or this one did
	}
	return true, nstance.Errorf(nstance.Conflict, "other processes wrote it %d times in the meantime", maxResealAttempts)
}
