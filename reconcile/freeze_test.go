package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/storage"
)

// mutations counts what was asked of the provider that changes something.
func (w *world) mutations() int {
	return w.cloud.Count(simcloud.OpCreate) + w.cloud.Count(simcloud.OpDelete)
}

func TestFreeze(t *testing.T) {
	kinds := map[string]struct{ freeze, thaw func(w *world) error }{
		"of a group": {
			func(w *world) error { return w.r.Freeze(w.ctx, web, "audit") },
			func(w *world) error { return w.r.Thaw(w.ctx, web, eve) },
		},
		"of the shard": {
			func(w *world) error { return w.r.FreezeShard(w.ctx, "audit") },
			func(w *world) error { return w.r.ThawShard(w.ctx, eve) },
		},
	}
	for name, k := range kinds {
		t.Run(name, func(t *testing.T) {
			within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
				at := time.Now().UTC()
				require.NoError(t, k.freeze(w))
				require.NoError(t, k.freeze(w), "again")
				before := w.mutations()
				w.want(redefined(5, "v2"))
				require.NoError(t, w.cloud.Kill(w.ready()[0]))
				w.passes(30 * time.Minute)
				require.Equal(t, before, w.mutations(), "neither size, nor rollout, nor loss")
				require.Zero(t, w.count(nstance.EventDrainStarted, ""))
				require.True(t, w.group().Frozen)
				h := w.hold(plan.HoldFrozen)
				require.Equal(t, at, h.Since)
				require.Contains(t, h.Reason, "audit")

				w.succeeds(redefined(5, "v2"))
				w.passes(30 * time.Minute)
				require.Equal(t, before, w.mutations(), "nor under the next leader")
				require.Equal(t, at, w.hold(plan.HoldFrozen).Since)
				require.Equal(t, 1, w.count(nstance.EventFrozen, ""))

				require.NoError(t, k.thaw(w))
				require.NoError(t, k.thaw(w))
				require.Equal(t, 1, w.count(nstance.EventThawed, ""))
				w.passes(time.Hour)
				require.Equal(t, map[string]int{"v2": 5}, w.told())
				w.agrees(5)
				w.succeeds(redefined(5, "v2"))
				require.False(t, w.group().Frozen)
			})
		})
	}
	t.Run("drains under way go on, and end", func(t *testing.T) {
		within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.mu.Lock()
			w.slowDrain = true
			w.mu.Unlock()
			gone := w.ready()[0]
			require.NoError(t, w.cloud.Reclaim(gone, 2*time.Minute))
			w.passes(time.Second)
			require.Equal(t, 1, w.count(nstance.EventDrainStarted, gone))
			require.NoError(t, w.r.Freeze(t.Context(), web, ""))
			w.passes(10 * time.Minute)
			require.Equal(t, 1, w.count(nstance.EventDeleted, gone))
		})
	})
	t.Run("one group's freeze is no other's", func(t *testing.T) {
		within(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
			other := wanted(1)
			other.Key.Group = "other"
			require.NoError(t, w.r.Freeze(t.Context(), web, ""))
			w.r.Observe(nstance.Desired{Groups: []nstance.Group{other, wanted(2)}})
			w.passes(5 * time.Minute)
			require.Len(t, w.cloud.Machines(), 2)
			require.NoError(t, w.r.Thawed(other.Key))
			require.ErrorIs(t, w.r.Thawed(web), nstance.Conflict)
			require.ErrorContains(t, w.r.Thawed(web), "nstance-admin thaw group web")
			require.NoError(t, w.r.Thawed(nstance.GroupKey{}))
		})
	})
	t.Run("requests are refused", func(t *testing.T) {
		within(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			require.NoError(t, w.r.FreezeShard(t.Context(), "audit"))
			_, err := w.r.Drain(t.Context(), w.ready()[0], "")
			require.ErrorIs(t, err, nstance.Conflict)
			require.ErrorContains(t, err, "audit")
			require.ErrorIs(t, w.r.Delete(t.Context(), w.ready()[0], "", true), nstance.Conflict)
			require.ErrorIs(t, w.r.Thawed(nstance.GroupKey{}), nstance.Conflict)
			require.Contains(t, w.r.Problems()[0], "the shard is frozen")
			w.passes(time.Hour)
			w.agrees(2)
		})
	})
	t.Run("machines without a record are left alone", func(t *testing.T) {
		settled(t, 3, func(t *testing.T, w *world) {
			id := w.stray(10*time.Minute, nil)
			require.NoError(t, w.r.FreezeShard(t.Context(), "audit"))
			w.passes(time.Hour)
			require.True(t, w.exists(id))
			require.Contains(t, w.spared(id), "frozen")
			require.ErrorIs(t, w.r.DeleteOrphan(t.Context(), id, ""), nstance.Conflict)
			_, err := w.r.AdoptOrphan(t.Context(), id, eve)
			require.ErrorIs(t, err, nstance.Conflict)
			require.NoError(t, w.r.ThawShard(t.Context(), eve))
			w.passes(time.Hour)
			require.False(t, w.exists(id))
		})
	})
	t.Run("what was chosen and not made is no failure", func(t *testing.T) {
		within(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Times: -1})
			w.want(wanted(4))
			w.passes(time.Minute)
			require.NoError(t, w.r.Freeze(t.Context(), web, ""))
			w.cloud.Heal()
			before := w.mutations()
			w.passes(2 * time.Hour) // their nonces are long expired
			require.Equal(t, before, w.mutations())
			w.succeeds(wanted(4))
			require.NoError(t, w.r.Thaw(t.Context(), web, eve))
			w.passes(time.Second)
			require.Zero(t, w.group().Failures)
			require.Zero(t, w.group().BackoffUntil, "others are made at once")
			w.passes(5 * time.Minute)
			w.agrees(4)
		})
	})
}

// TestMadeBeforeAFreeze: a machine whose create was not answered before the
// freeze registers during it. It is a member like any other.
func TestMadeBeforeAFreeze(t *testing.T) {
	within(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		w.cloud.Fail(simcloud.OpCreate, 1, "", simcloud.After)
		for _, op := range []simcloud.Op{simcloud.OpGet, simcloud.OpList} {
			w.cloud.Inject(simcloud.Fault{Op: op, Times: -1})
		}
		w.want(wanted(2))
		for len(w.cloud.Machines()) < 2 {
			w.passes(time.Millisecond)
		}
		made := w.cloud.Machines()[1].ID
		require.NoError(t, w.r.Freeze(t.Context(), web, ""))
		w.passes(time.Minute)
		require.Equal(t, 1, w.count(nstance.EventRegistered, made))
		require.Zero(t, w.count(nstance.EventCreated, made), "nobody knows of it")
		w.cloud.Heal()
		require.NoError(t, w.r.Thaw(t.Context(), web, eve))
		w.passes(10 * time.Minute)
		w.agrees(2)
		require.Contains(t, w.ready(), made)
	})
}

// TestOrderBeforeAFreeze: whoever was promised an instance gets it after the
// thaw, or learns that it was given up.
func TestOrderBeforeAFreeze(t *testing.T) {
	for name, c := range map[string]struct {
		frozen time.Duration
		made   bool
	}{"for a moment": {5 * time.Minute, true}, "for so long that its nonce has expired": {time.Hour, false}} {
		t.Run(name, func(t *testing.T) {
			within(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
				w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Times: -1})
				id := w.newID()
				_, err := w.order(onDemand(id))
				require.NoError(t, err)
				w.passes(time.Second)
				require.NoError(t, w.r.Freeze(t.Context(), web, ""))
				w.cloud.Heal()
				w.passes(c.frozen)
				require.Len(t, w.cloud.Machines(), 1)
				w.succeeds(wanted(1))
				require.NoError(t, w.r.Thaw(t.Context(), web, eve))
				w.passes(5 * time.Minute)
				if !c.made {
					require.Equal(t, 1, w.count(nstance.EventDeleted, id))
					w.agrees(1)
					return
				}
				require.Contains(t, w.ready(), id)
			})
		})
	}
}

// TestNoticeDuringAFreeze: what is acknowledged is in the record, and acted on
// exactly once, whoever leads.
func TestNoticeDuringAFreeze(t *testing.T) {
	for name, leaders := range map[string]int{"the same leader": 0, "the next leader": 1, "the one after": 2} {
		t.Run(name, func(t *testing.T) {
			within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
				require.NoError(t, w.r.Freeze(t.Context(), web, ""))
				id := w.ready()[0]
				require.NoError(t, w.cloud.Reclaim(id, 6*time.Hour))
				w.passes(10 * time.Second)
				require.Len(t, w.acked, 1, "it is acknowledged")
				v, err := w.r.Instance(id)
				require.NoError(t, err)
				require.Len(t, v.Record.Notices, 1, "since it is in the record")
				require.Nil(t, v.Drain)
				require.Contains(t, w.first(nstance.EventNoticeReceived, func(e nstance.Event) bool { return e.Instance == id }).Reason, "frozen")
				w.passes(time.Hour)
				require.Zero(t, w.count(nstance.EventDrainStarted, ""))

				w.mu.Lock()
				w.broken[id] = true // its agent never says it again
				w.mu.Unlock()
				for range leaders {
					w.succeeds(wanted(3))
				}
				require.NoError(t, w.r.Thaw(t.Context(), web, eve))
				w.passes(20 * time.Minute)
				require.Equal(t, 1, w.count(nstance.EventDrainStarted, id))
				require.Equal(t, 1, w.count(nstance.EventReplacementRequested, ""))
				require.Equal(t, 1, w.count(nstance.EventDeleted, id))
				w.agrees(3)
			})
		})
	}
	t.Run("withdrawn", func(t *testing.T) {
		within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			require.NoError(t, w.r.Freeze(t.Context(), web, ""))
			id := w.ready()[0]
			require.NoError(t, w.cloud.Reclaim(id, 6*time.Hour))
			w.passes(10 * time.Second)
			require.NoError(t, w.cloud.Withdraw(id))
			w.passes(10 * time.Second)
			v, err := w.r.Instance(id)
			require.NoError(t, err)
			require.Empty(t, v.Record.Notices)
			w.succeeds(wanted(3))
			require.NoError(t, w.r.Thaw(t.Context(), web, eve))
			w.passes(time.Hour)
			require.Zero(t, w.count(nstance.EventDrainStarted, ""))
			w.agrees(3)
		})
	})
	t.Run("its machine is gone before the thaw", func(t *testing.T) {
		within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			require.NoError(t, w.r.FreezeShard(t.Context(), ""))
			id := w.ready()[0]
			require.NoError(t, w.cloud.Reclaim(id, 2*time.Minute))
			w.passes(10 * time.Minute)
			require.Len(t, w.ready(), 2)
			w.succeeds(wanted(3))
			require.NoError(t, w.r.ThawShard(t.Context(), eve))
			w.passes(10 * time.Minute)
			require.Equal(t, 1, w.count(nstance.EventReplacementRequested, ""))
			w.agrees(3)
		})
	})
}

// TestFrozenDrainThatLandsLate promises that a former leader's drain that lands
// during a freeze is taken for what it is, instead of being looked at for ever.
func TestFrozenDrainThatLandsLate(t *testing.T) {
	within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		r, _ := w.leader()
		require.NoError(t, r.Freeze(w.ctx, web, eve))
		id := w.ready()[0]
		former := storage.NewRecords(w.store, "s1", &storage.RecordsOptions{Epoch: w.epoch})
		_, _, err := former.Load(w.ctx)
		require.NoError(t, err)
		_, err = former.Update(w.ctx, id, func(rec *storage.Instance) error {
			rec.Generation++
			rec.Drain = &nstance.Drain{
				Instance: id, Group: web, Generation: rec.Generation, StartedAt: time.Now().UTC(), Deadline: time.Now().Add(5 * time.Minute).UTC(),
				Causes: []nstance.Cause{{Kind: nstance.CauseRequest}}, Executor: nstance.ExecutorAgent,
			}
			return nil
		})
		require.NoError(t, err)
		require.NoError(t, w.cloud.Reclaim(id, 30*time.Minute))
		w.passes(2 * time.Minute)
		require.False(t, w.exists(id), "a drain that is under way goes on")
	})
}
