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

// An account is a simulated cloud that names itself.
type account struct {
	*simcloud.Cloud
	name string
}

func (a account) Account(context.Context) (string, error) { return a.name, nil }

// TestOtherAccount: a server whose credentials are for another account does not
// lead, and says why; one with the right credentials does.
func TestOtherAccount(t *testing.T) {
	right, wrong := account{simcloud.New(nil), "one"}, account{simcloud.New(nil), "two"}
	t.Cleanup(right.Close)
	t.Cleanup(wrong.Close)
	w := newWorld(t, setup{size: 2, over: right})
	require.Eventually(t, func() bool { return len(right.Machines()) == 3 }, eventually, time.Millisecond)
	before := right.Machines()
	restart := func(in account) {
		require.NoError(t, w.stop())
		opts := server.Options{Journal: w.journal, Kinds: kinds}
		server.Hasten(&opts, func() {})
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
	w.leads()
	require.Equal(t, before, right.Machines())
	require.Empty(t, server.NotLeading(w.server))
	for _, typ := range []nstance.EventType{nstance.EventMachineGone, nstance.EventDeleteRequested} {
		require.Zero(t, w.count(typ), typ)
	}
}
