// Package bounded gives every call of what others implement a limit of time: one that is not
// answered is repeated by its caller, and holds up nothing for ever.
package bounded

import (
	"context"
	"iter"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// Limit is how long one call may take, or the next entry of a listing. The drivers for object
// stores have shorter limits of their own.
const Limit = time.Minute

// Store returns a view of s whose calls end after Limit, as the contract of storage.Store has
// it for a context that ends.
func Store(s storage.Store) storage.Store { return &store{s} }

type store struct{ storage.Store }

// Separate implements storage.Shared.
func (s *store) Separate() storage.Store { return Store(storage.Separate(s.Store)) }

// Get implements storage.Store.
func (s *store) Get(ctx context.Context, key string) (storage.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	return s.Store.Get(ctx, key)
}

// PutIfAbsent implements storage.Store.
func (s *store) PutIfAbsent(ctx context.Context, key string, data []byte) (storage.Version, error) {
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	return s.Store.PutIfAbsent(ctx, key, data)
}

// PutIfMatch implements storage.Store.
func (s *store) PutIfMatch(ctx context.Context, key string, data []byte, v storage.Version) (storage.Version, error) {
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	return s.Store.PutIfMatch(ctx, key, data, v)
}

// DeleteIfMatch implements storage.Store.
func (s *store) DeleteIfMatch(ctx context.Context, key string, v storage.Version) error {
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	return s.Store.DeleteIfMatch(ctx, key, v)
}

// List implements storage.Store.
func (s *store) List(ctx context.Context, prefix, after string) iter.Seq2[storage.Entry, error] {
	return entries(ctx, func(ctx context.Context) iter.Seq2[storage.Entry, error] { return s.Store.List(ctx, prefix, after) })
}

// Folders implements storage.Foldered.
func (s *store) Folders(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return entries(ctx, func(ctx context.Context) iter.Seq2[string, error] { return storage.Folders(ctx, s.Store, prefix) })
}

// entries is a listing each entry of which comes within Limit. What is done with an entry
// does not count.
func entries[T any](ctx context.Context, list func(context.Context) iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		late := time.AfterFunc(Limit, cancel)
		defer late.Stop()
		for entry, err := range list(ctx) {
			late.Stop()
			if !yield(entry, err) {
				return
			}
			late.Reset(Limit)
		}
	}
}

// Drains returns a view of c whose calls that change a drain end after Limit.
func Drains(c nstance.DrainCoordinator) nstance.DrainCoordinator { return &drains{c} }

type drains struct{ nstance.DrainCoordinator }

// Start implements nstance.DrainCoordinator.
func (d *drains) Start(ctx context.Context, is nstance.Drain) error {
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	return d.DrainCoordinator.Start(ctx, is)
}

// Cancel implements nstance.DrainCoordinator.
func (d *drains) Cancel(ctx context.Context, id nstance.InstanceID, generation uint64) error {
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	return d.DrainCoordinator.Cancel(ctx, id, generation)
}

// End implements nstance.DrainCoordinator.
func (d *drains) End(ctx context.Context, id nstance.InstanceID) error {
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	return d.DrainCoordinator.End(ctx, id)
}
