package reconcile_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// holdEvents returns the journalled hold events of a kind, of one group or of the shard if key
// is empty.
func (w *world) holdEvents(key nstance.GroupKey, kind plan.HoldKind) (out []nstance.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		hold := e.Type == nstance.EventHoldStarted || e.Type == nstance.EventHoldEnded
		if hold && e.Tenant == key.Tenant && e.Group == key.Group && strings.HasPrefix(e.Reason, string(kind)) {
			out = append(out, e)
		}
	}
	return out
}

// requireOneHold requires exactly one hold of a kind in the journal, with start, end and
// reason.
func (w *world) requireOneHold(key nstance.GroupKey, kind plan.HoldKind, why string) {
	w.t.Helper()
	got := w.holdEvents(key, kind)
	require.Len(w.t, got, 2, "%v", got)
	require.Equal(w.t, nstance.EventHoldStarted, got[0].Type)
	require.Contains(w.t, got[0].Reason, string(kind)+": "+why)
	require.Equal(w.t, nstance.EventHoldEnded, got[1].Type)
	require.False(w.t, got[1].Time.Before(got[0].Time))
}

// TestHoldsAreJournalled: once when they begin and once when they end, however often the
// group is planned.
func TestHoldsAreJournalled(t *testing.T) {
	for kind, test := range map[plan.HoldKind]struct {
		why        string
		begin, end func(*world) error
	}{
		plan.HoldPaused: {
			"the rollout is paused: odd",
			func(w *world) error {
				w.setGroups(groupWithUserData(3, "v2"))
				return w.r.Admin().Pause(w.ctx, web, "odd")
			},
			func(w *world) error { return w.r.Admin().Resume(w.ctx, web, requester) },
		},
		plan.HoldFrozen: {
			"drains in progress continue, nothing else starts: audit",
			func(w *world) error { return w.r.Admin().Freeze(w.ctx, web, "audit") },
			func(w *world) error { return w.r.Admin().Thaw(w.ctx, web, requester) },
		},
		plan.HoldRolledBack: {
			"the last good definition is desired",
			func(w *world) error {
				w.setGroups(groupWithUserData(3, "v2"))
				return w.r.Admin().Rollback(w.ctx, web, requester, false)
			},
			func(w *world) error { return w.r.Admin().UndoRollback(w.ctx, web, requester) },
		},
		plan.HoldPending: {
			whyPending,
			func(w *world) error { w.setGroups(pendingGroup(webGroup(3))); return nil },
			func(w *world) error { w.setGroups(webGroup(3)); return nil },
		},
		plan.HoldBreaker: {
			"3 of the group's 3 members fell silent within one interval",
			func(w *world) error { w.silenceAgents(w.ready()...); return nil },
			func(w *world) error { w.resumeAgents(w.ready()...); return nil },
		},
	} {
		t.Run(string(kind), func(t *testing.T) {
			withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
				require.Empty(t, w.holdEvents(web, kind))
				require.NoError(t, test.begin(w))
				w.advance(20 * time.Minute)
				require.Len(t, w.holdEvents(web, kind), 1)
				require.NoError(t, test.end(w))
				w.advance(20 * time.Minute)
				w.requireOneHold(web, kind, test.why)
			})
		})
	}
	t.Run("halted rollout", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.failUserData("v2")
			w.setGroups(groupWithUserData(3, "v2"))
			w.advance(time.Hour)
			w.setGroups(webGroup(3))
			w.advance(time.Minute)
			w.requireOneHold(web, plan.HoldHalted, "2 replacements in a row did not become ready")
		})
	})
	t.Run("end of a hold", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.changeLeader(webGroup(3))
			w.requireOneHold(web, plan.HoldSettling, "3 members have not reported since this leader took over, until 20")
		})
	})
}

// TestShardHoldsAreJournalled: a hold of all groups is journalled for each group, one of
// no group without a group.
func TestShardHoldsAreJournalled(t *testing.T) {
	t.Run("a freeze", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			require.NoError(t, w.r.Admin().FreezeShard(w.ctx, "audit"))
			w.advance(10 * time.Minute)
			require.NoError(t, w.r.Admin().ThawShard(w.ctx, requester))
			w.advance(10 * time.Minute)
			w.requireOneHold(web, plan.HoldFrozen, "the shard is frozen: drains in progress continue, nothing else starts: audit")
			require.Equal(t, requester, w.first(eventtype.Thawed, func(e nstance.Event) bool { return e.Group == "" }).Reason)
		})
	})
	t.Run("too many orphans", func(t *testing.T) {
		withSettledLeader(t, 9, func(t *testing.T, w *world) {
			a, b := w.createOrphan(10*time.Minute, nil), w.createOrphan(11*time.Minute, nil)
			w.advance(time.Hour)
			require.Len(t, w.holdEvents(nstance.GroupKey{}, "orphans"), 1)
			require.NoError(t, w.r.Admin().DeleteOrphan(w.ctx, a, requester))
			w.advance(10 * time.Minute)
			require.False(t, w.exists(b))
			w.requireOneHold(nstance.GroupKey{}, "orphans", "2 machines without a record are more than 1")
		})
	})
}

// TestFlappingHolds: journalled at most once a minute.
func TestFlappingHolds(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		for range 10 * 60 / 2 {
			w.setGroups(pendingGroup(webGroup(3)))
			w.advance(time.Second)
			w.setGroups(webGroup(3))
			w.advance(time.Second)
		}
		got := w.holdEvents(web, plan.HoldPending)
		require.GreaterOrEqual(t, len(got), 2*5)
		require.LessOrEqual(t, len(got), 2*11)
		for i, e := range got {
			require.Equal(t, i%2 == 0, e.Type == nstance.EventHoldStarted, "start and end alternate")
		}

		w.setGroups(pendingGroup(webGroup(3)))
		w.advance(10 * time.Minute)
		got = w.holdEvents(web, plan.HoldPending)
		require.Equal(t, nstance.EventHoldStarted, got[len(got)-1].Type, "a lasting hold is journalled in the end")
	})
}

// TestHoldsOfRemovedGroupsEnd: they end with the group, and the next leader journals the
// holds that it finds.
func TestHoldsOfRemovedGroupsEnd(t *testing.T) {
	t.Run("group removed", func(t *testing.T) {
		withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
			other := nstance.GroupKey{Tenant: nstance.DefaultTenant, Group: "other"}
			g := webGroup(1)
			g.Key = other
			w.setGroups(undefinedGroup(g))
			w.advance(time.Minute)
			require.Len(t, w.holdEvents(other, plan.HoldPending), 1)
			w.setGroups()
			w.advance(time.Minute)
			w.requireOneHold(other, plan.HoldPending, "image base is not known yet")
		})
	})
	t.Run("the next leader", func(t *testing.T) {
		withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
			require.NoError(t, w.r.Admin().Freeze(w.ctx, web, "audit"))
			w.advance(time.Minute)
			w.changeLeader(webGroup(1))
			require.NoError(t, w.r.Admin().Thaw(w.ctx, web, requester))
			w.advance(time.Minute)
			got := w.holdEvents(web, plan.HoldFrozen)
			require.Len(t, got, 3)
			require.Equal(t, nstance.EventHoldEnded, got[2].Type)
		})
	})
}

// TestJournalNamesRequester: each requested change is journalled with its reason.
func TestJournalNamesRequester(t *testing.T) {
	withGroup(t, 4, simcloud.Options{}, func(t *testing.T, w *world) {
		ids := w.ready()
		require.NoError(t, w.r.Admin().Pause(w.ctx, web, requester))
		require.NoError(t, w.r.Admin().Resume(w.ctx, web, requester))
		require.NoError(t, w.r.Admin().Preserve(w.ctx, ids[0], time.Now().Add(time.Hour), requester))
		_, err := w.r.Drain(w.ctx, ids[1], requester)
		require.NoError(t, err)
		require.NoError(t, w.r.Delete(w.ctx, ids[2], requester, true))
		require.NoError(t, w.r.Delete(w.ctx, ids[2], requester, true))
		w.advance(5 * time.Minute)
		w.setGroups(groupWithUserData(4, "v2"))
		require.NoError(t, w.r.Admin().Rollback(w.ctx, web, requester, false))
		require.NoError(t, w.r.Admin().UndoRollback(w.ctx, web, requester))
		for typ, id := range map[nstance.EventType]nstance.InstanceID{
			eventtype.RolloutPaused: "", eventtype.RolloutResumed: "", eventtype.RolledBack: "", eventtype.RollbackEnded: "",
			eventtype.Preserved: ids[0],
		} {
			require.Contains(t, w.first(typ, func(e nstance.Event) bool { return e.Instance == id }).Reason, requester, typ)
		}
		require.Equal(t, requester, w.first(eventtype.RemovalRequested, func(e nstance.Event) bool { return e.Instance == ids[1] }).Reason)
		require.Equal(t, "without a drain: "+requester, w.first(eventtype.RemovalRequested, func(e nstance.Event) bool { return e.Instance == ids[2] }).Reason)
		require.Equal(t, 2, w.count(eventtype.RemovalRequested, ""), "a repeat is not journalled")
	})
}
