package reconcile_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/attention"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
)

// bubble runs a test in a bubble of virtual time, beside others.
func bubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

// withGroup runs a test in a bubble, in a world with one leader whose group is ready.
func withGroup(t *testing.T, size int, o simcloud.Options, test func(t *testing.T, w *world)) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, o)
		defer w.close()
		w.startLeader(webGroup(size))
		w.advance(2 * time.Minute)
		w.requireMembers(size)
		require.Equal(t, 1, w.count(nstance.EventGroupReady, ""))
		test(t, w)
	})
}

func TestRemoveFirst(t *testing.T) {
	withGroup(t, 4, simcloud.Options{}, func(t *testing.T, w *world) {
		admin, before := w.r.Admin(), w.ready()
		require.NoError(t, admin.RemoveFirst(web, before[3:]))
		w.advance(2 * time.Minute)
		require.Equal(t, before, w.ready(), "nothing goes without surplus")
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{webGroup(3)}})
		w.advance(2 * time.Minute)
		require.Equal(t, before[:3], w.ready(), "the youngest went, which was named")
		state, err := w.store.Get(w.ctx, layout.StateKey("s1"))
		require.NoError(t, err)
		require.NotContains(t, string(state.Data), string(before[3]), "its name is forgotten")
		require.NoError(t, admin.RemoveFirst(web, before[3:]), "one that is gone is ignored")

		other := w.readyOnDemand()
		require.ErrorContains(t, admin.RemoveFirst(web, []nstance.InstanceID{other}), "remove_first")
		require.ErrorContains(t, admin.RemoveFirst(nstance.GroupKey{Tenant: web.Tenant, Group: "other"}, before[:1]), "remove_first")
	})
}

func TestScale(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{webGroup(5)}})
		w.advance(2 * time.Minute)
		w.requireMembers(5)

		before := w.ready()
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{webGroup(2)}})
		w.advance(2 * time.Minute)
		w.requireMembers(2)
		require.Equal(t, before[3:], w.ready(), "the oldest are removed first")
		require.Equal(t, 3, w.count(nstance.EventDrainStarted, ""), "scale down drains first")

		w.r.Observe(nstance.Desired{Groups: []nstance.Group{webGroup(0)}})
		w.advance(2 * time.Minute)
		w.requireMembers(0)
	})
}

func TestReclaim(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		p := w.timing()
		w.changeLeader(webGroup(3))
		doomed := w.ready()[1]
		require.NoError(t, w.cloud.Reclaim(doomed, 2*time.Minute))
		w.advance(time.Second)

		mine := func(e nstance.Event) bool { return e.Instance == doomed }
		received := w.first(nstance.EventNoticeReceived, mine)
		replaced := w.first(nstance.EventReplacementRequested, func(e nstance.Event) bool { return e.Replaces == doomed })
		require.Zero(t, p.of(replaced.Instance).Sub(received.Time), "no delay between notice and replacement")
		drained := w.first(nstance.EventDrainStarted, mine)
		require.Zero(t, drained.Time.Sub(received.Time))
		require.True(t, drained.Drain.Deadline.Before(received.Notice.Deadline), "drained before the reclaim")
		require.Equal(t, 1, w.acked[received.Notice.EventID], "acknowledged once the drain is durable")

		w.advance(90 * time.Second)
		w.requireMembers(3)
		require.NotContains(t, w.ready(), doomed)
		acknowledged := w.first(nstance.EventDrainAcknowledged, mine)
		require.False(t, w.first(nstance.EventDeleteRequested, mine).Time.Before(acknowledged.Time), "deleted only after the drain")
		require.Equal(t, 1, w.count(nstance.EventReplacementRequested, ""), "one loss, one replacement")
	})
}

func TestMassReclaim(t *testing.T) {
	withGroup(t, 40, simcloud.Options{}, func(t *testing.T, w *world) {
		began := time.Now()
		for _, id := range w.ready()[:30] {
			require.NoError(t, w.cloud.Reclaim(id, 2*time.Minute))
		}
		w.advance(time.Second)
		require.Equal(t, 30, w.count(nstance.EventReplacementRequested, ""), "all at once, beyond max_surge")
		require.Equal(t, 1, w.count(nstance.EventAlarm, ""), "with one alarm")
		w.mu.Lock()
		for _, e := range w.events {
			if e.Type == nstance.EventReplacementRequested {
				require.Less(t, e.Time.Sub(began), 100*time.Millisecond)
			}
		}
		w.mu.Unlock()
		w.advance(4 * time.Minute)
		w.requireMembers(40)
	})
}

func TestUnacknowledgedDrainEndsAtDeadline(t *testing.T) {
	withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		w.mu.Lock()
		w.slowDrain = true
		w.mu.Unlock()
		doomed := w.ready()[0]
		require.NoError(t, w.cloud.Reclaim(doomed, 2*time.Minute))
		w.advance(5 * time.Minute)
		w.requireMembers(2)
		mine := func(e nstance.Event) bool { return e.Instance == doomed }
		deadline := w.first(nstance.EventDrainStarted, mine).Drain.Deadline
		require.False(t, w.first(nstance.EventDeleteRequested, mine).Time.Before(deadline))
		w.first(nstance.EventDrainCutShort, mine)
	})
}

func TestWithdrawnNotice(t *testing.T) {
	withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		w.mu.Lock()
		w.slowDrain = true
		w.mu.Unlock()
		spared := w.ready()[0]
		require.NoError(t, w.cloud.Reclaim(spared, 10*time.Minute))
		w.advance(10 * time.Second)
		require.Contains(t, w.in(nstance.Draining), spared)
		require.NoError(t, w.cloud.Withdraw(spared))
		w.mu.Lock()
		w.slowDrain = false // acknowledges again, too late
		w.mu.Unlock()
		w.advance(5 * time.Minute)
		w.requireMembers(2)
		require.Equal(t, 1, w.count(nstance.EventDrainCancelled, spared))
	})
}

func TestMachineVanishes(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		lost := w.ready()[0]
		require.NoError(t, w.cloud.Kill(lost))
		w.r.Observe(nstance.Disconnected{ID: lost})
		w.advance(3 * time.Minute)
		w.requireMembers(3)
		require.Equal(t, 1, w.count(nstance.EventMachineGone, lost))
		require.Zero(t, w.count(nstance.EventDrainStarted, lost), "no drain of a vanished machine")
	})
}

func TestMachineSlowToStop(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		lost := w.ready()[0]
		w.r.Observe(nstance.Disconnected{ID: lost}) // the cloud still shows it running
		w.advance(500 * time.Millisecond)
		require.NoError(t, w.cloud.Stop(lost, nstance.StatusStopped))
		w.advance(5 * time.Second)
		require.Equal(t, 1, w.count(nstance.EventMachineGone, lost), "checked again before a report is missed")
		w.advance(2 * time.Minute)
		w.requireMembers(3)
	})
}

func TestMachineVanishesWithoutBrokenStream(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		lost := w.ready()[0]
		require.NoError(t, w.cloud.Kill(lost)) // only the missing reports show it
		w.advance(5 * time.Minute)
		w.requireMembers(3)
		require.NotContains(t, w.ready(), lost)
	})
}

func TestSilentMemberOfRunningMachine(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		silent := w.ready()[0]
		w.mu.Lock()
		w.broken[silent] = true
		w.mu.Unlock()
		w.advance(2 * time.Minute)
		require.Contains(t, w.ready(), silent, "one missed report is within the limit")
		w.advance(10 * time.Minute)
		w.requireMembers(3)
		require.Equal(t, 1, w.count(nstance.EventUnhealthy, silent))
		require.Equal(t, 1, w.count(nstance.EventDrainStarted, silent), "drained, because it runs")
	})
}

func TestProviderErrorsDeleteNothing(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		before := w.ready()
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpGet, Times: -1})
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpList, Times: -1})
		for _, id := range before {
			w.r.Observe(nstance.Disconnected{ID: id})
		}
		w.advance(30 * time.Minute)
		require.Equal(t, before, w.ready())
		require.Len(t, w.cloud.Machines(), 3)
	})
}

func TestRollout(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		next := webGroup(3)
		next.Definition.UserData.Content = "v2"
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{next}})
		for range 60 {
			w.advance(10 * time.Second)
			require.GreaterOrEqual(t, len(w.ready()), 3, "replacement first: never fewer ready than the size")
			require.LessOrEqual(t, len(w.cloud.Machines()), 4, "at most one surge")
		}
		w.requireMembers(3)
		for _, v := range w.r.Instances() {
			require.False(t, v.Drifted)
		}
		require.Equal(t, 3, w.count(nstance.EventDrainStarted, ""))
	})
}

func TestBadImageHaltsRollout(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		before := w.ready()
		w.mu.Lock()
		w.badImage = func(spec nstance.MachineSpec) bool { return string(spec.UserData) == "bad" }
		w.mu.Unlock()
		next := webGroup(3)
		next.Definition.UserData.Content = "bad"
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{next}})
		w.advance(time.Hour)
		require.Equal(t, before, w.ready(), "no healthy member was replaced")
		require.Equal(t, 1, w.count(nstance.EventRolloutHalted, ""))
		require.NotEmpty(t, w.group().Halted)

		// A reclaim meanwhile is replaced from the last good definition.
		require.NoError(t, w.cloud.Reclaim(before[0], 2*time.Minute))
		w.advance(3 * time.Minute)
		require.Len(t, w.ready(), 3)
		for _, m := range w.cloud.Machines() {
			spec, _ := w.cloud.Spec(m.ID)
			require.Equal(t, "v1", string(spec.UserData))
		}
		// The halt survives a handover.
		w.stopLeader()
		w.startLeader(next)
		w.advance(time.Hour)
		require.Len(t, w.ready(), 3)
		require.NotEmpty(t, w.group().Halted)
	})
}

func TestCapacityShortageBacksOff(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		w.cloud.SetCapacity(simcloud.Pool{InstanceType: "small"}, 3)
		calls := w.cloud.Count(simcloud.OpCreate)
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{webGroup(5)}})
		w.advance(time.Hour)
		require.Len(t, w.ready(), 3)
		require.Less(t, w.cloud.Count(simcloud.OpCreate)-calls, 80, "a shortage costs few calls")
		require.Zero(t, w.count(nstance.EventRolloutHalted, ""), "not a failure of the image")

		w.cloud.SetCapacity(simcloud.Pool{InstanceType: "small"}, 5)
		w.advance(10 * time.Minute)
		w.requireMembers(5)
	})
}

func TestSoldOutShapesAreTriedInOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		g := webGroup(3)
		g.Definition.InstanceTypes = []string{"small", "medium"}
		g.Definition.Market = nstance.Market{Type: nstance.Spot, Fallback: nstance.OnDemand, FallbackAfter: 10 * time.Minute}
		w.cloud.SetCapacity(simcloud.Pool{InstanceType: "small"}, 0)
		w.startLeader(g)
		w.advance(5 * time.Minute)
		w.requireMembers(3)
		require.Equal(t, map[string]int{"medium/spot": 3}, w.shapes())

		// No spot capacity: on-demand after fallback_after.
		w.cloud.SetCapacity(simcloud.Pool{Market: nstance.Spot}, 3)
		g.Size = 5
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{g}})
		w.advance(8 * time.Minute)
		require.Len(t, w.ready(), 3, "not before fallback_after")
		w.cloud.SetCapacity(simcloud.Pool{InstanceType: "small"}, -1)
		w.advance(15 * time.Minute)
		w.requireMembers(5)
		require.Equal(t, map[string]int{"medium/spot": 3, "small/on-demand": 2}, w.shapes())
	})
}

func TestLostAnswers(t *testing.T) {
	for _, lost := range []bool{false, true} {
		for _, op := range []simcloud.Op{simcloud.OpCreate, simcloud.OpDelete, simcloud.OpGet, simcloud.OpList} {
			t.Run(fmt.Sprint(op, " ", lost), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					w := newWorld(t, simcloud.Options{})
					defer w.close()
					w.cloud.Inject(simcloud.Fault{Op: op, Times: 2, Lost: lost})
					w.startLeader(webGroup(3))
					w.advance(5 * time.Minute)
					w.requireMembers(3)
					w.r.Observe(nstance.Desired{Groups: []nstance.Group{webGroup(1)}})
					w.advance(5 * time.Minute)
					w.requireMembers(1)
					require.LessOrEqual(t, w.count(nstance.EventCreated, ""), 3, "no second machine for a lost answer (%s %v)", op, lost)
				})
			})
		}
	}
}

func TestNewLeaderContinuesDrain(t *testing.T) {
	withGroup(t, 4, simcloud.Options{}, func(t *testing.T, w *world) {
		w.mu.Lock()
		w.slowDrain = true
		w.mu.Unlock()
		doomed := w.ready()[0]
		require.NoError(t, w.cloud.Reclaim(doomed, 4*time.Minute))
		w.advance(10 * time.Second)
		started := w.first(nstance.EventDrainStarted, func(e nstance.Event) bool { return e.Instance == doomed })
		w.stopLeader()
		w.startLeader(webGroup(4))
		w.advance(time.Second)
		r, drains := w.leader()
		v, err := r.Instance(doomed)
		require.NoError(t, err)
		require.Equal(t, started.Drain.Deadline, v.Drain.Deadline, "the deadline is durable")
		require.Equal(t, started.Drain.Generation, drains.Active()[0].Generation, "the drain is announced again with the same generation")
		w.advance(6 * time.Minute)
		w.requireMembers(4)
		require.Equal(t, 1, w.count(nstance.EventReplacementRequested, ""), "no second replacement")
	})
}

func TestLeaderStopsBetweenIntentAndMachine(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Times: 3})
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Times: 3})
		w.startLeader(webGroup(3))
		w.advance(100 * time.Millisecond)
		w.stopLeader()
		require.Empty(t, w.cloud.Machines())
		w.cloud.ClearFaults()
		w.startLeader(webGroup(3))
		w.advance(3 * time.Minute)
		w.requireMembers(3)
		require.Equal(t, 3, w.count(nstance.EventCreateRequested, ""), "the same intents continue")
	})
}

// TestLateIntentIsContinued: a former leader's intent that lands after this leader has
// read the records becomes a member.
func TestLateIntentIsContinued(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		before := w.ready()
		id, err := nstance.NewInstanceID("web", time.Now())
		require.NoError(t, err)
		former := records.New(w.store, "s1", &records.Options{Epoch: w.epoch})
		intent, ok := w.r.Admin().Internals().Records().Get(before[0])
		require.True(t, ok)
		intent.ID, intent.CreatedAt, intent.RegisteredAt = id, id.Time(), time.Time{}
		_, err = former.Create(w.ctx, intent)
		require.NoError(t, err)
		w.advance(15 * time.Minute)
		_, err = w.store.Get(w.ctx, keyIn(web.Group, id))
		require.ErrorIs(t, err, nstance.NotFound)
		require.Equal(t, before, w.ready())
		require.Len(t, w.cloud.Machines(), 3)
	})
}

// TestLateIntentOfRemovedGroup: a former leader's late intent of a group that is no
// longer desired becomes no machine and is deleted.
func TestLateIntentOfRemovedGroup(t *testing.T) {
	withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		id, err := nstance.NewInstanceID("web", time.Now())
		require.NoError(t, err)
		intent, ok := w.r.Admin().Internals().Records().Get(w.ready()[0])
		require.True(t, ok)
		intent.ID, intent.Group, intent.CreatedAt, intent.RegisteredAt, intent.CreatedEpoch = id, "removed", id.Time(), time.Time{}, w.epoch-1
		_, err = records.New(w.store, "s1", &records.Options{Epoch: w.epoch}).Create(w.ctx, intent)
		require.NoError(t, err)
		w.advance(30 * time.Minute)
		require.Len(t, w.cloud.Machines(), 1)
		_, ok = w.r.Admin().Internals().Records().Get(id)
		require.False(t, ok, "deleted once its nonce has expired")
	})
}

func TestUnreadableRecordIsNotAbsence(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		victim := w.ready()[0]
		key := records.Ref{Shard: "s1", Tenant: web.Tenant, Group: web.Group, ID: victim}.Key()
		obj, err := w.store.Get(w.ctx, key)
		require.NoError(t, err)
		_, err = w.store.PutIfMatch(w.ctx, key, []byte("{torn"), obj.Version)
		require.NoError(t, err)
		w.stopLeader()
		w.startLeader(webGroup(3))
		w.advance(30 * time.Minute)
		require.Len(t, w.cloud.Machines(), 3, "neither replaced nor deleted")
		require.Equal(t, 1, w.count(nstance.EventRecordUnreadable, victim))
		require.Contains(t, attention.Problems(w.r.Admin().Attention())[0], key)
		require.NotEmpty(t, w.group().Holds)
	})
}

func TestRequests(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		ids := w.ready()
		d, err := w.r.Drain(w.ctx, ids[0], "maintenance")
		require.NoError(t, err)
		require.Equal(t, ids[0], d.Instance)
		require.Equal(t, nstance.CauseRequest, d.Causes[0].Kind)
		require.NoError(t, w.r.Delete(w.ctx, ids[1], "broken", true))
		require.Zero(t, w.count(nstance.EventDrainStarted, ids[1]))
		_, err = w.r.Drain(w.ctx, "web00000000000000000000000000", "")
		require.ErrorIs(t, err, nstance.NotFound)
		w.advance(3 * time.Minute)
		w.requireMembers(3)
		require.Equal(t, ids[2:], w.ready()[:1])
	})
}

// TestRequestsInUnknownGroup: only the requested instance is removed.
func TestRequestsInUnknownGroup(t *testing.T) {
	forgotten := func(t *testing.T, play func(t *testing.T, w *world, ids []nstance.InstanceID)) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.changeLeader()
			ids := w.ready()
			require.Len(t, ids, 3)
			play(t, w, ids)
			w.advance(30 * time.Minute)
			require.Equal(t, ids[2:], w.ready()[:1])
			w.setGroups(webGroup(3))
			w.advance(10 * time.Minute)
			w.requireMembers(3) // as before, once the group is configured
			require.Equal(t, ids[2:], w.ready()[:1])
		})
	}
	soon := func(t *testing.T) context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		t.Cleanup(cancel)
		return ctx
	}
	t.Run("with a drain and without", func(t *testing.T) {
		forgotten(t, func(t *testing.T, w *world, ids []nstance.InstanceID) {
			d, err := w.r.Drain(soon(t), ids[0], "maintenance")
			require.NoError(t, err)
			require.WithinDuration(t, time.Now().Add(5*time.Minute), d.Deadline, time.Second)
			require.NoError(t, w.r.Delete(soon(t), ids[1], "broken", true))
			require.Zero(t, w.count(nstance.EventDrainStarted, ids[1]))
			w.advance(30 * time.Minute)
			require.Len(t, w.cloud.Machines(), 1, "both are gone, without replacement")
		})
	})
	t.Run("the drain is not acknowledged", func(t *testing.T) {
		forgotten(t, func(t *testing.T, w *world, ids []nstance.InstanceID) {
			w.slowDrain = true
			require.NoError(t, w.r.Admin().Tune(reconcile.Tuning{DrainTimeout: 2 * time.Minute}))
			require.NoError(t, w.r.Delete(soon(t), ids[0], "", false))
			require.NoError(t, w.r.Delete(soon(t), ids[1], "", false))
			w.advance(100 * time.Second)
			require.Len(t, w.cloud.Machines(), 3)
			w.advance(time.Minute)
			require.Len(t, w.cloud.Machines(), 1, "the deadline has passed")
		})
	})
	t.Run("continued by the next leader", func(t *testing.T) {
		forgotten(t, func(t *testing.T, w *world, ids []nstance.InstanceID) {
			w.slowDrain = true
			require.NoError(t, w.r.Delete(soon(t), ids[0], "", false))
			w.changeLeader()
			require.Len(t, w.cloud.Machines(), 3)
			w.advance(4 * time.Minute)
			require.Len(t, w.cloud.Machines(), 2)
			require.NoError(t, w.r.Delete(soon(t), ids[1], "", true))
		})
	})
	t.Run("a freeze refuses at once", func(t *testing.T) {
		withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
			w.changeLeader()
			require.NoError(t, w.r.Admin().Freeze(t.Context(), web, "not now"))
			require.ErrorIs(t, w.r.Delete(soon(t), w.ready()[0], "", false), nstance.Conflict)
		})
	})
}

func TestDrainTimeoutZero(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		g := webGroup(2)
		g.DrainTimeout = 0
		w.startLeader(g)
		w.advance(time.Minute)
		doomed := w.ready()[0]
		require.NoError(t, w.cloud.Reclaim(doomed, 2*time.Minute))
		w.advance(time.Minute)
		w.requireMembers(2)
		require.Zero(t, w.count(nstance.EventDrainStarted, ""))
	})
}

func TestTimeoutZeroMeansNone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{Boot: simcloud.Delay{Min: 20 * time.Minute}})
		defer w.close()
		g := webGroup(2)
		g.Definition.LaunchTimeout, g.Definition.RegistrationTimeout = 0, 0
		w.startLeader(g)
		w.advance(30 * time.Minute)
		w.requireMembers(2)
		require.Equal(t, 2, w.cloud.Count(simcloud.OpCreate), "slow machines are kept")
	})
}

// TestStorageCallsOfInstance counts the storage calls of one healthy instance: three
// puts and one delete, no reads, one more put for a drain.
func TestStorageCallsOfInstance(t *testing.T) {
	withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		counted := &counting{Store: w.store}
		w.stopLeader()
		w.store = counted
		w.startLeader(webGroup(1))
		w.advance(2 * time.Minute)
		counted.reset()
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{webGroup(2)}})
		w.advance(2 * time.Minute)
		require.Equal(t, calls{puts: 2}, counted.take(), "intent and registration")
		id := w.ready()[1]
		require.NoError(t, w.cloud.Reclaim(id, 2*time.Minute))
		w.advance(3 * time.Minute)
		require.Equal(t, calls{puts: 2 + 2, deletes: 1}, counted.take(), "drain and mark; and its replacement's first two")
	})
}

// TestRemoveFirstOutlivesLeader: what goes first is as durable as the size that it was named
// with, until it is gone.
func TestRemoveFirstOutlivesLeader(t *testing.T) {
	withGroup(t, 4, simcloud.Options{}, func(t *testing.T, w *world) {
		before := w.ready()
		require.NoError(t, w.r.Admin().RemoveFirst(web, before[2:]))
		for range 2 {
			w.stopLeader()
			w.startLeader(webGroup(4))
			w.advance(time.Second)
		}
		w.stopLeader()
		w.startLeader(webGroup(3))
		w.advance(5 * time.Minute)
		require.Len(t, w.ready(), 3)
		require.Subset(t, w.ready(), before[:2], "one of those that were named went")
		w.changeLeader(webGroup(2))
		w.advance(5 * time.Minute)
		require.Equal(t, before[:2], w.ready())
	})
}

// TestRemoveFirstUnreadable: an instance that was named goes first, although its record could not
// be read when the term began.
func TestRemoveFirstUnreadable(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		before := w.ready()
		require.NoError(t, w.r.Admin().RemoveFirst(web, before[2:]))
		w.stopLeader()
		good, err := w.store.Get(w.ctx, keyIn(web.Group, before[2]))
		require.NoError(t, err)
		torn, err := w.store.PutIfMatch(w.ctx, good.Key, []byte("{torn"), good.Version)
		require.NoError(t, err)
		w.startLeader(webGroup(3))
		w.advance(time.Second)
		_, err = w.store.PutIfMatch(w.ctx, good.Key, good.Data, torn)
		require.NoError(t, err)
		w.advance(2 * time.Minute)
		require.Equal(t, before, w.ready())
		w.setGroups(webGroup(2))
		w.advance(5 * time.Minute)
		require.Equal(t, before[:2], w.ready())
	})
}
