package metrics

import (
	"context"
	"iter"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// Store returns s with its calls timed.
func (m *Metrics) Store(s storage.Store) storage.Store { return &store{s, m} }

type store struct {
	storage.Store
	m *Metrics
}

// Separate implements storage.Shared.
func (s *store) Separate() storage.Store { return s.m.Store(storage.Separate(s.Store)) }

// Folders implements storage.Foldered. It is timed like a listing.
func (s *store) Folders(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		var err error
		defer s.note("list", time.Now(), &err)
		for name, e := range storage.Folders(ctx, s.Store, prefix) {
			if err = e; !yield(name, e) {
				return
			}
		}
	}
}

func (s *store) note(op string, from time.Time, err *error) {
	s.m.storage.WithLabelValues(op, label(nstance.CodeOf(*err))).Observe(time.Since(from).Seconds())
}

// Get implements storage.Store.
func (s *store) Get(ctx context.Context, key string) (_ storage.Object, err error) {
	defer s.note("get", time.Now(), &err)
	return s.Store.Get(ctx, key)
}

// PutIfAbsent implements storage.Store.
func (s *store) PutIfAbsent(ctx context.Context, key string, data []byte) (_ storage.Version, err error) {
	defer s.note("put_if_absent", time.Now(), &err)
	return s.Store.PutIfAbsent(ctx, key, data)
}

// PutIfMatch implements storage.Store.
func (s *store) PutIfMatch(ctx context.Context, key string, data []byte, v storage.Version) (_ storage.Version, err error) {
	defer s.note("put_if_match", time.Now(), &err)
	return s.Store.PutIfMatch(ctx, key, data, v)
}

// DeleteIfMatch implements storage.Store.
func (s *store) DeleteIfMatch(ctx context.Context, key string, v storage.Version) (err error) {
	defer s.note("delete_if_match", time.Now(), &err)
	if err = s.Store.DeleteIfMatch(ctx, key, v); err == nil {
		prefix, _, _ := strings.Cut(key, "/")
		s.m.removed.WithLabelValues(prefix).Inc()
	}
	return err
}

// List implements storage.Store. It is timed from its beginning to its end,
// what the caller does with the entries included.
func (s *store) List(ctx context.Context, prefix, after string) iter.Seq2[storage.Entry, error] {
	return func(yield func(storage.Entry, error) bool) {
		var err error
		defer s.note("list", time.Now(), &err)
		for entry, e := range s.Store.List(ctx, prefix, after) {
			if err = e; !yield(entry, e) {
				return
			}
		}
	}
}
