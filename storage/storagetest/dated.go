package storagetest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/storage"
)

// Dated checks that a store over HTTP reads its back end's clock from answers to
// reads, writes and deletions, errors included. Results of the calls are ignored.
// Open opens the store over a service whose clock is off by that much.
func Dated(t *testing.T, open func(t *testing.T, off time.Duration) storage.Store) {
	for name, call := range map[string]func(context.Context, storage.Store) error{
		"get":    func(ctx context.Context, s storage.Store) error { _, err := s.Get(ctx, "a"); return err },
		"put":    func(ctx context.Context, s storage.Store) error { _, err := s.PutIfAbsent(ctx, "a", nil); return err },
		"delete": func(ctx context.Context, s storage.Store) error { return s.DeleteIfMatch(ctx, "a", "1") },
	} {
		for _, off := range []time.Duration{0, -time.Hour, 90 * time.Second} {
			t.Run(name+" "+off.String(), func(t *testing.T) {
				s := open(t, off)
				dated, ok := s.(storage.Dated)
				require.True(t, ok)
				_, ok = dated.Date()
				require.False(t, ok, "nothing has been asked yet")
				began := time.Now()
				err := call(t.Context(), s)
				r, ok := dated.Date()
				require.True(t, ok, "%v", err)
				require.False(t, r.Local.Before(began))
				require.Greater(t, r.Within, time.Second, "HTTP dates have no fractions, and the answer took a while")
				require.False(t, r.Remote.After(r.Local.Add(off)), "the earliest that it can have been")
				require.False(t, r.Remote.Add(r.Within).Before(began.Add(off)), "the latest that it can have been")
			})
		}
	}
}
