package server_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/storage"
)

// TestServerWithoutOptions: an embedded server without options competes for the
// shard's existing lease.
func TestServerWithoutOptions(t *testing.T) {
	t.Parallel() // it waits for a renewal
	c := newServerPair(t, `"election": {"ttl": "1s"},`, "")
	c.awaitPeerStream()
	third := newWorld(t, setup{store: storage.Separate(c.mem), provider: c.cloud.At("c"), shard: `"election": {"ttl": "1s"},`, noWait: true})
	c.awaitRenewals(3)
	require.Equal(t, http.StatusServiceUnavailable, third.getPage("/readyz").StatusCode, "it stands by")
	require.Equal(t, http.StatusOK, c.first.getPage("/readyz").StatusCode, "the leader leads on")
	require.EqualValues(t, 1, c.first.status().Epoch)

	require.NoError(t, c.first.stopServer())
	require.NoError(t, c.second.stopServer())
	third.awaitLeading()
	fourth := newWorld(t, setup{store: c.mem, provider: c.cloud.At("d"), shard: `"election": {"ttl": "1s"},`, noWait: true})
	require.NoError(t, third.stopServer())
	fourth.awaitLeading()
	require.Greater(t, fourth.status().Epoch, uint64(1))
}
