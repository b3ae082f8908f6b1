package server_test

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/web"
)

// attentionOfKind returns the status page's attention entries of one kind.
func (w *world) attentionOfKind(kind string) web.Attention {
	w.Helper()
	for _, a := range w.status().Attention {
		if a.Kind == kind {
			return a
		}
	}
	return web.Attention{}
}

func TestStatusPage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 30}) // more events than the page shows
	require.Eventually(t, func() bool { return w.countEvents(nstance.EventCreated) == 31 }, eventually, time.Millisecond)
	k := w.connectReady(w.awaitMachine(nstance.DefaultTenant))

	t.Run("groups, instances and the latest events", func(t *testing.T) {
		require.Eventually(t, func() bool {
			s := w.status()
			return len(s.Events) == 50 && s.Events[49].Type == nstance.EventReady
		}, eventually, 20*time.Millisecond)
		s := w.status()
		require.Len(t, s.Instances, 31)
		require.Equal(t, 31, s.InstancesTotal)
		require.Equal(t, w.server.Addresses().Operator, s.LeaderAddress)
		require.Empty(t, s.Standbys)
		require.Equal(t, 1, s.Groups[1].Ready)
		require.Equal(t, 1, s.Groups[1].States["ready"])
		require.Equal(t, 31, s.Totals.Size)
		require.Equal(t, 1, s.Totals.Ready)
		require.Equal(t, 31, s.Totals.Unpriced, "this cloud knows no prices")
		require.Equal(t, 31, s.Totals.Spot+s.Totals.OnDemand)
		members := 0
		for _, p := range s.Pools {
			members += p.Members
		}
		require.Equal(t, 31, members)
		require.Equal(t, len(s.Pools), s.PoolsTotal)
		require.NotZero(t, s.Since)
		require.True(t, s.Leader)
		require.EqualValues(t, 1, s.Epoch)
		require.Equal(t, "c1 s1", s.Cluster+" "+s.Shard)
		require.Equal(t, "small", s.Instances[0].InstanceType)
		require.Equal(t, "default web", s.Groups[1].Tenant+" "+s.Groups[1].Group)
	})
	t.Run("an invalid report does not damage the page", func(t *testing.T) {
		k.awaitAck(k.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_Report{Report: &apiv1.HealthReport{
			CpuUsage: nan, MemoryUsage: -5, DiskUsage: 1e300, Load: nan,
		}}}))
		resp := w.getPage("/status.json")
		require.Equal(t, http.StatusOK, resp.StatusCode)
		require.Len(t, w.status().Instances, 31)
	})
	t.Run("it shows no secrets", func(t *testing.T) {
		body, err := io.ReadAll(w.getPage("/status.json").Body)
		require.NoError(t, err)
		require.NotContains(t, string(body), w.userDataNonce(w.awaitMachine(nstance.DefaultTenant)))
	})
}
