package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// TestCordonOnReclaim: a reclaimed member of such a group is cordoned only, and replaced as
// usual. Any other drain, and any other cause, is a whole drain.
func TestCordonOnReclaim(t *testing.T) {
	cordoning := func(t *testing.T, test func(t *testing.T, w *world, g nstance.Group)) {
		withGroup(t, 0, simcloud.Options{}, func(t *testing.T, w *world) {
			g := webGroup(3)
			g.OnReclaim = nstance.ReclaimCordon
			w.setGroupAndAdvance(g, 2*time.Minute)
			w.requireMembers(3)
			test(t, w, g)
		})
	}
	drainOf := func(w *world, id nstance.InstanceID) *nstance.Drain {
		v, err := w.r.Instance(id)
		require.NoError(w.t, err)
		return v.Drain
	}
	hookRan := func(w *world, id nstance.InstanceID) bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.drained[id]
	}
	t.Run("no hook runs, and the deadline ends it", func(t *testing.T) {
		cordoning(t, func(t *testing.T, w *world, g nstance.Group) {
			id := w.ready()[0]
			require.NoError(t, w.cloud.Reclaim(id, 2*time.Minute))
			w.advance(5 * time.Second)
			d := drainOf(w, id)
			require.True(t, d.CordonOnly)
			require.Equal(t, nstance.ExecutorNone, d.Executor)
			w.stopLeader()
			w.startLeader(g)
			w.advance(time.Minute)
			require.Len(t, w.ready(), 3, "it is replaced at once")
			require.True(t, drainOf(w, id).CordonOnly, "under the next leader too")
			require.False(t, hookRan(w, id))
			w.advance(2 * time.Minute)
			w.requireMembers(3)
			require.NotContains(t, w.ready(), id)
		})
	})
	t.Run("a request drains it after all", func(t *testing.T) {
		cordoning(t, func(t *testing.T, w *world, _ nstance.Group) {
			id := w.ready()[0]
			require.NoError(t, w.cloud.Reclaim(id, 4*time.Minute))
			w.advance(5 * time.Second)
			require.True(t, drainOf(w, id).CordonOnly)
			_, err := w.r.Drain(t.Context(), id, "test")
			require.NoError(t, err)
			w.advance(30 * time.Second)
			require.True(t, hookRan(w, id))
		})
	})
	t.Run("a rollout drains", func(t *testing.T) {
		cordoning(t, func(t *testing.T, w *world, g nstance.Group) {
			w.slowDrain = true
			g.Definition.UserData.Content = "v2"
			w.setGroupAndAdvance(g, 2*time.Minute)
			draining := w.in(nstance.Draining)
			require.NotEmpty(t, draining)
			require.False(t, drainOf(w, draining[0]).CordonOnly)
			require.Equal(t, nstance.ExecutorAgent, drainOf(w, draining[0]).Executor)
		})
	})
}
