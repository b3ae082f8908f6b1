package reconcile_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// cancelled is one call of Cancel.
type cancelled struct {
	id         nstance.InstanceID
	generation uint64
}

// drainSpy is a coordinator that records calls of Cancel.
type drainSpy struct {
	*drain.Coordinator
	mu        sync.Mutex
	cancelled []cancelled
}

func (s *drainSpy) Cancel(ctx context.Context, id nstance.InstanceID, generation uint64) error {
	s.mu.Lock()
	s.cancelled = append(s.cancelled, cancelled{id, generation})
	s.mu.Unlock()
	return s.Coordinator.Cancel(ctx, id, generation)
}

func (s *drainSpy) calls() []cancelled {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cancelled
}

// operatorConnected is a coordinator with an operator connected from the start.
type operatorConnected struct{ *drain.Coordinator }

func (operatorConnected) HasExecutor(nstance.TenantID) bool { return true }

// instanceWrites are the writes of records that exist.
func instanceWrites(mode storagetest.Mode) storagetest.Fault {
	return storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: "instance/", Times: -1, Mode: mode}
}

// TestCancelIsDurableFirst: a drain is cancelled after the record says so, and only the
// recorded generation.
func TestCancelIsDurableFirst(t *testing.T) {
	withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		faulty, spy := storagetest.NewFaulty(w.store), &drainSpy{}
		w.wrap = func(o *leaderEnv) {
			o.store = faulty
			o.options = func(opts *reconcile.Options) {
				spy.Coordinator = opts.Drains.(*drain.Coordinator)
				opts.Drains = spy
			}
		}
		w.changeLeader(webGroup(2))
		w.slow(true)
		w.advance(10 * time.Second)
		spared := w.ready()[0]
		require.NoError(t, w.cloud.Reclaim(spared, 10*time.Minute))
		w.advance(10 * time.Second)
		started := w.first(nstance.EventDrainStarted, func(e nstance.Event) bool { return e.Instance == spared }).Drain

		faulty.Inject(instanceWrites(storagetest.Refuse))
		require.NoError(t, w.cloud.Withdraw(spared))
		w.advance(30 * time.Second)
		require.Empty(t, spy.calls(), "the record still has the drain")
		require.Zero(t, w.count(nstance.EventDrainCancelled, spared))
		d, ok := w.drains.Of(spared)
		require.True(t, ok)
		require.Equal(t, started.Generation, d.Generation)
		faulty.ClearFaults()
		w.advance(15 * time.Second)
		require.Equal(t, []cancelled{{spared, started.Generation}}, spy.calls())
		require.Equal(t, 1, w.count(nstance.EventDrainCancelled, spared))
	})
}

// TestLateDrainKeepsItsExecutor: a drain written by a former leader that lands when the
// next leader writes its own stays in force, with its executor.
func TestLateDrainKeepsItsExecutor(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		faulty := storagetest.NewFaulty(w.store)
		w.wrap = func(o *leaderEnv) { o.store = faulty }
		w.changeLeader(webGroup(3))
		w.slow(true)
		w.advance(10 * time.Second)
		id := w.ready()[0]
		faulty.Inject(instanceWrites(storagetest.Late))
		require.NoError(t, w.cloud.Reclaim(id, 30*time.Minute))
		w.advance(5 * time.Second)
		require.Contains(t, w.in(nstance.Draining), id)
		w.stopLeader()
		faulty.ClearFaults()
		rec, err := w.r.Admin().Internals().Records().Refresh(w.ctx, id)
		require.NoError(t, err)
		require.Nil(t, rec.Drain, "not landed yet")

		faulty.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: "instance/", Pass: true, Do: faulty.ApplyLate})
		w.wrap = func(o *leaderEnv) {
			o.store = faulty
			o.options = func(opts *reconcile.Options) { opts.Drains = operatorConnected{opts.Drains.(*drain.Coordinator)} }
		}
		w.startLeader(webGroup(3))
		w.advance(2 * time.Minute)
		require.Equal(t, nstance.ExecutorAgent, w.recordedExecutor(id), "the new leader would have chosen the operator")
		rec, err = w.r.Admin().Internals().Records().Refresh(w.ctx, id)
		require.NoError(t, err)
		require.EqualValues(t, 1, rec.Drain.Generation)
		v, err := w.r.Instance(id)
		require.NoError(t, err)
		require.Equal(t, nstance.ExecutorAgent, v.Drain.Executor)
		require.Zero(t, w.count(nstance.EventDrainReassigned, ""))
	})
}

// TestDrainWaits: where a group has it wait, a drain has no deadline, under the next leader
// neither, and its group says for what it waits, until a cause joins that does not wait.
func TestDrainWaits(t *testing.T) {
	waiting := webGroup(3)
	waiting.OnDrainTimeout = nstance.DrainTimeoutWait
	began := func(t *testing.T, test func(t *testing.T, w *world, d nstance.Drain)) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.connectExecutor(nstance.DefaultTenant)
			w.setGroupAndAdvance(waiting, 10*time.Second)
			d := w.drainFirst()
			require.Equal(t, nstance.ExecutorOperator, d.Executor)
			w.advance(time.Hour)
			require.True(t, drainOf(w, d.Instance).Unlimited())
			require.Contains(t, w.hold(plan.HoldDrain).Reason, "the operator, names no obstacle; the drain began at "+d.StartedAt.Format(time.RFC3339))
			blocked := nstance.Ack{Instance: d.Instance, Generation: d.Generation, By: d.Executor, Outcome: nstance.OutcomeBlocked, Message: "pod shop/web-0: budget web"}
			require.NoError(t, w.drains.Acknowledge(w.ctx, blocked))
			w.advance(time.Second)
			require.Equal(t, string(d.Instance)+" waits without limit to be empty: pod shop/web-0: budget web", w.hold(plan.HoldDrain).Reason)
			require.True(t, slices.ContainsFunc(w.r.Admin().Attention(), func(a reconcile.Attention) bool { return a.Kind == "drain" && a.Remedy != "" }))
			unblocked := blocked
			unblocked.Message = ""
			require.NoError(t, w.drains.Acknowledge(w.ctx, unblocked))
			w.advance(time.Second)
			require.Equal(t, string(d.Instance)+" waits without limit to be empty: its executor, the operator, names no obstacle; the drain began at "+d.StartedAt.Format(time.RFC3339), w.hold(plan.HoldDrain).Reason)
			require.Zero(t, w.count(nstance.EventDrainAcknowledged, d.Instance))
			test(t, w, d)
		})
	}
	t.Run("its hook fails", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.setGroupAndAdvance(waiting, 10*time.Second)
			d := w.drainFirst()
			require.NoError(t, w.drains.Acknowledge(w.ctx, nstance.Ack{Instance: d.Instance, Generation: d.Generation, By: d.Executor, Outcome: nstance.OutcomeFailed, Message: "exit status 1"}))
			w.advance(time.Hour)
			require.Zero(t, w.count(nstance.EventDeleteRequested, d.Instance))
			require.Contains(t, w.hold(plan.HoldDrain).Reason, "its executor gave up: exit status 1")
			require.NoError(t, w.r.Delete(w.ctx, d.Instance, "", true))
			w.advance(time.Minute)
			require.Equal(t, 1, w.count(nstance.EventDeleted, d.Instance))
		})
	})
	t.Run("it is empty at last", func(t *testing.T) {
		began(t, func(t *testing.T, w *world, d nstance.Drain) {
			require.NoError(t, w.drains.Acknowledge(w.ctx, nstance.Ack{Instance: d.Instance, Generation: d.Generation, By: d.Executor, Outcome: nstance.OutcomeDrained}))
			w.advance(time.Minute)
			require.Equal(t, 1, w.count(nstance.EventDeleted, d.Instance))
			require.Zero(t, w.count(nstance.EventDrainCutShort, d.Instance))
			require.Empty(t, w.group().Holds)
		})
	})
	t.Run("the group waits no more", func(t *testing.T) {
		began(t, func(t *testing.T, w *world, d nstance.Drain) {
			w.stopLeader()
			w.startLeader(waiting)
			w.connectExecutor(nstance.DefaultTenant)
			w.advance(time.Hour)
			require.True(t, drainOf(w, d.Instance).Unlimited())
			w.setGroupAndAdvance(webGroup(3), time.Second)
			require.WithinDuration(t, time.Now().Add(waiting.DrainTimeout), drainOf(w, d.Instance).Deadline, 2*time.Second)
			w.advance(waiting.DrainTimeout + time.Minute)
			require.Equal(t, 1, w.count(nstance.EventDrainCutShort, d.Instance))
		})
	})
	t.Run("a notice comes", func(t *testing.T) {
		began(t, func(t *testing.T, w *world, d nstance.Drain) {
			require.NoError(t, w.cloud.Reclaim(d.Instance, 2*time.Minute))
			w.advance(5 * time.Second)
			require.False(t, drainOf(w, d.Instance).Unlimited())
			require.False(t, drainOf(w, d.Instance).Voluntary)
			require.Empty(t, w.group().Holds)
		})
	})
}

// TestFailedDrainContinues: a failure is recorded and does not end the drain, unless it
// is final.
func TestFailedDrainContinues(t *testing.T) {
	withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		d := w.drainFirst()
		ack := nstance.Ack{Instance: d.Instance, Generation: d.Generation, By: d.Executor, Outcome: nstance.OutcomeFailed, Message: "a budget forbids it"}
		require.NoError(t, w.drains.Acknowledge(w.ctx, ack))
		w.advance(time.Until(d.Deadline) - time.Second)
		require.Equal(t, 1, w.count(nstance.EventDrainAcknowledged, d.Instance))
		require.Zero(t, w.count(nstance.EventDeleteRequested, d.Instance))
		w.advance(2 * time.Second)
		require.Equal(t, 1, w.count(nstance.EventDrainCutShort, d.Instance), "ended by the deadline")

		w.advance(2 * time.Minute)
		d = w.drainFirst()
		ack.Instance, ack.Generation, ack.Delete = d.Instance, d.Generation, true
		require.NoError(t, w.drains.Acknowledge(w.ctx, ack))
		w.advance(10 * time.Second)
		require.Equal(t, 1, w.count(nstance.EventDeleted, d.Instance))
		require.Zero(t, w.count(nstance.EventDrainCutShort, d.Instance))
	})
}

// TestDrainRequestIsRecordedBeforeAnswer: a successful answer means that the cause is in
// the record.
func TestDrainRequestIsRecordedBeforeAnswer(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		faulty := storagetest.NewFaulty(w.store)
		w.wrap = func(o *leaderEnv) { o.store = faulty }
		w.changeLeader(webGroup(3))
		w.slow(true)
		w.advance(10 * time.Second)
		id := w.ready()[0]
		require.NoError(t, w.cloud.Reclaim(id, time.Hour))
		w.advance(10 * time.Second)
		require.Contains(t, w.in(nstance.Draining), id)

		faulty.Inject(instanceWrites(storagetest.Refuse))
		ctx, cancel := context.WithTimeout(w.ctx, 20*time.Second)
		defer cancel()
		_, err := w.r.Drain(ctx, id, requester)
		require.ErrorIs(t, err, nstance.Unavailable, "the drain has another cause, which may be withdrawn")
		faulty.ClearFaults()
		d, err := w.r.Drain(w.ctx, id, requester)
		require.NoError(t, err)
		require.Contains(t, d.Causes, nstance.Cause{Kind: nstance.CauseRequest, Message: requester})
		rec, err := w.r.Admin().Internals().Records().Refresh(w.ctx, id)
		require.NoError(t, err)
		require.Equal(t, d.Causes, rec.Drain.Causes)

		require.NoError(t, w.cloud.Withdraw(id))
		w.advance(time.Minute)
		require.Contains(t, w.in(nstance.Draining), id, "it drains for the request")
	})
}

// TestNoticeIsAcknowledgedWhenWithdrawn: a withdrawal acknowledges the notice whose
// consequence was not recorded yet.
func TestNoticeIsAcknowledgedWhenWithdrawn(t *testing.T) {
	withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		faulty := storagetest.NewFaulty(w.store)
		w.wrap = func(o *leaderEnv) { o.store = faulty }
		w.changeLeader(webGroup(2))
		id := w.ready()[0]
		faulty.Inject(instanceWrites(storagetest.Refuse))
		n := nstance.Notice{Kind: nstance.Reclaim, Source: "test", EventID: "e1", Deadline: time.Now().Add(time.Hour), DetectedAt: time.Now()}
		var acked, ended bool
		w.r.Observe(nstance.Noticed{ID: id, Notice: n, Ack: func() { acked = true }})
		w.advance(5 * time.Second)
		require.False(t, acked, "not recorded yet")
		n.Cancelled = true
		w.r.Observe(nstance.Noticed{ID: id, Notice: n, Ack: func() { ended = true }})
		w.advance(time.Second)
		require.True(t, acked)
		require.True(t, ended)
		faulty.ClearFaults()
		w.advance(time.Minute)
		require.Contains(t, w.ready(), id)
	})
}

// TestNoticeAboutPreservedMember: it is recorded and acknowledged, and handled when the
// preservation ends.
func TestNoticeAboutPreservedMember(t *testing.T) {
	for name, draining := range map[string]bool{"ready": false, "that was draining": true} {
		t.Run(name, func(t *testing.T) {
			withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
				w.slow(true)
				w.advance(10 * time.Second)
				id := w.ready()[0]
				if draining {
					_, err := w.r.Drain(w.ctx, id, requester)
					require.NoError(t, err)
				}
				require.NoError(t, w.r.Admin().Preserve(w.ctx, id, time.Now().Add(6*time.Hour), requester))
				w.advance(time.Minute)
				require.NoError(t, w.cloud.Reclaim(id, 12*time.Hour))
				w.advance(10 * time.Second)
				e := w.first(nstance.EventNoticeReceived, func(e nstance.Event) bool { return e.Instance == id })
				require.Contains(t, e.Reason, "preserved")
				require.Positive(t, w.acked[e.Notice.EventID])
				recorded := func() []nstance.Notice {
					rec, err := w.r.Admin().Internals().Records().Refresh(w.ctx, id)
					require.NoError(t, err)
					return rec.Notices
				}
				require.Len(t, recorded(), 1)

				w.silenceAgents(id) // its agent does not repeat it
				w.changeLeader(webGroup(3))
				v, err := w.r.Instance(id)
				require.NoError(t, err)
				require.Len(t, v.Notices, 1)
				require.Zero(t, w.count(nstance.EventDeleteRequested, id))
				require.NoError(t, w.r.Admin().Preserve(w.ctx, id, time.Now(), requester))
				w.advance(10 * time.Minute)
				require.Equal(t, 1, w.count(nstance.EventDeleted, id))
			})
		})
	}
	t.Run("withdrawn", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			id := w.ready()[0]
			require.NoError(t, w.r.Admin().Preserve(w.ctx, id, time.Now().Add(6*time.Hour), requester))
			w.advance(time.Minute)
			require.NoError(t, w.cloud.Reclaim(id, 12*time.Hour))
			w.advance(10 * time.Second)
			require.NoError(t, w.cloud.Withdraw(id))
			w.advance(10 * time.Second)
			rec, err := w.r.Admin().Internals().Records().Refresh(w.ctx, id)
			require.NoError(t, err)
			require.Empty(t, rec.Notices)
		})
	})
}

// TestUnreadableLastGoodDefinition: the hold names the definition.
func TestUnreadableLastGoodDefinition(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		require.NoError(t, w.r.Admin().Pause(t.Context(), web, ""))
		w.setGroups(groupWithUserData(3, "v2"))
		w.advance(time.Minute)
		w.stopLeader()
		var kept []storage.Object
		for e, err := range w.store.List(t.Context(), "definition/", "") {
			require.NoError(t, err)
			obj, err := w.store.Get(t.Context(), e.Key)
			require.NoError(t, err)
			kept = append(kept, obj)
			require.NoError(t, w.store.DeleteIfMatch(t.Context(), e.Key, e.Version))
		}
		require.Len(t, kept, 1)
		w.startLeader(groupWithUserData(3, "v2"))
		w.advance(2 * time.Minute)
		require.False(t, w.hasHold(plan.HoldDefinition), "not needed yet")
		require.NoError(t, w.cloud.Reclaim(w.ready()[0], 2*time.Minute))
		w.advance(30 * time.Second)
		h := w.hold(plan.HoldDefinition)
		require.Contains(t, h.Reason, "the last good definition")
		require.Contains(t, h.Reason, "resume the rollout")
		require.Len(t, w.holdEvents(web, plan.HoldDefinition), 1)

		_, err := w.store.PutIfAbsent(t.Context(), kept[0].Key, kept[0].Data)
		require.NoError(t, err)
		w.advance(3 * time.Minute)
		require.False(t, w.hasHold(plan.HoldDefinition))
		require.Equal(t, map[string]int{"v1": 3}, w.userDataVersions())
	})
}

// TestCutShortDrainIsRecorded: the record distinguishes a drain that hit its deadline
// from an acknowledged one.
func TestCutShortDrainIsRecorded(t *testing.T) {
	for name, acknowledged := range map[string]bool{"deadline": false, "emptied": true} {
		t.Run(name, func(t *testing.T) {
			withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
				p := w.timing()
				w.changeLeader(webGroup(2))
				p.slow(false, true)
				d := w.drainFirst()
				if acknowledged {
					ack := nstance.Ack{Instance: d.Instance, Generation: d.Generation, By: d.Executor, Outcome: nstance.OutcomeDrained}
					require.NoError(t, w.drains.Acknowledge(w.ctx, ack))
				}
				for w.count(nstance.EventDeleteRequested, d.Instance) == 0 {
					w.advance(time.Second)
				}
				rec, err := w.r.Admin().Internals().Records().Refresh(w.ctx, d.Instance)
				require.NoError(t, err)
				require.NotNil(t, rec.Deleting)
				require.Equal(t, !acknowledged, rec.CutShort)
			})
		})
	}
}

// TestDeleteWithoutDrainEndsDrain: at once, and not as cut short.
func TestDeleteWithoutDrainEndsDrain(t *testing.T) {
	withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		d := w.drainFirst()
		require.NoError(t, w.r.Delete(w.ctx, d.Instance, requester, true))
		w.advance(time.Minute)
		require.Equal(t, 1, w.count(nstance.EventDeleted, d.Instance))
		require.Zero(t, w.count(nstance.EventDrainCutShort, d.Instance))
	})
}

// TestNoticesOnlyTighten: a repeated notice with a later deadline does not extend the
// deadline.
func TestNoticesOnlyTighten(t *testing.T) {
	withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		w.slow(true)
		w.advance(10 * time.Second)
		id := w.ready()[0]
		n := nstance.Notice{Kind: nstance.Reclaim, Source: "test", EventID: "e1", Deadline: time.Now().Add(3 * time.Minute), DetectedAt: time.Now()}
		announce := func(in time.Duration) {
			n.Deadline = time.Now().Add(in)
			w.r.Observe(nstance.Noticed{ID: id, Notice: n})
			w.advance(time.Second)
		}
		drainEnd := func() time.Time {
			d, ok := w.drains.Of(id)
			require.True(t, ok)
			return d.Deadline
		}
		announce(3 * time.Minute)
		first, noticed := drainEnd(), n.Deadline
		announce(time.Hour)
		require.Equal(t, first, drainEnd())
		v, err := w.r.Instance(id)
		require.NoError(t, err)
		require.Equal(t, []time.Time{noticed}, []time.Time{v.Notices[0].Deadline})
		announce(time.Minute)
		require.True(t, drainEnd().Before(first))
		rec, err := w.r.Admin().Internals().Records().Refresh(w.ctx, id)
		require.NoError(t, err)
		require.True(t, drainEnd().Equal(rec.Drain.Deadline))
	})
}

// TestDroppedNoticeStaysDropped: a notice that the cloud did not execute stays dropped,
// though the agent still reports it.
func TestDroppedNoticeStaysDropped(t *testing.T) {
	withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		require.NoError(t, w.r.Admin().Freeze(w.ctx, web, "keep the member"))
		id := w.ready()[0]
		n := nstance.Notice{Kind: nstance.Reclaim, Source: "test", EventID: "e1", Deadline: time.Now().Add(2 * time.Minute), DetectedAt: time.Now()}
		acks := 0
		w.r.Observe(nstance.Noticed{ID: id, Notice: n, Ack: func() { acks++ }})
		w.advance(30 * time.Minute) // the provider was asked meanwhile
		require.Equal(t, 1, acks)
		notices := func() []nstance.Notice {
			v, err := w.r.Instance(id)
			require.NoError(t, err)
			return v.Notices
		}
		require.Empty(t, notices())
		w.r.Observe(nstance.Reported{Report: nstance.Report{InstanceID: id, Timestamp: time.Now(), CanDrain: true, Notices: []nstance.Notice{n}}})
		w.r.Observe(nstance.Noticed{ID: id, Notice: n, Ack: func() { acks++ }})
		w.advance(time.Second)
		require.Empty(t, notices())
		require.Equal(t, 2, acks, "no consequence")
		require.NoError(t, w.r.Admin().Thaw(w.ctx, web, requester))
		w.advance(10 * time.Minute)
		require.Zero(t, w.count(nstance.EventDrainStarted, id))
		require.Equal(t, 1, w.count(nstance.EventNoticeReceived, id))
	})
}

// TestReclaimWarning: a reclaim without deadline is drained within the warning that the
// cloud gives the machine, or in the shortest of any cloud.
func TestReclaimWarning(t *testing.T) {
	for _, c := range []struct{ warning, drain time.Duration }{{0, 20 * time.Second}, {2 * time.Minute, 110 * time.Second}} {
		t.Run(c.warning.String(), func(t *testing.T) {
			withGroup(t, 2, simcloud.Options{ReclaimWarning: c.warning}, func(t *testing.T, w *world) {
				w.slow(true)
				id, detected := w.ready()[0], time.Now()
				w.r.Observe(nstance.Noticed{ID: id, Notice: nstance.Notice{
					Kind: nstance.Reclaim, Action: "preempt", Source: "test", EventID: "e1", DetectedAt: detected,
				}})
				w.advance(5 * time.Second)
				drain := w.first(nstance.EventDrainStarted, func(e nstance.Event) bool { return e.Instance == id }).Drain
				require.WithinDuration(t, detected.Add(c.drain), drain.Deadline, time.Second)
				v, err := w.r.Admin().Instance(id)
				require.NoError(t, err)
				require.Len(t, v.Notices, 1)
				require.Equal(t, c.warning, v.Notices[0].Warning)
				require.Zero(t, v.Notices[0].Deadline, "it is not the cloud's")
			})
		})
	}
}
