package lease_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
	"github.com/nstance-go/nstance/storage/storagetest"
)

func TestLook(t *testing.T) {
	m := storage.NewMemory()
	store := storage.ReadOnly(m) // reads only
	look := func() lease.Sighting {
		s, err := lease.Look(t.Context(), store, "a")
		require.NoError(t, err)
		return s
	}
	require.Zero(t, look(), "there is no lease")

	l, err := lease.New(m, "a", &lease.Options{Address: "x:1", Peer: "x:2", TTL: time.Minute, TakeAtOnce: true})
	require.NoError(t, err)
	_, err = l.Campaign(t.Context())
	require.NoError(t, err)
	held := look()
	require.NotEmpty(t, held.ID)
	require.NotEmpty(t, held.Version)
	require.Equal(t, lease.Holder{ID: held.ID, Address: "x:1", Peer: "x:2", Epoch: 1}, held.Holder)
	require.Equal(t, time.Minute, held.TTL)
	require.Equal(t, held, look())

	require.NoError(t, l.Resign(t.Context()))
	released := look()
	require.True(t, released.Released)
	require.NotEqual(t, held.Version, released.Version)

	t.Run("no error is absence", func(t *testing.T) {
		_, err := m.PutIfAbsent(t.Context(), layout.LeaseKey("b"), []byte(`{"format":"9.0"}`))
		require.NoError(t, err)
		_, err = lease.Look(t.Context(), store, "b")
		require.ErrorIs(t, err, nstance.Invalid)
		_, err = lease.Look(t.Context(), store, "cluster")
		require.ErrorIs(t, err, nstance.Invalid, "that is no shard's")
		faulty := storagetest.NewFaulty(m)
		faulty.Inject(storagetest.Fault{Op: storagetest.Get, Mode: storagetest.Refuse})
		_, err = lease.Look(t.Context(), faulty, "a")
		require.ErrorIs(t, err, nstance.Unavailable)
	})
}
