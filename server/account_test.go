package server_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/server"
)

// A namedAccount is a simulated cloud that reports its account.
type namedAccount struct {
	*simcloud.Cloud
	name string
}

func (a namedAccount) Account(context.Context) (string, error) { return a.name, nil }

// TestWrongCloudAccount: a server with credentials of another account does not
// lead and reports the reason. A server with the right credentials leads.
func TestWrongCloudAccount(t *testing.T) {
	t.Parallel()
	right, wrong := namedAccount{simcloud.New(nil), "one"}, namedAccount{simcloud.New(nil), "two"}
	t.Cleanup(right.Close)
	t.Cleanup(wrong.Close)
	w := newWorld(t, setup{webSize: 2, provider: right})
	require.Eventually(t, func() bool { return len(right.Machines()) == 3 }, eventually, time.Millisecond)
	before := right.Machines()
	restart := func(in namedAccount) {
		require.NoError(t, w.stopServer())
		opts := server.Options{Journal: w.journal, Kinds: kinds}
		hasten(&opts, func() {})
		var err error
		w.server, err = server.New(t.Context(), w.store, in, w.conf.read, &opts)
		require.NoError(t, err)
		w.run()
	}

	restart(wrong)
	require.Eventually(t, func() bool {
		why := strings.Join(server.NotLeading(w.server), " ")
		return strings.Contains(why, "shard.provider: the machines of shard s1 are in account one, and this server's provider uses account two") &&
			strings.Contains(why, "use the former settings and credentials")
	}, eventually, time.Millisecond)
	require.Empty(t, wrong.Machines())
	require.Equal(t, before, right.Machines())

	restart(right)
	w.awaitLeading()
	require.Equal(t, before, right.Machines())
	require.Empty(t, server.NotLeading(w.server))
	for _, typ := range []nstance.EventType{nstance.EventMachineGone, nstance.EventDeleteRequested} {
		require.Zero(t, w.countEvents(typ), typ)
	}
}
