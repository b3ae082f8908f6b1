package server_test

import (
	"io/fs"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
)

// TestMissingConfiguration: the error says what to do.
func TestMissingConfiguration(t *testing.T) {
	t.Parallel()
	_, err := server.New(t.Context(), storage.NewMemory(), simcloud.New(nil), server.FileSource("/nope"), nil)
	require.ErrorIs(t, err, nstance.NotFound)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.EqualError(t, err, "configuration: open /nope: no such file or directory (name a file that exists)")
}

// TestConfigurationInStorage changes the object config/{shard}.jsonc without a refresh.
func TestConfigurationInStorage(t *testing.T) {
	t.Parallel()
	store := storage.NewMemory()
	key := layout.ConfigKey(zone)
	require.Equal(t, "config/s1.jsonc", key, "where people put it")
	src := server.StoreSource(store, zone)
	_, err := server.New(t.Context(), store, simcloud.New(nil), src, nil)
	require.ErrorIs(t, err, nstance.NotFound)
	require.ErrorContains(t, err, "there is no configuration of shard s1 in storage, config/s1.jsonc (put it there: nstance-admin config put")

	v, err := store.PutIfAbsent(t.Context(), key, []byte(defaultConfig(1)))
	require.NoError(t, err)
	w := &world{T: t, store: store, cloud: simcloud.New(nil), eventAdded: make(chan struct{})}
	t.Cleanup(w.cloud.Close)
	w.releaseLease()
	w.server, err = server.New(t.Context(), store, w.cloud, src, &server.Options{Kinds: kinds, Journal: w.journal, Reread: time.Millisecond})
	require.NoError(t, err)
	w.run()
	w.keys, err = storedKeys(w)
	require.NoError(t, err)
	w.awaitLeading()
	api := w.admin()
	require.EqualValues(t, 1, w.getGroup(api, "web").GetSize())
	terms := w.status().Epoch
	k := w.connectReady(w.awaitMachine(nstance.DefaultTenant))

	v, err = store.PutIfMatch(t.Context(), key, []byte(defaultConfig(3)), v)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return w.countMachines(nstance.DefaultTenant) == 3 }, eventually, time.Millisecond)
	k.awaitAck(k.sendReport()) // on the same stream as before
	require.Equal(t, terms, w.status().Epoch, "the lease is kept")

	v, err = store.PutIfMatch(t.Context(), key, []byte(`{"cluster": `), v)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return w.configStatus(api).GetRejectedAt() != nil }, eventually, time.Millisecond)
	require.Contains(t, w.configStatus(api).GetRejectedError(), key+":1:", "with its place")
	require.NoError(t, store.DeleteIfMatch(t.Context(), key, v))
	require.ErrorIs(t, w.refreshConfig(api), nstance.NotFound)
	require.EqualValues(t, 3, w.getGroup(api, "web").GetSize(), "nothing is removed because a file is missing")
}
