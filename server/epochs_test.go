package server_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
)

// TestNewTermHasHighestEpoch: if the lease is lost, the next term's epoch is higher
// than that of each remaining object of the shard. Operators and nonces belong to
// all shards.
func TestNewTermHasHighestEpoch(t *testing.T) {
	t.Parallel()
	type empty struct{ records.Header }
	store := storage.NewMemory()
	_, err := records.NewDoc[empty](store, layout.StateKey(zone), &records.DocOptions{Epoch: 7}).Update(t.Context(), func(*empty) error { return nil })
	require.NoError(t, err)
	w := newWorld(t, setup{webSize: 1, store: store, opts: server.Options{Elector: immediateElector(t, store)}})
	epoch := w.status().Epoch
	require.Greater(t, epoch, uint64(7))
	w.connectReady(w.awaitMachine("default"))
	size := int32(2)
	_, err = w.admin().UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Tenant: "blue", Group: "db", Size: &size})
	require.NoError(t, err)
	require.NoError(t, w.stopServer())

	found := 0
	for entry, err := range store.List(t.Context(), "", "") {
		require.NoError(t, err)
		if !strings.Contains(entry.Key, string(zone)) || strings.HasPrefix(entry.Key, "lease/") {
			continue
		}
		obj, err := store.Get(t.Context(), entry.Key)
		require.NoError(t, err)
		if h, err := records.ReadHeader(obj); err != nil || h.Epoch != epoch {
			continue
		}
		found++
		left := storage.NewMemory()
		_, err = left.PutIfAbsent(t.Context(), obj.Key, obj.Data)
		require.NoError(t, err)
		elector := immediateElector(t, left)
		term, err := elector.Campaign(t.Context())
		require.NoError(t, err)
		require.Equal(t, epoch+1, term.Epoch(), "only %s is left", entry.Key)
		require.NoError(t, elector.Resign(t.Context()))
	}
	require.GreaterOrEqual(t, found, 4, "records, state, groups, accepted configuration")
}
