package reconcile_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
)

// within runs a test in a bubble, in a world with one leader that has brought
// the group to its size.
func within(t *testing.T, size int, o simcloud.Options, test func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, o)
		defer w.close()
		w.lead(wanted(size))
		w.passes(2 * time.Minute)
		w.agrees(size)
		require.Equal(t, 1, w.count(nstance.EventGroupReady, ""))
		test(t, w)
	})
}

func TestScale(t *testing.T) {
	within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{wanted(5)}})
		w.passes(2 * time.Minute)
		w.agrees(5)

		before := w.ready()
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{wanted(2)}})
		w.passes(2 * time.Minute)
		w.agrees(2)
		require.Equal(t, before[3:], w.ready(), "the oldest go first")
		require.Equal(t, 3, w.count(nstance.EventDrainStarted, ""), "scale down drains first")

		w.r.Observe(nstance.Desired{Groups: []nstance.Group{wanted(0)}})
		w.passes(2 * time.Minute)
		w.agrees(0)
	})
}

func TestReclaim(t *testing.T) {
	within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		p := w.timing()
		w.succeeds(wanted(3))
		doomed := w.ready()[1]
		require.NoError(t, w.cloud.Reclaim(doomed, 2*time.Minute))
		w.passes(time.Second)

		mine := func(e nstance.Event) bool { return e.Instance == doomed }
		received := w.first(nstance.EventNoticeReceived, mine)
		replaced := w.first(nstance.EventReplacementRequested, func(e nstance.Event) bool { return e.Replaces == doomed })
		require.Zero(t, p.of(replaced.Instance).Sub(received.Time), "nothing stands between notice and replacement")
		drained := w.first(nstance.EventDrainStarted, mine)
		require.Zero(t, drained.Time.Sub(received.Time))
		require.True(t, drained.Drain.Deadline.Before(received.Notice.Deadline), "drained before the cloud takes it")
		require.Equal(t, 1, w.acked[received.Notice.EventID], "acknowledged once its consequence is durable")

		w.passes(90 * time.Second)
		w.agrees(3)
		require.NotContains(t, w.ready(), doomed)
		acknowledged := w.first(nstance.EventDrainAcknowledged, mine)
		require.False(t, w.first(nstance.EventDeleteRequested, mine).Time.Before(acknowledged.Time), "deleted only after the drain")
		require.Equal(t, 1, w.count(nstance.EventReplacementRequested, ""), "one loss, one replacement")
	})
}

func TestMassReclaim(t *testing.T) {
	within(t, 40, simcloud.Options{}, func(t *testing.T, w *world) {
		began := time.Now()
		for _, id := range w.ready()[:30] {
			require.NoError(t, w.cloud.Reclaim(id, 2*time.Minute))
		}
		w.passes(time.Second)
		require.Equal(t, 30, w.count(nstance.EventReplacementRequested, ""), "all at once, whatever max_surge says")
		require.Equal(t, 1, w.count(nstance.EventAlarm, ""), "and somebody is told, once")
		w.mu.Lock()
		for _, e := range w.events {
			if e.Type == nstance.EventReplacementRequested {
				require.Less(t, e.Time.Sub(began), 100*time.Millisecond)
			}
		}
		w.mu.Unlock()
		w.passes(4 * time.Minute)
		w.agrees(40)
	})
}

func TestDrainThatNobodyAcknowledgesEndsAtItsDeadline(t *testing.T) {
	within(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		w.mu.Lock()
		w.slowDrain = true
		w.mu.Unlock()
		doomed := w.ready()[0]
		require.NoError(t, w.cloud.Reclaim(doomed, 2*time.Minute))
		w.passes(5 * time.Minute)
		w.agrees(2)
		mine := func(e nstance.Event) bool { return e.Instance == doomed }
		deadline := w.first(nstance.EventDrainStarted, mine).Drain.Deadline
		require.False(t, w.first(nstance.EventDeleteRequested, mine).Time.Before(deadline))
		w.first(nstance.EventDrainCutShort, mine)
	})
}

func TestWithdrawnNotice(t *testing.T) {
	within(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		w.mu.Lock()
		w.slowDrain = true
		w.mu.Unlock()
		spared := w.ready()[0]
		require.NoError(t, w.cloud.Reclaim(spared, 10*time.Minute))
		w.passes(10 * time.Second)
		require.Contains(t, w.in(nstance.Draining), spared)
		require.NoError(t, w.cloud.Withdraw(spared))
		w.mu.Lock()
		w.slowDrain = false // only now would it acknowledge, too late
		w.mu.Unlock()
		w.passes(5 * time.Minute)
		w.agrees(2)
		require.Equal(t, 1, w.count(nstance.EventDrainCancelled, spared))
	})
}

func TestMachineThatVanishes(t *testing.T) {
	within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		lost := w.ready()[0]
		require.NoError(t, w.cloud.Kill(lost))
		w.r.Observe(nstance.Disconnected{ID: lost})
		w.passes(3 * time.Minute)
		w.agrees(3)
		require.Equal(t, 1, w.count(nstance.EventMachineGone, lost))
		require.Zero(t, w.count(nstance.EventDrainStarted, lost), "there is nothing to drain")
	})
}

func TestMachineThatIsSlowToStop(t *testing.T) {
	within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		lost := w.ready()[0]
		w.r.Observe(nstance.Disconnected{ID: lost}) // and at this moment the cloud still says running
		w.passes(500 * time.Millisecond)
		require.NoError(t, w.cloud.Stop(lost, nstance.StatusStopped))
		w.passes(5 * time.Second)
		require.Equal(t, 1, w.count(nstance.EventMachineGone, lost), "asked again before a report is missed")
		w.passes(2 * time.Minute)
		w.agrees(3)
	})
}

func TestMachineThatVanishesUnseen(t *testing.T) {
	within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		lost := w.ready()[0]
		require.NoError(t, w.cloud.Kill(lost)) // no broken stream: silence alone must find it
		w.passes(5 * time.Minute)
		w.agrees(3)
		require.NotContains(t, w.ready(), lost)
	})
}

func TestSilentMemberOfARunningMachine(t *testing.T) {
	within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		silent := w.ready()[0]
		w.mu.Lock()
		w.broken[silent] = true
		w.mu.Unlock()
		w.passes(2 * time.Minute)
		require.Contains(t, w.ready(), silent, "one missed report is not enough")
		w.passes(10 * time.Minute)
		w.agrees(3)
		require.Equal(t, 1, w.count(nstance.EventUnhealthy, silent))
		require.Equal(t, 1, w.count(nstance.EventDrainStarted, silent), "it runs, so it is drained")
	})
}

func TestProviderErrorsDeleteNothing(t *testing.T) {
	within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		before := w.ready()
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpGet, Times: -1})
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpList, Times: -1})
		for _, id := range before {
			w.r.Observe(nstance.Disconnected{ID: id})
		}
		w.passes(30 * time.Minute)
		require.Equal(t, before, w.ready())
		require.Len(t, w.cloud.Machines(), 3)
	})
}

func TestRollout(t *testing.T) {
	within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		next := wanted(3)
		next.Definition.UserData.Content = "v2"
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{next}})
		for range 60 {
			w.passes(10 * time.Second)
			require.GreaterOrEqual(t, len(w.ready()), 3, "replacement first: never fewer ready than wanted")
			require.LessOrEqual(t, len(w.cloud.Machines()), 4, "one spare, or one leaving")
		}
		w.agrees(3)
		for _, v := range w.r.Instances() {
			require.False(t, v.Drifted)
		}
		require.Equal(t, 3, w.count(nstance.EventDrainStarted, ""))
	})
}

func TestBadImageHaltsTheRolloutAndTheGroupServes(t *testing.T) {
	within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		before := w.ready()
		w.mu.Lock()
		w.badImage = func(spec nstance.MachineSpec) bool { return string(spec.UserData) == "bad" }
		w.mu.Unlock()
		next := wanted(3)
		next.Definition.UserData.Content = "bad"
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{next}})
		w.passes(time.Hour)
		require.Equal(t, before, w.ready(), "nobody was sacrificed")
		require.Equal(t, 1, w.count(nstance.EventRolloutHalted, ""))
		require.NotEmpty(t, w.group().Halted)

		// A reclaim meanwhile does not import the bad image.
		require.NoError(t, w.cloud.Reclaim(before[0], 2*time.Minute))
		w.passes(3 * time.Minute)
		require.Len(t, w.ready(), 3)
		for _, m := range w.cloud.Machines() {
			spec, _ := w.cloud.Spec(m.ID)
			require.Equal(t, "v1", string(spec.UserData))
		}
		// And a new leader knows that it is halted.
		w.depose()
		w.lead(next)
		w.passes(time.Hour)
		require.Len(t, w.ready(), 3)
		require.NotEmpty(t, w.group().Halted)
	})
}

func TestCapacityShortageBacksOff(t *testing.T) {
	within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		w.cloud.SetCapacity(simcloud.Pool{InstanceType: "small"}, 3)
		calls := w.cloud.Count(simcloud.OpCreate)
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{wanted(5)}})
		w.passes(time.Hour)
		require.Len(t, w.ready(), 3)
		require.Less(t, w.cloud.Count(simcloud.OpCreate)-calls, 80, "a shortage costs a handful of calls, not a storm")
		require.Zero(t, w.count(nstance.EventRolloutHalted, ""), "and is no fault of the image")

		w.cloud.SetCapacity(simcloud.Pool{InstanceType: "small"}, 5)
		w.passes(10 * time.Minute)
		w.agrees(5)
	})
}

func TestSoldOutShapesAreTriedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		g := wanted(3)
		g.Definition.InstanceTypes = []string{"small", "medium"}
		g.Definition.Market = nstance.Market{Type: nstance.Spot, Fallback: nstance.OnDemand, FallbackAfter: 10 * time.Minute}
		w.cloud.SetCapacity(simcloud.Pool{InstanceType: "small"}, 0)
		w.lead(g)
		w.passes(5 * time.Minute)
		w.agrees(3)
		require.Equal(t, map[string]int{"medium/spot": 3}, w.shapes())

		// No spot at all: after a while on-demand capacity is bought.
		w.cloud.SetCapacity(simcloud.Pool{Market: nstance.Spot}, 3)
		g.Size = 5
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{g}})
		w.passes(8 * time.Minute)
		require.Len(t, w.ready(), 3, "not before its time")
		w.cloud.SetCapacity(simcloud.Pool{InstanceType: "small"}, -1)
		w.passes(15 * time.Minute)
		w.agrees(5)
		require.Equal(t, map[string]int{"medium/spot": 3, "small/on-demand": 2}, w.shapes())
	})
}

func TestLostAnswers(t *testing.T) {
	for _, when := range []simcloud.When{simcloud.Before, simcloud.After} {
		for _, op := range []simcloud.Op{simcloud.OpCreate, simcloud.OpDelete, simcloud.OpGet, simcloud.OpList} {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, simcloud.Options{})
				defer w.close()
				w.cloud.Inject(simcloud.Fault{Op: op, Times: 2, When: when})
				w.lead(wanted(3))
				w.passes(5 * time.Minute)
				w.agrees(3)
				w.r.Observe(nstance.Desired{Groups: []nstance.Group{wanted(1)}})
				w.passes(5 * time.Minute)
				w.agrees(1)
				require.LessOrEqual(t, w.count(nstance.EventCreated, ""), 3, "no second machine for a lost answer (%s %v)", op, when)
			})
		}
	}
}

func TestNewLeaderContinues(t *testing.T) {
	within(t, 4, simcloud.Options{}, func(t *testing.T, w *world) {
		w.mu.Lock()
		w.slowDrain = true
		w.mu.Unlock()
		doomed := w.ready()[0]
		require.NoError(t, w.cloud.Reclaim(doomed, 4*time.Minute))
		w.passes(10 * time.Second)
		started := w.first(nstance.EventDrainStarted, func(e nstance.Event) bool { return e.Instance == doomed })
		w.depose()
		w.lead(wanted(4))
		w.passes(time.Second)
		r, drains := w.leader()
		v, err := r.Instance(doomed)
		require.NoError(t, err)
		require.Equal(t, started.Drain.Deadline, v.Drain.Deadline, "the deadline is durable")
		require.Equal(t, started.Drain.Generation, drains.Active()[0].Generation, "the event is repeated with the same generation")
		w.passes(6 * time.Minute)
		w.agrees(4)
		require.Equal(t, 1, w.count(nstance.EventReplacementRequested, ""), "and nothing is done twice")
	})
}

func TestLeaderThatDiesBetweenIntentAndMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Times: 3, When: simcloud.Before})
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Times: 3, When: simcloud.Before})
		w.lead(wanted(3))
		w.passes(100 * time.Millisecond)
		w.depose()
		require.Empty(t, w.cloud.Machines())
		w.cloud.Heal()
		w.lead(wanted(3))
		w.passes(3 * time.Minute)
		w.agrees(3)
		require.Equal(t, 3, w.count(nstance.EventCreateRequested, ""), "the same intents, carried on")
	})
}

// TestIntentThatLandsLate promises that an intent which a former leader sent
// and which landed after this one had read the records does not stand for ever.
func TestIntentThatLandsLate(t *testing.T) {
	within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		before := w.ready()
		id, err := nstance.NewInstanceID("web", time.Now())
		require.NoError(t, err)
		former := storage.NewRecords(w.store, "s1", &storage.RecordsOptions{Epoch: w.epoch})
		intent, ok := w.r.Records().Get(before[0])
		require.True(t, ok)
		intent.ID, intent.CreatedAt, intent.RegisteredAt = id, id.Time(), time.Time{}
		_, err = former.Create(w.ctx, intent)
		require.NoError(t, err)
		w.passes(15 * time.Minute)
		_, err = w.store.Get(w.ctx, keyIn(web.Group, id))
		require.ErrorIs(t, err, nstance.NotFound)
		require.Equal(t, before, w.ready())
		require.Len(t, w.cloud.Machines(), 3)
	})
}

// TestIntentThatLandsLateForNobody promises that such an intent becomes no
// machine when its group is not wanted by anybody any more, and goes: nobody would
// ever take that machine away.
func TestIntentThatLandsLateForNobody(t *testing.T) {
	within(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		id, err := nstance.NewInstanceID("web", time.Now())
		require.NoError(t, err)
		intent, ok := w.r.Records().Get(w.ready()[0])
		require.True(t, ok)
		intent.ID, intent.Group, intent.CreatedAt, intent.RegisteredAt, intent.CreatedEpoch = id, "removed", id.Time(), time.Time{}, w.epoch-1
		_, err = storage.NewRecords(w.store, "s1", &storage.RecordsOptions{Epoch: w.epoch}).Create(w.ctx, intent)
		require.NoError(t, err)
		w.passes(30 * time.Minute)
		require.Len(t, w.cloud.Machines(), 1)
		_, ok = w.r.Records().Get(id)
		require.False(t, ok, "once it is too late for a machine")
	})
}

func TestUnreadableRecordIsNotAbsence(t *testing.T) {
	within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		victim := w.ready()[0]
		key := storage.Ref{Shard: "s1", Tenant: web.Tenant, Group: web.Group, ID: victim}.Key()
		obj, err := w.store.Get(w.ctx, key)
		require.NoError(t, err)
		_, err = w.store.PutIfMatch(w.ctx, key, []byte("{torn"), obj.Version)
		require.NoError(t, err)
		w.depose()
		w.lead(wanted(3))
		w.passes(30 * time.Minute)
		require.Len(t, w.cloud.Machines(), 3, "neither replaced nor deleted")
		require.Equal(t, 1, w.count(nstance.EventRecordUnreadable, victim))
		require.Contains(t, w.r.Problems()[0], key)
		require.NotEmpty(t, w.group().Holds)
	})
}

func TestRequests(t *testing.T) {
	within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		ids := w.ready()
		d, err := w.r.Drain(w.ctx, ids[0], "maintenance")
		require.NoError(t, err)
		require.Equal(t, ids[0], d.Instance)
		require.Equal(t, nstance.CauseRequest, d.Causes[0].Kind)
		require.NoError(t, w.r.Delete(w.ctx, ids[1], "broken", true))
		require.Zero(t, w.count(nstance.EventDrainStarted, ids[1]))
		_, err = w.r.Drain(w.ctx, "web00000000000000000000000000", "")
		require.ErrorIs(t, err, nstance.NotFound)
		w.passes(3 * time.Minute)
		w.agrees(3)
		require.Equal(t, ids[2:], w.ready()[:1])
	})
}

// TestRequestsInAGroupThatNobodyNames: who is asked to go goes, and nobody else.
func TestRequestsInAGroupThatNobodyNames(t *testing.T) {
	forgotten := func(t *testing.T, play func(t *testing.T, w *world, ids []nstance.InstanceID)) {
		within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.succeeds()
			ids := w.ready()
			require.Len(t, ids, 3)
			play(t, w, ids)
			w.passes(30 * time.Minute)
			require.Equal(t, ids[2:], w.ready()[:1])
			w.want(wanted(3))
			w.passes(10 * time.Minute)
			w.agrees(3) // as before, once somebody names it
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
			w.passes(30 * time.Minute)
			require.Len(t, w.cloud.Machines(), 1, "both are gone, and nobody came")
		})
	})
	t.Run("nobody answers the drain", func(t *testing.T) {
		forgotten(t, func(t *testing.T, w *world, ids []nstance.InstanceID) {
			w.slowDrain = true
			require.NoError(t, w.r.Tune(reconcile.Tuning{DrainTimeout: 2 * time.Minute}))
			require.NoError(t, w.r.Delete(soon(t), ids[0], "", false))
			require.NoError(t, w.r.Delete(soon(t), ids[1], "", false))
			w.passes(100 * time.Second)
			require.Len(t, w.cloud.Machines(), 3)
			w.passes(time.Minute)
			require.Len(t, w.cloud.Machines(), 1, "the deadline has passed")
		})
	})
	t.Run("the next leader goes on with it", func(t *testing.T) {
		forgotten(t, func(t *testing.T, w *world, ids []nstance.InstanceID) {
			w.slowDrain = true
			require.NoError(t, w.r.Delete(soon(t), ids[0], "", false))
			w.succeeds()
			require.Len(t, w.cloud.Machines(), 3)
			w.passes(4 * time.Minute)
			require.Len(t, w.cloud.Machines(), 2)
			require.NoError(t, w.r.Delete(soon(t), ids[1], "", true))
		})
	})
	t.Run("a freeze refuses at once", func(t *testing.T) {
		within(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
			w.succeeds()
			require.NoError(t, w.r.Freeze(t.Context(), web, "not now"))
			require.ErrorIs(t, w.r.Delete(soon(t), w.ready()[0], "", false), nstance.Conflict)
		})
	})
}

func TestDrainTimeoutZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		g := wanted(2)
		g.DrainTimeout = 0
		w.lead(g)
		w.passes(time.Minute)
		doomed := w.ready()[0]
		require.NoError(t, w.cloud.Reclaim(doomed, 2*time.Minute))
		w.passes(time.Minute)
		w.agrees(2)
		require.Zero(t, w.count(nstance.EventDrainStarted, ""))
	})
}

func TestNoTimeoutsNeverRunOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{Boot: simcloud.Constant(20 * time.Minute)})
		defer w.close()
		g := wanted(2)
		g.Definition.LaunchTimeout, g.Definition.RegistrationTimeout = 0, 0
		w.lead(g)
		w.passes(30 * time.Minute)
		w.agrees(2)
		require.Equal(t, 2, w.cloud.Count(simcloud.OpCreate), "slow machines are waited for")
	})
}

// TestStorageCallsOfALife counts what one healthy life costs: three puts and
// one delete, no reads, one more put for a drain.
func TestStorageCallsOfALife(t *testing.T) {
	within(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		counted := &counting{Store: w.store}
		w.depose()
		w.store = counted
		w.lead(wanted(1))
		w.passes(2 * time.Minute)
		counted.reset()
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{wanted(2)}})
		w.passes(2 * time.Minute)
		require.Equal(t, calls{puts: 2}, counted.take(), "intent and registration")
		id := w.ready()[1]
		require.NoError(t, w.cloud.Reclaim(id, 2*time.Minute))
		w.passes(3 * time.Minute)
		require.Equal(t, calls{puts: 2 + 2, deletes: 1}, counted.take(), "drain and mark; and its replacement's first two")
	})
}
