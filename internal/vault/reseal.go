package vault

import (
	"context"
	"errors"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/secret"
)

// resealTries bounds how often one object is sealed again because another process
// has written it meanwhile.
const resealTries = 5

// A Sealing is what became of one secret object.
type Sealing struct {
	Name  string // of the secret, without the folder that all of them are in
	Stale bool   // it was, or would be, sealed again with the first key
	Err   error  // why it was left as it is
}

// Reseal seals every secret in store that was sealed with another key than the
// first one of box with that, and tells of each. It changes nothing else: what
// cannot be opened is left alone and told, as is what is not sealed at all. A dry
// run writes nothing. The error is that of listing.
//
// It may be repeated, and run beside servers and itself: each object is replaced
// only if it has not been written since it was read.
func Reseal(ctx context.Context, store storage.Store, box *secret.Box, dryRun bool, tell func(Sealing)) error {
	for entry, err := range store.List(ctx, storage.SecretKey(""), "") {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(entry.Key, storage.SecretKey(""))
		if name == registration.VaultInstallation {
			continue // no secret
		}
		stale, err := reseal(ctx, store, box, name, dryRun)
		if errors.Is(err, nstance.NotFound) {
			continue // gone meanwhile
		}
		tell(Sealing{Name: name, Stale: stale, Err: err})
		if ctx.Err() != nil {
			return nstance.Errorf(nstance.Unavailable, "interrupted: %w", ctx.Err())
		}
	}
	return nil
}

func reseal(ctx context.Context, store storage.Store, box *secret.Box, name string, dryRun bool) (stale bool, err error) {
	for range resealTries {
		var obj storage.Object
		if obj, err = store.Get(ctx, storage.SecretKey(name)); err != nil {
			return false, err
		}
		plain, err := box.Open(name, obj.Data)
		if err != nil || !box.Stale(obj.Data) || dryRun {
			return err == nil && box.Stale(obj.Data), err
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
		stale = true // read again: another process wrote it, or the answer was lost
	}
	return stale, nstance.Errorf(nstance.Conflict, "others have written it %d times meanwhile", resealTries)
}
