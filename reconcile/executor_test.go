package reconcile_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

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
