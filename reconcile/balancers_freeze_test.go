package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/attention"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// freezeMode is one way to freeze and thaw the group.
type freezeMode struct {
	name         string
	freeze, thaw func(w *world) error
}

var colds = []freezeMode{
	{
		"group",
		func(w *world) error { return w.r.Admin().Freeze(w.ctx, web, "audit") },
		func(w *world) error { return w.r.Admin().Thaw(w.ctx, web, requester) },
	},
	{
		"shard",
		func(w *world) error { return w.r.Admin().FreezeShard(w.ctx, "audit") },
		func(w *world) error { return w.r.Admin().ThawShard(w.ctx, requester) },
	},
}

// withEachFreeze runs a test behind a load balancer for each way to freeze.
func withEachFreeze(t *testing.T, test func(t *testing.T, w *world, c freezeMode)) {
	for _, c := range colds {
		t.Run(c.name, func(t *testing.T) {
			withBalancer(t, 2, simcloud.Options{}, func(t *testing.T, w *world) { test(t, w, c) })
		})
	}
}

func TestFreezeDelaysJoin(t *testing.T) {
	withEachFreeze(t, func(t *testing.T, w *world, c freezeMode) {
		w.setGroups(balancedGroup(3, "front"))
		w.advance(5 * time.Second)
		require.Len(t, w.cloud.Machines(), 3, "one is booting")
		require.NoError(t, c.freeze(w))
		w.advance(20 * time.Minute)
		require.Len(t, w.ready(), 3)
		require.Len(t, w.cloud.AttachedTo("lb-1"), 3, "two members and the foreign one")
		require.NoError(t, c.thaw(w))
		w.advance(time.Second)
		w.requireBalanced("lb-1", "foreign")
	})
}

func TestFreezeDelaysLeave(t *testing.T) {
	withEachFreeze(t, func(t *testing.T, w *world, c freezeMode) {
		require.NoError(t, c.freeze(w))
		w.setGroups(webGroup(2))
		w.advance(20 * time.Minute)
		w.requireBalanced("lb-1", "foreign")
		require.NoError(t, c.thaw(w))
		w.advance(time.Second)
		require.Equal(t, []string{"foreign"}, w.cloud.AttachedTo("lb-1"))
	})
}

func TestBalancerRemovedDuringFreezeIsLeftAfterThaw(t *testing.T) {
	removed := func(t *testing.T, w *world, c freezeMode) {
		require.NoError(t, c.freeze(w))
		w.r.Observe(nstance.Balancing{})
		w.setGroups(webGroup(2))
		w.advance(time.Hour)
		w.requireBalanced("lb-1", "foreign")
	}
	t.Run("soon", func(t *testing.T) {
		withEachFreeze(t, func(t *testing.T, w *world, c freezeMode) {
			removed(t, w, c)
			require.NoError(t, c.thaw(w))
			w.advance(time.Second)
			require.Equal(t, []string{"foreign"}, w.cloud.AttachedTo("lb-1"))
			calls := w.cloud.Count(simcloud.OpMembers)
			w.advance(time.Hour)
			require.Equal(t, calls, w.cloud.Count(simcloud.OpMembers), "and no longer tracked")
		})
	})
	t.Run("full time to leave", func(t *testing.T) {
		withEachFreeze(t, func(t *testing.T, w *world, c freezeMode) {
			removed(t, w, c)
			w.cloud.Inject(simcloud.Fault{ID: "lb-1", Times: -1, Code: nstance.Internal})
			require.NoError(t, c.thaw(w))
			w.advance(3 * time.Minute)
			w.cloud.ClearFaults()
			w.advance(time.Minute)
			require.Equal(t, []string{"foreign"}, w.cloud.AttachedTo("lb-1"))
		})
	})
	t.Run("bounded time to leave", func(t *testing.T) {
		withEachFreeze(t, func(t *testing.T, w *world, c freezeMode) {
			removed(t, w, c)
			w.cloud.Inject(simcloud.Fault{ID: "lb-1", Times: -1, Code: nstance.Internal})
			require.NoError(t, c.thaw(w))
			w.advance(10 * time.Minute)
			require.Empty(t, attention.Problems(w.r.Admin().Attention()))
		})
	})
	t.Run("members of living machines only", func(t *testing.T) {
		withEachFreeze(t, func(t *testing.T, w *world, c freezeMode) {
			removed(t, w, c)
			for _, id := range w.ready() {
				require.NoError(t, w.cloud.Kill(id))
			}
			w.advance(10 * time.Minute)
			calls := w.cloud.Count(simcloud.OpMembers)
			w.advance(time.Hour)
			require.Equal(t, calls, w.cloud.Count(simcloud.OpMembers), "no longer tracked")
		})
	})
}

// TestRenamedBalancerKeepsItsMembers: a retired name does not remove members from a
// configured load balancer with the same ID.
func TestRenamedBalancerKeepsItsMembers(t *testing.T) {
	withBalancer(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		leaves := w.cloud.Count(simcloud.OpLeave)
		w.r.Observe(nstance.Balancing{LoadBalancers: []nstance.LoadBalancer{{Name: "main", ID: front.ID}}})
		w.setGroups(balancedGroup(2, "main"))
		for range 100 {
			w.advance(100 * time.Millisecond)
			w.requireBalanced("lb-1", "foreign")
		}
		require.Equal(t, leaves, w.cloud.Count(simcloud.OpLeave))
	})
}
