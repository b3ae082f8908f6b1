package bounded_test

import (
	"context"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/bounded"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// oneEntry lists one entry before its store does.
type oneEntry struct{ storage.Store }

func (s oneEntry) List(ctx context.Context, prefix, after string) iter.Seq2[storage.Entry, error] {
	return func(yield func(storage.Entry, error) bool) {
		if after != "" || yield(storage.Entry{Key: "a/b"}, nil) {
			s.Store.List(ctx, prefix, after)(yield)
		}
	}
}

// TestCallsEnd: a call that is not answered ends with the error of the store.
func TestCallsEnd(t *testing.T) {
	for name, call := range map[string]func(ctx context.Context, s storage.Store) error{
		"get":    func(ctx context.Context, s storage.Store) error { _, err := s.Get(ctx, "a"); return err },
		"create": func(ctx context.Context, s storage.Store) error { _, err := s.PutIfAbsent(ctx, "a", nil); return err },
		"update": func(ctx context.Context, s storage.Store) error {
			_, err := s.PutIfMatch(ctx, "a", nil, "1")
			return err
		},
		"delete":  func(ctx context.Context, s storage.Store) error { return s.DeleteIfMatch(ctx, "a", "1") },
		"list":    func(ctx context.Context, s storage.Store) error { return last(s.List(ctx, "a", "")) },
		"folders": func(ctx context.Context, s storage.Store) error { return last(storage.Folders(ctx, s, "")) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				silent := storagetest.NewFaulty(storage.NewMemory())
				silent.Inject(storagetest.Fault{Mode: storagetest.Hang, Times: -1, Err: nstance.Errorf(nstance.Ambiguous, "no answer")})
				require.ErrorIs(t, call(t.Context(), bounded.Store(oneEntry{silent})), nstance.Ambiguous)
				limit := bounded.Limit
				if name == "list" || name == "folders" {
					limit += use
				}
				require.Equal(t, limit, time.Since(began))
			})
		})
	}
}

// use is how long last needs for an entry, which is not the store's time.
const use = time.Hour

// last returns the error that ends a listing.
func last[T any](list iter.Seq2[T, error]) (last error) {
	for _, err := range list {
		if last = err; err == nil {
			<-time.After(use)
		}
	}
	return last
}

func TestIsAStore(t *testing.T) {
	storagetest.Run(t, func(*testing.T) storage.Store { return bounded.Store(storage.NewMemory()) })
}
