package reconcile_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// held returns what the journal says of the holds of a kind: of one group, or of
// the shard where it names none.
func (w *world) held(key nstance.GroupKey, kind string) (out []nstance.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		hold := e.Type == nstance.EventHoldStarted || e.Type == nstance.EventHoldEnded
		if hold && e.Tenant == key.Tenant && e.Group == key.Group && strings.HasPrefix(e.Reason, kind) {
			out = append(out, e)
		}
	}
	return out
}

// holdsOnce checks that the journal tells of one hold of a kind, from its
// beginning to its end, and why it was.
func (w *world) holdsOnce(key nstance.GroupKey, kind, why string) {
	w.t.Helper()
	got := w.held(key, kind)
	require.Len(w.t, got, 2, "%v", got)
	require.Equal(w.t, nstance.EventHoldStarted, got[0].Type)
	require.Contains(w.t, got[0].Reason, kind+": "+why)
	require.Equal(w.t, nstance.EventHoldEnded, got[1].Type)
	require.False(w.t, got[1].Time.Before(got[0].Time))
}

// TestHoldsAreJournalled: when they begin and when they end, however often the
// group is looked at meanwhile.
func TestHoldsAreJournalled(t *testing.T) {
	for kind, test := range map[string]struct {
		why        string
		begin, end func(*world) error
	}{
		plan.HoldPaused: {
			"the rollout is paused: odd",
			func(w *world) error { w.want(redefined(3, "v2")); return w.r.Pause(w.ctx, web, "odd") },
			func(w *world) error { return w.r.Resume(w.ctx, web, eve) },
		},
		plan.HoldFrozen: {
			"drains in progress continue, nothing else starts: audit",
			func(w *world) error { return w.r.Freeze(w.ctx, web, "audit") },
			func(w *world) error { return w.r.Thaw(w.ctx, web, eve) },
		},
		plan.HoldRolledBack: {
			"the last good definition is desired",
			func(w *world) error { w.want(redefined(3, "v2")); return w.r.Rollback(w.ctx, web, eve, false) },
			func(w *world) error { return w.r.UndoRollback(w.ctx, web, eve) },
		},
		plan.HoldPending: {
			whyPending,
			func(w *world) error { w.want(pending(wanted(3))); return nil },
			func(w *world) error { w.want(wanted(3)); return nil },
		},
		plan.HoldBreaker: {
			"3 of the group's 3 members fell silent within one interval",
			func(w *world) error { w.hush(w.ready()...); return nil },
			func(w *world) error { w.speak(w.ready()...); return nil },
		},
	} {
		t.Run(kind, func(t *testing.T) {
			within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
				require.Empty(t, w.held(web, kind))
				require.NoError(t, test.begin(w))
				w.passes(20 * time.Minute)
				require.Len(t, w.held(web, kind), 1)
				require.NoError(t, test.end(w))
				w.passes(20 * time.Minute)
				w.holdsOnce(web, kind, test.why)
			})
		})
	}
	t.Run("one that a definition's failure makes", func(t *testing.T) {
		within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.fails("v2")
			w.want(redefined(3, "v2"))
			w.passes(time.Hour)
			w.want(wanted(3))
			w.passes(time.Minute)
			w.holdsOnce(web, plan.HoldHalted, "2 replacements in a row did not become ready")
		})
	})
	t.Run("until when one lasts", func(t *testing.T) {
		within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.succeeds(wanted(3))
			w.holdsOnce(web, plan.HoldSettling, "3 members have not reported since this leader took over, until 20")
		})
	})
}

// TestShardHoldsAreJournalled: what holds all groups is told of each, and what
// concerns none of them without a group.
func TestShardHoldsAreJournalled(t *testing.T) {
	t.Run("a freeze", func(t *testing.T) {
		within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			require.NoError(t, w.r.FreezeShard(w.ctx, "audit"))
			w.passes(10 * time.Minute)
			require.NoError(t, w.r.ThawShard(w.ctx, eve))
			w.passes(10 * time.Minute)
			w.holdsOnce(web, plan.HoldFrozen, "the shard is frozen: drains in progress continue, nothing else starts: audit")
			require.Equal(t, eve, w.first(nstance.EventThawed, func(e nstance.Event) bool { return e.Group == "" }).Reason)
		})
	})
	t.Run("too many orphans", func(t *testing.T) {
		settled(t, 9, func(t *testing.T, w *world) {
			a, b := w.stray(10*time.Minute, nil), w.stray(11*time.Minute, nil)
			w.passes(time.Hour)
			require.Len(t, w.held(nstance.GroupKey{}, "orphans"), 1)
			require.NoError(t, w.r.DeleteOrphan(w.ctx, a, eve))
			w.passes(10 * time.Minute)
			require.False(t, w.exists(b))
			w.holdsOnce(nstance.GroupKey{}, "orphans", "2 machines without a record are more than 1")
		})
	})
}

// TestHoldsThatComeAndGo are told of about once a minute.
func TestHoldsThatComeAndGo(t *testing.T) {
	within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		for range 10 * 60 / 2 {
			w.want(pending(wanted(3)))
			w.passes(time.Second)
			w.want(wanted(3))
			w.passes(time.Second)
		}
		got := w.held(web, plan.HoldPending)
		require.GreaterOrEqual(t, len(got), 2*5)
		require.LessOrEqual(t, len(got), 2*11)
		for i, e := range got {
			require.Equal(t, i%2 == 0, e.Type == nstance.EventHoldStarted, "one after the other")
		}

		w.want(pending(wanted(3)))
		w.passes(10 * time.Minute)
		got = w.held(web, plan.HoldPending)
		require.Equal(t, nstance.EventHoldStarted, got[len(got)-1].Type, "one that stays is told of in the end")
	})
}

// TestHoldsEndWithTheirGroup, and the next leader tells of those it finds.
func TestHoldsEndWithTheirGroup(t *testing.T) {
	t.Run("gone", func(t *testing.T) {
		within(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
			other := nstance.GroupKey{Tenant: nstance.DefaultTenant, Group: "other"}
			g := wanted(1)
			g.Key = other
			w.want(undefined(g))
			w.passes(time.Minute)
			require.Len(t, w.held(other, plan.HoldPending), 1)
			w.want()
			w.passes(time.Minute)
			w.holdsOnce(other, plan.HoldPending, "image base is not known yet")
		})
	})
	t.Run("the next leader", func(t *testing.T) {
		within(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
			require.NoError(t, w.r.Freeze(w.ctx, web, "audit"))
			w.passes(time.Minute)
			w.succeeds(wanted(1))
			require.NoError(t, w.r.Thaw(w.ctx, web, eve))
			w.passes(time.Minute)
			got := w.held(web, plan.HoldFrozen)
			require.Len(t, got, 3)
			require.Equal(t, nstance.EventHoldEnded, got[2].Type)
		})
	})
}

// TestTheJournalSaysWhoAsked: of everything that somebody may ask for.
func TestTheJournalSaysWhoAsked(t *testing.T) {
	within(t, 4, simcloud.Options{}, func(t *testing.T, w *world) {
		ids := w.ready()
		require.NoError(t, w.r.Pause(w.ctx, web, eve))
		require.NoError(t, w.r.Resume(w.ctx, web, eve))
		require.NoError(t, w.r.Preserve(w.ctx, ids[0], time.Now().Add(time.Hour), eve))
		_, err := w.r.Drain(w.ctx, ids[1], eve)
		require.NoError(t, err)
		require.NoError(t, w.r.Delete(w.ctx, ids[2], eve, true))
		require.NoError(t, w.r.Delete(w.ctx, ids[2], eve, true))
		w.passes(5 * time.Minute)
		w.want(redefined(4, "v2"))
		require.NoError(t, w.r.Rollback(w.ctx, web, eve, false))
		require.NoError(t, w.r.UndoRollback(w.ctx, web, eve))
		for typ, id := range map[nstance.EventType]nstance.InstanceID{
			nstance.EventRolloutPaused: "", nstance.EventRolloutResumed: "", nstance.EventRolledBack: "", nstance.EventRollbackEnded: "",
			nstance.EventPreserved: ids[0],
		} {
			require.Contains(t, w.first(typ, func(e nstance.Event) bool { return e.Instance == id }).Reason, eve, typ)
		}
		require.Equal(t, eve, w.first(nstance.EventRemovalRequested, func(e nstance.Event) bool { return e.Instance == ids[1] }).Reason)
		require.Equal(t, "without a drain: "+eve, w.first(nstance.EventRemovalRequested, func(e nstance.Event) bool { return e.Instance == ids[2] }).Reason)
		require.Equal(t, 2, w.count(nstance.EventRemovalRequested, ""), "a repeat is no news")
	})
}
