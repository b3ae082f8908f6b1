package operator

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/nstance-go/nstance"
)

// TestRecreateInterval doubles the time between two instances that fail to be created,
// from the least to the most.
func TestRecreateInterval(t *testing.T) {
	since := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	tried := since.Add(-2 * time.Second) // it took two seconds to fail
	var intervals []time.Duration
	for range 10 {
		next := recreateAt(since, tried)
		intervals = append(intervals, next.Sub(tried))
		tried = next
	}
	seconds := func(n ...int) (out []time.Duration) {
		for _, s := range n {
			out = append(out, time.Duration(s)*time.Second)
		}
		return out
	}
	require.Equal(t, seconds(10, 10, 18, 36, 72, 144, 288, 576, 600, 600), intervals)
}

// TestNodesThatAreNotKnownYet: after a start of the operator, a node may be there that it does
// not see yet. Where there is no kubeconfig, and after a minute, nothing waits for it.
func TestNodesThatAreNotKnownYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := &clusterv1.Cluster{}
		cluster.Spec.InfrastructureRef.Name = "c"
		f := newFleets(nil, slog.New(slog.DiscardHandler))
		fl := &fleet{key: infrastructureOf(cluster), fleets: f, began: time.Now()}
		f.byCluster[fl.key] = fl
		waits := func() bool { return f.removesNode(cluster, "i1", "nstance:///i1") }
		require.True(t, waits())
		fl.kubeconfigRead(nstance.Errorf(nstance.Unavailable, "not now"))
		require.True(t, waits())
		fl.kubeconfigRead(nstance.Errorf(nstance.NotFound, "there is none"))
		require.False(t, waits())
		fl.kubeconfigRead(nil)
		require.True(t, waits())
		<-time.After(nodeLimit)
		require.False(t, waits())
	})
}
