package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// A cold is a way to freeze the group of a world, and to end that.
type cold struct {
	name         string
	freeze, thaw func(w *world) error
}

var colds = []cold{
	{
		"group",
		func(w *world) error { return w.r.Freeze(w.ctx, web, "audit") },
		func(w *world) error { return w.r.Thaw(w.ctx, web, eve) },
	},
	{
		"shard",
		func(w *world) error { return w.r.FreezeShard(w.ctx, "audit") },
		func(w *world) error { return w.r.ThawShard(w.ctx, eve) },
	},
}

// frosty runs a test in the world of balancing, for each way to freeze it.
func frosty(t *testing.T, test func(t *testing.T, w *world, c cold)) {
	for _, c := range colds {
		t.Run(c.name, func(t *testing.T) {
			balancing(t, 2, simcloud.Options{}, func(t *testing.T, w *world) { test(t, w, c) })
		})
	}
}

func TestFreezeLetsNobodyJoin(t *testing.T) {
	frosty(t, func(t *testing.T, w *world, c cold) {
		w.want(balanced(3, "front"))
		w.passes(5 * time.Second)
		require.Len(t, w.cloud.Machines(), 3, "one boots")
		require.NoError(t, c.freeze(w))
		w.passes(20 * time.Minute)
		require.Len(t, w.ready(), 3)
		require.Len(t, w.cloud.Balanced("lb-1"), 3, "two, and the foreign one")
		require.NoError(t, c.thaw(w))
		w.passes(time.Second)
		w.fronts("lb-1", "foreign")
	})
}

func TestFreezeLetsNobodyLeave(t *testing.T) {
	frosty(t, func(t *testing.T, w *world, c cold) {
		require.NoError(t, c.freeze(w))
		w.want(wanted(2))
		w.passes(20 * time.Minute)
		w.fronts("lb-1", "foreign")
		require.NoError(t, c.thaw(w))
		w.passes(time.Second)
		require.Equal(t, []string{"foreign"}, w.cloud.Balanced("lb-1"))
	})
}

func TestLoadBalancerThatVanishesDuringAFreezeIsLeftAfterIt(t *testing.T) {
	removed := func(t *testing.T, w *world, c cold) {
		require.NoError(t, c.freeze(w))
		w.r.Observe(nstance.Balancing{})
		w.want(wanted(2))
		w.passes(time.Hour)
		w.fronts("lb-1", "foreign")
	}
	t.Run("soon", func(t *testing.T) {
		frosty(t, func(t *testing.T, w *world, c cold) {
			removed(t, w, c)
			require.NoError(t, c.thaw(w))
			w.passes(time.Second)
			require.Equal(t, []string{"foreign"}, w.cloud.Balanced("lb-1"))
			calls := w.cloud.Count(simcloud.OpMembers)
			w.passes(time.Hour)
			require.Equal(t, calls, w.cloud.Count(simcloud.OpMembers), "and forgotten")
		})
	})
	t.Run("with as much time as ever", func(t *testing.T) {
		frosty(t, func(t *testing.T, w *world, c cold) {
			removed(t, w, c)
			w.cloud.Inject(simcloud.Fault{ID: "lb-1", Times: -1, Code: nstance.Internal})
			require.NoError(t, c.thaw(w))
			w.passes(3 * time.Minute)
			w.cloud.Heal()
			w.passes(time.Minute)
			require.Equal(t, []string{"foreign"}, w.cloud.Balanced("lb-1"))
		})
	})
	t.Run("and with no more than that", func(t *testing.T) {
		frosty(t, func(t *testing.T, w *world, c cold) {
			removed(t, w, c)
			w.cloud.Inject(simcloud.Fault{ID: "lb-1", Times: -1, Code: nstance.Internal})
			require.NoError(t, c.thaw(w))
			w.passes(10 * time.Minute)
			require.Empty(t, w.r.Problems())
		})
	})
	t.Run("by those whose machines live", func(t *testing.T) {
		frosty(t, func(t *testing.T, w *world, c cold) {
			removed(t, w, c)
			for _, id := range w.ready() {
				require.NoError(t, w.cloud.Kill(id))
			}
			w.passes(10 * time.Minute)
			calls := w.cloud.Count(simcloud.OpMembers)
			w.passes(time.Hour)
			require.Equal(t, calls, w.cloud.Count(simcloud.OpMembers), "so it is forgotten")
		})
	})
}

// TestRenamedLoadBalancerKeepsItsMembers: what is retired is not worked against
// what is configured.
func TestRenamedLoadBalancerKeepsItsMembers(t *testing.T) {
	balancing(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		leaves := w.cloud.Count(simcloud.OpLeave)
		w.r.Observe(nstance.Balancing{LoadBalancers: []nstance.LoadBalancer{{Name: "main", ID: front.ID}}})
		w.want(balanced(2, "main"))
		for range 100 {
			w.passes(100 * time.Millisecond)
			w.fronts("lb-1", "foreign")
		}
		require.Equal(t, leaves, w.cloud.Count(simcloud.OpLeave))
	})
}
