package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

func drainOf(w *world, id nstance.InstanceID) *nstance.Drain {
	w.t.Helper()
	v, err := w.r.Instance(id)
	require.NoError(w.t, err)
	return v.Drain
}

func hookRan(w *world, id nstance.InstanceID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.drained[id]
}

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

// TestCordonOnRebalance: a member that its cloud advises to move is replaced first, and then
// cordoned only, until the drain timeout or until another cause joins.
func TestCordonOnRebalance(t *testing.T) {
	const drainTimeout = 20 * time.Minute
	advised := func(t *testing.T, onReclaim nstance.ReclaimAction, test func(t *testing.T, w *world, g nstance.Group, id nstance.InstanceID)) {
		withGroup(t, 0, simcloud.Options{}, func(t *testing.T, w *world) {
			g := webGroup(3)
			g.OnRebalance, g.OnReclaim, g.DrainTimeout = nstance.NoticeCordon, onReclaim, drainTimeout
			w.setGroupAndAdvance(g, 2*time.Minute)
			w.requireMembers(3)
			id := w.ready()[0]
			w.advise(id, rebalance("a"))
			for range 60 {
				if drainOf(w, id) != nil {
					break
				}
				w.advance(5 * time.Second)
			}
			d := drainOf(w, id)
			require.NotNil(t, d)
			require.Len(t, w.ready(), 3, "the replacement came first")
			require.NotContains(t, w.ready(), id)
			require.Equal(t, []nstance.Cause{{Kind: nstance.CauseRollout, Message: "aws/rebalance (on_rebalance)"}}, d.Causes)
			require.True(t, d.CordonOnly)
			require.True(t, d.Voluntary)
			require.Equal(t, nstance.ExecutorNone, d.Executor)
			require.Equal(t, d.StartedAt.Add(drainTimeout), d.Deadline)
			test(t, w, g, id)
		})
	}
	t.Run("no hook runs, and the deadline ends it", func(t *testing.T) {
		advised(t, "", func(t *testing.T, w *world, g nstance.Group, id nstance.InstanceID) {
			w.changeLeader(g)
			w.advance(drainTimeout / 2)
			require.True(t, drainOf(w, id).CordonOnly, "under the next leader too")
			require.True(t, w.exists(id))
			w.advance(drainTimeout/2 + time.Minute)
			require.False(t, w.exists(id))
			require.False(t, hookRan(w, id))
			w.requireMembers(3)
			require.Equal(t, 1, w.count(nstance.EventNoticeIgnored, id), "what the ledger counts as recommended")
		})
	})
	t.Run("a reclaim drains it after all", func(t *testing.T) {
		advised(t, nstance.ReclaimDrain, func(t *testing.T, w *world, _ nstance.Group, id nstance.InstanceID) {
			w.slowDrain = true
			require.NoError(t, w.cloud.Reclaim(id, 4*time.Minute))
			w.advance(5 * time.Second)
			d := drainOf(w, id)
			require.False(t, d.CordonOnly)
			require.False(t, d.Voluntary)
			require.Len(t, d.Causes, 2)
			require.Equal(t, nstance.ExecutorAgent, d.Executor)
			require.Equal(t, 1, w.count(nstance.EventNoticeReceived, id), "so the ledger knows that a reclaim followed")
		})
	})
	t.Run("unless a reclaim only cordons too", func(t *testing.T) {
		advised(t, nstance.ReclaimCordon, func(t *testing.T, w *world, g nstance.Group, id nstance.InstanceID) {
			w.changeLeader(g)
			before := drainOf(w, id).Deadline
			require.NoError(t, w.cloud.Reclaim(id, 4*time.Minute))
			w.advance(5 * time.Second)
			require.True(t, drainOf(w, id).CordonOnly)
			require.True(t, drainOf(w, id).Deadline.Before(before))
			require.False(t, hookRan(w, id))
		})
	})
	t.Run("a request drains it after all", func(t *testing.T) {
		advised(t, nstance.ReclaimCordon, func(t *testing.T, w *world, _ nstance.Group, id nstance.InstanceID) {
			_, err := w.r.Drain(t.Context(), id, "test")
			require.NoError(t, err)
			w.advance(30 * time.Second)
			require.True(t, hookRan(w, id))
		})
	})
	t.Run("paused: it stays", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			g := webGroup(3)
			g.OnRebalance = nstance.NoticeCordon
			w.setGroups(g)
			require.NoError(t, w.r.Admin().Pause(t.Context(), web, ""))
			before := w.ready()
			w.advise(before[0], rebalance("a"))
			w.advance(time.Hour)
			require.Equal(t, before, w.ready())
		})
	})
	t.Run("another definition drains", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.slowDrain = true
			g := webGroup(3)
			g.OnRebalance = nstance.NoticeCordon
			g.Definition.UserData.Content = "v2"
			for _, id := range w.ready() {
				w.advise(id, rebalance("r-"+string(id)))
			}
			w.setGroupAndAdvance(g, 2*time.Minute)
			draining := w.in(nstance.Draining)
			require.NotEmpty(t, draining)
			require.False(t, drainOf(w, draining[0]).CordonOnly)
		})
	})
}
