package server_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/storage"
)

// TestServerWithoutOptions: a program that embeds a server and sets no option
// takes part in the lease of the servers that are there already.
func TestServerWithoutOptions(t *testing.T) {
	t.Parallel() // it waits for a renewal
	c := newCouple(t, `"election": {"ttl": "1s"},`, "")
	c.hears()
	third := newWorld(t, setup{store: storage.Separate(c.mem), over: c.cloud.At("c"), shard: `"election": {"ttl": "1s"},`, quiet: true})
	c.renewed(3)
	require.Equal(t, http.StatusServiceUnavailable, third.get("/readyz").StatusCode, "it stands by")
	require.Equal(t, http.StatusOK, c.first.get("/readyz").StatusCode, "the leader leads on")
	require.EqualValues(t, 1, c.first.status().Epoch)

	require.NoError(t, c.first.stop())
	require.NoError(t, c.second.stop())
	third.leads()
	fourth := newWorld(t, setup{store: c.mem, over: c.cloud.At("d"), shard: `"election": {"ttl": "1s"},`, quiet: true})
	require.NoError(t, third.stop())
	fourth.leads()
	require.Greater(t, fourth.status().Epoch, uint64(1))
}
