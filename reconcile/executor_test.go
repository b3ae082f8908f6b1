package reconcile_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// executorGrace is how long a drain waits for an executor that is gone.
const executorGrace = 10 * time.Second

// drainFirst requests a drain of the first ready instance, with agents that acknowledge
// none.
func (w *world) drainFirst() nstance.Drain {
	w.t.Helper()
	w.slow(true)
	w.advance(10 * time.Second) // every agent has seen that
	d, err := w.r.Drain(w.ctx, w.ready()[0], requester)
	require.NoError(w.t, err)
	return d
}

// connectExecutor connects an operator that executes a tenant's drains. The returned function
// disconnects it.
func (w *world) connectExecutor(tenant nstance.TenantID) (remove func()) {
	_, drains := w.leader()
	return drains.AddExecutor(tenant)
}

func (w *world) slow(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.slowDrain = on
}

// reportsHook has the agent of an instance report, with its drain hook.
func (w *world) reportsHook(id nstance.InstanceID) {
	w.r.Observe(nstance.Reported{Report: nstance.Report{InstanceID: id, Timestamp: time.Now(), CanDrain: true}})
}

// recordedExecutor returns the recorded executor of an instance's drain.
func (w *world) recordedExecutor(id nstance.InstanceID) nstance.Executor {
	w.t.Helper()
	r, drains := w.leader()
	rec, err := r.Admin().Internals().Records().Refresh(w.ctx, id)
	require.NoError(w.t, err)
	require.NotNil(w.t, rec.Drain)
	d, ok := drains.Of(id)
	require.True(w.t, ok)
	require.Equal(w.t, rec.Drain.Executor, d.Executor, "the announced executor is the recorded one")
	return rec.Drain.Executor
}

// TestDisconnectedExecutorLosesDrain: the drains of an operator that stays disconnected
// are reassigned.
func TestDisconnectedExecutorLosesDrain(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		remove := w.connectExecutor(nstance.DefaultTenant)
		d := w.drainFirst()
		require.Equal(t, nstance.ExecutorOperator, d.Executor)
		ack := func(by nstance.Executor, outcome nstance.Outcome) error {
			return w.drains.Acknowledge(w.ctx, nstance.Ack{Instance: d.Instance, Generation: d.Generation, By: by, Outcome: outcome})
		}

		w.advance(time.Minute)
		require.Equal(t, nstance.ExecutorOperator, w.recordedExecutor(d.Instance), "a connected operator keeps its drain")
		remove()
		w.advance(9 * time.Second)
		require.Equal(t, nstance.ExecutorOperator, w.recordedExecutor(d.Instance), "it may reconnect")
		remove = w.connectExecutor(nstance.DefaultTenant)
		w.advance(time.Minute)
		require.Equal(t, nstance.ExecutorOperator, w.recordedExecutor(d.Instance))
		require.NoError(t, ack(nstance.ExecutorOperator, nstance.OutcomeFailed))

		remove()
		other := w.connectExecutor("blue")
		defer other()
		w.advance(9 * time.Second)
		require.Equal(t, nstance.ExecutorOperator, w.recordedExecutor(d.Instance), "the grace period starts again")
		w.advance(2 * time.Second)
		require.Equal(t, nstance.ExecutorAgent, w.recordedExecutor(d.Instance))
		e := w.first(nstance.EventDrainReassigned, func(e nstance.Event) bool { return e.Instance == d.Instance })
		require.Equal(t, nstance.ExecutorAgent, e.Drain.Executor)
		require.Equal(t, d.Generation, e.Drain.Generation, "the same drain")
		require.Equal(t, d.Deadline, e.Drain.Deadline)
		defer w.connectExecutor(nstance.DefaultTenant)()
		w.advance(10 * time.Second)
		require.ErrorIs(t, ack(nstance.ExecutorOperator, nstance.OutcomeDrained), nstance.Denied, "reassigned to the agent")
		require.Equal(t, 1, w.count(nstance.EventDrainReassigned, ""))
		require.Zero(t, w.count(nstance.EventDeleteRequested, d.Instance))
		require.NoError(t, ack(nstance.ExecutorAgent, nstance.OutcomeDrained))
		w.advance(10 * time.Second)
		require.Equal(t, 1, w.count(nstance.EventDeleted, d.Instance))
	})
}

// TestRecordedExecutorSurvivesHandover: the recorded executor stays until the new leader
// is sure that it has gone.
func TestRecordedExecutorSurvivesHandover(t *testing.T) {
	for _, returns := range []bool{true, false} {
		t.Run(fmt.Sprint("returns: ", returns), func(t *testing.T) {
			withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
				w.connectExecutor(nstance.DefaultTenant)
				d := w.drainFirst()
				w.stopLeader()
				w.startLeader(webGroup(3))
				w.advance(5 * time.Second)
				require.Equal(t, nstance.ExecutorOperator, w.recordedExecutor(d.Instance))
				want := nstance.ExecutorAgent
				if returns {
					defer w.connectExecutor("")() // an administrator
					want = nstance.ExecutorOperator
				}
				w.advance(time.Minute)
				require.Equal(t, want, w.recordedExecutor(d.Instance))
				w.stopLeader()
				w.startLeader(webGroup(3))
				w.advance(5 * time.Second)
				require.Equal(t, want, w.recordedExecutor(d.Instance))
				require.Equal(t, 1, w.count(nstance.EventDrainStarted, d.Instance))
			})
		})
	}
}

// TestAgentWithoutHookIsNoExecutor: the first report, which shows that an agent has no
// hook, may come after its drain has begun.
func TestAgentWithoutHookIsNoExecutor(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		w.slow(true)
		id := w.ready()[0]
		w.silenceAgents(id)
		w.advance(10 * time.Second)
		w.stopLeader()
		w.startLeader(webGroup(3))
		w.advance(time.Second) // no report to the new leader yet
		d, err := w.r.Drain(context.Background(), id, requester)
		require.NoError(t, err)
		require.Equal(t, nstance.ExecutorAgent, d.Executor)
		w.r.Observe(nstance.Reported{Report: nstance.Report{InstanceID: id, Timestamp: time.Now()}})
		w.advance(time.Second)
		require.Equal(t, nstance.ExecutorNone, w.recordedExecutor(id))
		defer w.connectExecutor(nstance.DefaultTenant)()
		w.advance(time.Second)
		require.Equal(t, nstance.ExecutorOperator, w.recordedExecutor(id))
	})
}

// TestGoneAgentLosesDrain: an agent that is not connected and has missed its reports empties
// nothing. Its drain goes to an operator, else to no executor, and waits visibly where it
// has no deadline.
func TestGoneAgentLosesDrain(t *testing.T) {
	const untilGone = 3*time.Minute + 6*time.Second // three reports and their jitter
	waiting := webGroup(3)
	waiting.OnDrainTimeout = nstance.DrainTimeoutWait
	gone := func(t *testing.T, test func(t *testing.T, w *world, d nstance.Drain)) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.setGroupAndAdvance(waiting, 10*time.Second)
			d := w.drainFirst()
			require.Equal(t, nstance.ExecutorAgent, d.Executor)
			w.silenceAgents(d.Instance)
			w.reportsHook(d.Instance)
			w.r.Observe(nstance.Disconnected{ID: d.Instance})
			w.advance(time.Second)
			test(t, w, d)
		})
	}
	acknowledge := func(w *world, d nstance.Drain, by nstance.Executor, outcome nstance.Outcome, message string) error {
		return w.drains.Acknowledge(w.ctx, nstance.Ack{Instance: d.Instance, Generation: d.Generation, By: by, Outcome: outcome, Message: message})
	}
	t.Run("no operator is connected", func(t *testing.T) {
		gone(t, func(t *testing.T, w *world, d nstance.Drain) {
			w.advance(2 * time.Minute)
			require.Equal(t, nstance.ExecutorAgent, w.recordedExecutor(d.Instance), "it may report again")
			w.advance(untilGone + executorGrace - 2*time.Minute)
			require.Equal(t, nstance.ExecutorNone, w.recordedExecutor(d.Instance))
			w.advance(48 * time.Hour)
			require.Contains(t, w.in(nstance.Draining), d.Instance)
			require.Zero(t, w.count(nstance.EventDeleteRequested, d.Instance))
			require.Equal(t, 1, w.count(nstance.EventDrainReassigned, d.Instance))
			why := string(d.Instance) + " waits without limit to be empty: nothing empties it: no operator is connected that drains, and its agent does not report; the drain began at "
			require.Equal(t, why+d.StartedAt.Format(time.RFC3339), w.hold(plan.HoldDrain).Reason)
			require.Len(t, w.attentionFor("drain"), 1)
		})
	})
	t.Run("an operator is connected", func(t *testing.T) {
		gone(t, func(t *testing.T, w *world, d nstance.Drain) {
			defer w.connectExecutor(nstance.DefaultTenant)()
			w.advance(time.Minute)
			require.Equal(t, nstance.ExecutorAgent, w.recordedExecutor(d.Instance), "an executor keeps its drain")
			w.advance(untilGone + executorGrace)
			require.Equal(t, nstance.ExecutorOperator, w.recordedExecutor(d.Instance))
			require.Contains(t, w.hold(plan.HoldDrain).Reason, "the operator, names no obstacle")
			require.NoError(t, acknowledge(w, d, nstance.ExecutorOperator, nstance.OutcomeDrained, ""))
			w.advance(time.Minute)
			require.Equal(t, 1, w.count(nstance.EventDeleted, d.Instance))
		})
	})
	t.Run("it connects within the grace period", func(t *testing.T) {
		gone(t, func(t *testing.T, w *world, d nstance.Drain) {
			w.advance(untilGone)
			w.r.Observe(nstance.Connected{ID: d.Instance})
			w.advance(time.Hour)
			require.Equal(t, nstance.ExecutorAgent, w.recordedExecutor(d.Instance), "it is connected")
			require.Zero(t, w.count(nstance.EventDrainReassigned, d.Instance))
		})
	})
	for name, returns := range map[string]func(*world, nstance.InstanceID){
		"it connects again": func(w *world, id nstance.InstanceID) { w.r.Observe(nstance.Connected{ID: id}) },
		"it reports again":  (*world).reportsHook,
	} {
		t.Run(name, func(t *testing.T) {
			gone(t, func(t *testing.T, w *world, d nstance.Drain) {
				require.NoError(t, acknowledge(w, d, nstance.ExecutorAgent, nstance.OutcomeFailed, "exit status 1"))
				w.advance(untilGone + 2*executorGrace)
				require.Equal(t, nstance.ExecutorNone, w.recordedExecutor(d.Instance))
				require.ErrorIs(t, acknowledge(w, d, nstance.ExecutorAgent, nstance.OutcomeDrained, ""), nstance.Denied)
				returns(w, d.Instance)
				w.advance(time.Second)
				require.Equal(t, nstance.ExecutorAgent, w.recordedExecutor(d.Instance))
				require.Contains(t, w.hold(plan.HoldDrain).Reason, "the agent's drain hook, names no obstacle")
				require.NoError(t, acknowledge(w, d, nstance.ExecutorAgent, nstance.OutcomeFailed, "exit status 1"), "it repeats its result")
				w.advance(time.Second)
				require.Contains(t, w.hold(plan.HoldDrain).Reason, "its executor gave up: exit status 1")
			})
		})
	}
	t.Run("under the next leader", func(t *testing.T) {
		gone(t, func(t *testing.T, w *world, d nstance.Drain) {
			w.changeLeader(waiting)
			require.Equal(t, nstance.ExecutorAgent, w.recordedExecutor(d.Instance))
			w.advance(untilGone + executorGrace)
			require.Equal(t, nstance.ExecutorNone, w.recordedExecutor(d.Instance))
			require.Contains(t, w.hold(plan.HoldDrain).Reason, "its agent does not report")
		})
	})
	t.Run("before its drain begins", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.setGroupAndAdvance(waiting, 10*time.Second)
			id := w.readyOnDemand() // which no verdict removes
			w.silenceAgents(id)
			w.advance(untilGone + time.Minute)
			d, err := w.r.Drain(w.ctx, id, requester)
			require.NoError(t, err)
			require.Equal(t, nstance.ExecutorNone, d.Executor)
		})
	})
}
