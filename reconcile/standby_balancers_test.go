package reconcile_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/attention"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
)

// A slowLeaver is a provider whose LeaveBalancer takes a while.
type slowLeaver struct {
	*simcloud.Cloud
	takes time.Duration
}

func (s slowLeaver) LeaveBalancer(ctx context.Context, lb nstance.LoadBalancer, machines []nstance.Machine) error {
	if !pause(ctx, s.takes) {
		return ctx.Err()
	}
	return s.Cloud.LeaveBalancer(ctx, lb, machines)
}

// withBalancedPool runs a test in a world whose group, with one stand-by machine that has been
// woken and is in load balancer front, has lost a member. A call that ends a membership takes
// a while.
func withBalancedPool(t *testing.T, change func(*nstance.Group), leaving time.Duration, test func(t *testing.T, w *world, bridge nstance.InstanceID)) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{
			Boot: simcloud.Delay{Min: time.Minute}, Park: simcloud.Delay{Min: 3 * time.Second}, Wake: simcloud.Delay{Min: time.Second},
			Balancers: []string{"lb-1"},
		})
		defer w.close()
		w.wrap = func(o *leaderEnv) {
			o.provider = slowLeaver{w.cloud, leaving}
			o.options = func(opts *reconcile.Options) { opts.Balancers = []nstance.LoadBalancer{front} }
		}
		g := pooledGroup(1)
		g.Definition.LoadBalancers = []string{"front"}
		change(&g)
		w.startLeader(g)
		w.advance(5 * time.Minute)
		require.Len(t, w.in(nstance.Parked), 1)
		bridge := w.in(nstance.Parked)[0]
		w.lose(2 * time.Minute)
		w.advance(30 * time.Second)
		require.Contains(t, w.ready(), bridge)
		require.True(t, w.isBalanced("lb-1", bridge))
		test(t, w, bridge)
	})
}

// withoutReturn has a woken machine deleted at once when it is not needed any more.
func withoutReturn(g *nstance.Group) {
	g.WarmPool.NoReturn, g.DrainTimeout = true, 0
}

// TestWokenMachineLeavesBalancersFirst: the deletion of a machine that was parked before waits for
// its own withdrawal.
func TestWokenMachineLeavesBalancersFirst(t *testing.T) {
	withBalancedPool(t, withoutReturn, 5*time.Second, func(t *testing.T, w *world, bridge nstance.InstanceID) {
		w.advance(5 * time.Minute)
		require.Equal(t, 1, w.count(nstance.EventDeleted, bridge))
		require.Zero(t, w.alarms("could not be withdrawn"))
		w.requireBalanced("lb-1")
	})
}

// TestWokenMachineOutlivesItsBalancersOutage: where it cannot be withdrawn, its deletion is
// published with an alarm, and it leaves once the load balancer answers again.
func TestWokenMachineOutlivesItsBalancersOutage(t *testing.T) {
	withBalancedPool(t, withoutReturn, 0, func(t *testing.T, w *world, bridge nstance.InstanceID) {
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpLeave, Times: -1, Code: nstance.Internal})
		w.advance(5 * time.Minute)
		require.Equal(t, 1, w.count(nstance.EventDeleted, bridge))
		require.Equal(t, 1, w.alarms("deleted although it could not be withdrawn from front"))
		w.cloud.ClearFaults()
		w.advance(2 * time.Minute)
		require.Empty(t, attention.Problems(w.r.Admin().Attention()))
		require.Len(t, w.cloud.AttachedTo("lb-1"), 3)
	})
}

// TestParkedDuringItsBalancersOutage: a machine that could not be withdrawn before it was parked
// is not taken for a deleted one: woken again, it stays in its load balancer.
func TestParkedDuringItsBalancersOutage(t *testing.T) {
	withBalancedPool(t, func(*nstance.Group) {}, 0, func(t *testing.T, w *world, bridge nstance.InstanceID) {
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpLeave, Times: -1, Code: nstance.Internal})
		for len(w.in(nstance.Parked)) == 0 {
			w.advance(time.Second)
		}
		require.Zero(t, w.alarms("deleted although"))
		require.Equal(t, 1, w.alarms("parked although it could not be withdrawn from front"))
		require.NoError(t, w.claimed("n1"))
		w.advance(10 * time.Second)
		require.Contains(t, w.ready(), bridge)
		w.cloud.ClearFaults()
		left := w.cloud.Count(simcloud.OpLeave)
		r, _ := w.leader()
		r.Observe(nstance.Balancing{LoadBalancers: []nstance.LoadBalancer{front}})
		w.advance(2 * time.Minute)
		require.Equal(t, left, w.cloud.Count(simcloud.OpLeave))
		w.requireBalanced("lb-1")
	})
}
