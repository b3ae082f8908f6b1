package records_test

import (
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
