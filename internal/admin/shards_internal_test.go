package admin

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// TestLeaseWatch: how long a lease stands is counted from before its renewal,
// and that it is not renewed is shown only when that is certain.
func TestLeaseWatch(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	newWatch := func(t *testing.T) (w *leaseWatch, store *storagetest.Faulty, at *time.Time, renew func()) {
		store, now := storagetest.NewFaulty(storage.NewMemory()), begin
		renew = func() {
			obj, err := store.Get(t.Context(), layout.LeaseKey("a"))
			if err == nil {
				require.NoError(t, store.DeleteIfMatch(t.Context(), obj.Key, obj.Version))
			}
			_, err = store.PutIfAbsent(t.Context(), layout.LeaseKey("a"), fmt.Appendf(nil, `{"format":"1.0","epoch":1,"write_id":"w","holder":"H","ttl_ms":%d}`, ttl.Milliseconds()))
			require.NoError(t, err)
		}
		renew()
		w = &leaseWatch{store: store, now: func() time.Time { return now }, leases: []*watchedLease{{ShardLease: ShardLease{Shard: "a"}, undecided: true}}}
		return w, store, &now, renew
	}
	look := func(t *testing.T, w *leaseWatch) ShardLease {
		require.NoError(t, w.readUndecided(t.Context()))
		return w.leases[0].ShardLease
	}
	t.Run("renewed", func(t *testing.T) {
		w, _, now, renew := newWatch(t)
		require.Equal(t, leaseHeld, look(t, w).State)
		for _, after := range []time.Duration{time.Second, 2 * time.Second} {
			*now = begin.Add(after)
			require.Equal(t, leaseHeld, look(t, w).State)
		}
		renew()
		*now = begin.Add(3 * time.Second)
		l := look(t, w)
		require.Equal(t, leaseLed, l.State)
		require.Equal(t, begin.Add(2*time.Second+ttl), l.Until, "it may have been renewed just after the last look")
	})
	t.Run("not renewed", func(t *testing.T) {
		w, _, now, _ := newWatch(t)
		look(t, w)
		*now = begin.Add(ttl)
		require.Equal(t, leaseHeld, look(t, w).State)
		*now = begin.Add(ttl + time.Millisecond)
		require.Equal(t, leaseSilent, look(t, w).State)
	})
	t.Run("an error says nothing", func(t *testing.T) {
		w, store, now, _ := newWatch(t)
		look(t, w)
		*now = begin.Add(2 * ttl)
		store.Inject(storagetest.Fault{Op: storagetest.Get, Mode: storagetest.Refuse})
		require.Error(t, w.readUndecided(t.Context()))
		require.Equal(t, leaseHeld, w.leases[0].State)
	})
}

// folders is a store in which a console has made folders: objects without
// content, whose keys end in a slash.
type folders struct{ storage.Store }

func (f folders) List(ctx context.Context, prefix, after string) iter.Seq2[storage.Entry, error] {
	return func(yield func(storage.Entry, error) bool) {
		if strings.HasSuffix(prefix, "/") && prefix > after && !yield(storage.Entry{Key: prefix}, nil) {
			return
		}
		f.Store.List(ctx, prefix, after)(yield)
	}
}

// TestSurveyOfFolders: what others have put into the storage is passed over.
func TestSurveyOfFolders(t *testing.T) {
	t.Parallel()
	m := storage.NewMemory()
	for _, key := range []string{layout.InstancePrefix("a") + "default/web/x.json", layout.AcceptedKey("b"), layout.SecretKey("db")} {
		_, err := m.PutIfAbsent(t.Context(), key, []byte(`{"format":"1.0"}`))
		require.NoError(t, err)
	}
	s := &statusReader{store: folders{m}, now: time.Now}
	require.NoError(t, s.run(t.Context()))
	require.Len(t, s.Shards, 2)
	require.Equal(t, []Sealed{{Objects: 1}}, s.Sealing)
	require.Zero(t, s.Operators)
}
