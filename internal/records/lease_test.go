package records_test

import (
	"context"
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
	"github.com/nstance-go/nstance/storage/storagetest"
)

func TestReadLease(t *testing.T) {
	m := storage.NewMemory()
	store := storage.ReadOnly(m) // reads only
	read := func() records.Lease {
		s, err := records.ReadLease(t.Context(), store, "a")
		require.NoError(t, err)
		return s
	}
	require.Zero(t, read(), "there is no lease")

	l, err := lease.New(m, "a", &lease.Options{Address: "x:1", Peer: "x:2", TTL: time.Minute, TakeAtOnce: true})
	require.NoError(t, err)
	_, err = l.Campaign(t.Context())
	require.NoError(t, err)
	held := read()
	require.NotEmpty(t, held.Holder)
	require.NotEmpty(t, held.Version)
	require.Equal(t, []any{"x:1", "x:2", uint64(1)}, []any{held.Address, held.Peer, held.Epoch})
	require.Equal(t, time.Minute, held.TTL())
	require.Equal(t, held, read())

	require.NoError(t, l.Resign(t.Context()))
	released := read()
	require.True(t, released.Released)
	require.NotEqual(t, held.Version, released.Version)

	t.Run("no error is absence", func(t *testing.T) {
		_, err := m.PutIfAbsent(t.Context(), layout.LeaseKey("b"), []byte(`{"format":"9.0"}`))
		require.NoError(t, err)
		_, err = records.ReadLease(t.Context(), store, "b")
		require.ErrorIs(t, err, nstance.Invalid)
		_, err = records.ReadLease(t.Context(), store, "cluster")
		require.ErrorIs(t, err, nstance.Invalid, "that is no shard's")
		faulty := storagetest.NewFaulty(m)
		faulty.Inject(storagetest.Fault{Op: storagetest.Get, Mode: storagetest.Refuse})
		_, err = records.ReadLease(t.Context(), faulty, "a")
		require.ErrorIs(t, err, nstance.Unavailable)
	})
}

// TestLeaseTTL: a lease that makes no sense is waited for as long as any may last, never less.
func TestLeaseTTL(t *testing.T) {
	for name, c := range map[string]struct {
		version storage.Version
		millis  int64
		want    time.Duration
	}{
		"of a missing lease":    {"", 5000, time.Minute},
		"as the lease says":     {"v", 5000, 5 * time.Second},
		"missing":               {"v", 0, time.Minute},
		"negative":              {"v", -5000, time.Minute},
		"too short":             {"v", 1, time.Second},
		"of the shortest":       {"v", 1000, time.Second},
		"of the longest":        {"v", 60_000, time.Minute},
		"too long":              {"v", 60_001, time.Minute},
		"too long by centuries": {"v", 1 << 62, time.Minute},
	} {
		l := records.Lease{TTLMillis: c.millis, Version: c.version}
		require.Equal(t, c.want, l.TTL(), name)
	}
}

// TestNextLease: the next lease keeps what a newer program has written, whatever its fields are called.
func TestNextLease(t *testing.T) {
	const data = `{"format":"1.2","epoch":4,"write_id":"W","holder":"h","ttl_ms":5000,"released":false,"later":[1],"unknown":2,"Version":3}`
	l, err := records.DecodeLease(storage.Object{Key: layout.LeaseKey("a"), Data: []byte(data), Version: "v1"})
	require.NoError(t, err)
	require.EqualValues(t, "v1", l.Version)
	next := l.Next(5)
	require.Empty(t, next.Version, "it is not stored yet")
	require.Equal(t, "1.2", next.Format)
	require.EqualValues(t, 5, next.Epoch)
	require.NotEqual(t, l.WriteID, next.WriteID)
	out, err := next.Encode()
	require.NoError(t, err)
	require.JSONEq(t, `{"format":"1.2","epoch":5,"write_id":"`+next.WriteID+`","holder":"h","ttl_ms":5000,"released":false,"later":[1],"unknown":2,"Version":3}`, string(out))
}

// TestPreparable: a shard that has anything of a leader, readable or not, is not prepared as a new one.
func TestPreparable(t *testing.T) {
	both := func(t *testing.T, s storage.Store) (preparable, untouched bool, err error) {
		preparable, err = records.Preparable(t.Context(), s, "a")
		untouched, err2 := records.Untouched(t.Context(), s, "a")
		if err == nil {
			err = err2
		}
		return preparable, untouched, err
	}
	check := func(name string, put map[string]string, preparable, untouched bool) {
		t.Run(name, func(t *testing.T) {
			m := storage.NewMemory()
			for key, data := range put {
				_, err := m.PutIfAbsent(t.Context(), key, []byte(data))
				require.NoError(t, err)
			}
			p, u, err := both(t, storage.ReadOnly(m))
			require.NoError(t, err)
			require.Equal(t, []bool{preparable, untouched}, []bool{p, u})
		})
	}
	check("an empty store", nil, true, true)
	check("objects of another shard", map[string]string{layout.StateKey("b"): "{}", layout.LeaseKey("b"): "{}", "instance/b/x": "{}"}, true, true)
	check("a configuration", map[string]string{layout.ConfigKey("a"): "{}"}, true, true)
	check("a lease", map[string]string{layout.LeaseKey("a"): `{"format":"1.0","holder":"h","ttl_ms":1000}`}, false, true)
	check("something below its records", map[string]string{"instance/a/default/web/x": "what is this"}, false, false)
	for _, key := range layout.ShardKeys("a") {
		check("damaged "+key, map[string]string{key: "{"}, false, false)
	}

	t.Run("a folder that a console made is no record", func(t *testing.T) {
		for folders, want := range map[string]bool{"instance/a/": true, "instance/a/default/": true, "instance/a/default": false} {
			p, u, err := both(t, listing{storage.NewMemory(), []string{"instance/a/", folders}, nil})
			require.NoError(t, err)
			require.Equal(t, []bool{want, want}, []bool{p, u}, folders)
		}
	})
	t.Run("an error beside a folder is an error", func(t *testing.T) {
		_, err := records.Untouched(t.Context(), listing{storage.NewMemory(), []string{"instance/a/"}, nstance.Unavailable}, "a")
		require.ErrorIs(t, err, nstance.Unavailable)
	})
	t.Run("a damaged lease is an error", func(t *testing.T) {
		m := storage.NewMemory()
		_, err := m.PutIfAbsent(t.Context(), layout.LeaseKey("a"), []byte("{"))
		require.NoError(t, err)
		p, err := records.Preparable(t.Context(), m, "a")
		require.ErrorIs(t, err, nstance.Invalid)
		require.False(t, p)
	})
	t.Run("no error is absence", func(t *testing.T) {
		f := storagetest.NewFaulty(storage.NewMemory())
		_, err := records.Preparable(t.Context(), f, "a")
		require.NoError(t, err)
		calls := f.Count("")
		for skip := range calls {
			t.Run(fmt.Sprintf("call %d of %d fails", skip+1, calls), func(t *testing.T) {
				for _, mode := range []storagetest.Mode{storagetest.Refuse, storagetest.LoseAnswer} {
					f := storagetest.NewFaulty(storage.NewMemory())
					f.Inject(storagetest.Fault{Skip: skip, Mode: mode})
					p, err := records.Preparable(t.Context(), f, "a")
					require.ErrorIs(t, err, nstance.Unavailable)
					require.False(t, p)
				}
			})
		}
	})
}

// listing is a store whose listings show these keys, the last one with err.
type listing struct {
	storage.Store
	keys []string
	err  error
}

func (l listing) List(context.Context, string, string) iter.Seq2[storage.Entry, error] {
	return func(yield func(storage.Entry, error) bool) {
		for i, key := range l.keys {
			var err error
			if i == len(l.keys)-1 {
				err = l.err
			}
			if !yield(storage.Entry{Key: key, Version: "v"}, err) {
				return
			}
		}
	}
}
