package reconcile_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// drainsFirst asks for the first ready instance to be drained, which nothing
// acknowledges by itself.
func (w *world) drainsFirst() nstance.Drain {
	w.t.Helper()
	w.slow(true)
	w.passes(10 * time.Second) // until every agent has seen that
	d, err := w.r.Drain(w.ctx, w.ready()[0], eve)
	require.NoError(w.t, err)
	return d
}

// executor has an operator come that carries out a tenant's drains, until it is
// called off.
func (w *world) executor(tenant nstance.TenantID) (remove func()) {
	_, drains := w.leader()
	return drains.AddExecutor(tenant)
}

func (w *world) slow(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.slowDrain = on
}

// recordedExecutor returns the executor on record of an instance's drain.
func (w *world) recordedExecutor(id nstance.InstanceID) nstance.Executor {
	w.t.Helper()
	r, drains := w.leader()
	rec, err := r.Records().Refresh(w.ctx, id)
	require.NoError(w.t, err)
	require.NotNil(w.t, rec.Drain)
	d, ok := drains.Of(id)
	require.True(w.t, ok)
	require.Equal(w.t, rec.Drain.Executor, d.Executor, "what is announced is what is on record")
	return rec.Drain.Executor
}

// TestExecutorLeaves: an operator that has gone, and stays away, drains no more.
func TestExecutorLeaves(t *testing.T) {
	within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		remove := w.executor(nstance.DefaultTenant)
		d := w.drainsFirst()
		require.Equal(t, nstance.ExecutorOperator, d.Executor)
		ack := func(by nstance.Executor, outcome nstance.Outcome) error {
			return w.drains.Acknowledge(w.ctx, nstance.Ack{Instance: d.Instance, Generation: d.Generation, By: by, Outcome: outcome})
		}

		w.passes(time.Minute)
		require.Equal(t, nstance.ExecutorOperator, w.recordedExecutor(d.Instance), "it is there, and may take its time")
		remove()
		w.passes(9 * time.Second)
		require.Equal(t, nstance.ExecutorOperator, w.recordedExecutor(d.Instance), "it may be connecting again")
		remove = w.executor(nstance.DefaultTenant)
		w.passes(time.Minute)
		require.Equal(t, nstance.ExecutorOperator, w.recordedExecutor(d.Instance))
		require.NoError(t, ack(nstance.ExecutorOperator, nstance.OutcomeFailed))

		remove()
		other := w.executor("blue")
		defer other()
		w.passes(9 * time.Second)
		require.Equal(t, nstance.ExecutorOperator, w.recordedExecutor(d.Instance), "it has as long as the first time")
		w.passes(2 * time.Second)
		require.Equal(t, nstance.ExecutorAgent, w.recordedExecutor(d.Instance))
		e := w.first(nstance.EventDrainReassigned, func(e nstance.Event) bool { return e.Instance == d.Instance })
		require.Equal(t, nstance.ExecutorAgent, e.Drain.Executor)
		require.Equal(t, d.Generation, e.Drain.Generation, "it is the same drain")
		require.Equal(t, d.Deadline, e.Drain.Deadline)
		defer w.executor(nstance.DefaultTenant)()
		w.passes(10 * time.Second)
		require.ErrorIs(t, ack(nstance.ExecutorOperator, nstance.OutcomeDrained), nstance.Denied, "the agent is at it")
		require.Equal(t, 1, w.count(nstance.EventDrainReassigned, ""))
		require.Zero(t, w.count(nstance.EventDeleteRequested, d.Instance))
		require.NoError(t, ack(nstance.ExecutorAgent, nstance.OutcomeDrained))
		w.passes(10 * time.Second)
		require.Equal(t, 1, w.count(nstance.EventDeleted, d.Instance))
	})
}

// TestExecutorOfALaterTerm: the executor on record stays while a new leader is
// not sure that it has gone.
func TestExecutorOfALaterTerm(t *testing.T) {
	for _, returns := range []bool{true, false} {
		within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.executor(nstance.DefaultTenant)
			d := w.drainsFirst()
			w.depose()
			w.lead(wanted(3))
			w.passes(5 * time.Second)
			require.Equal(t, nstance.ExecutorOperator, w.recordedExecutor(d.Instance))
			want := nstance.ExecutorAgent
			if returns {
				defer w.executor("")() // an administrator
				want = nstance.ExecutorOperator
			}
			w.passes(time.Minute)
			require.Equal(t, want, w.recordedExecutor(d.Instance))
			w.depose()
			w.lead(wanted(3))
			w.passes(5 * time.Second)
			require.Equal(t, want, w.recordedExecutor(d.Instance))
			require.Equal(t, 1, w.count(nstance.EventDrainStarted, d.Instance))
		})
	}
}

// TestAgentWithoutHookIsNoExecutor: that an agent has no hook may be known only
// after its drain has begun.
func TestAgentWithoutHookIsNoExecutor(t *testing.T) {
	within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		w.slow(true)
		id := w.ready()[0]
		w.hush(id)
		w.passes(10 * time.Second)
		w.depose()
		w.lead(wanted(3))
		w.passes(time.Second) // the new leader has not heard of it
		d, err := w.r.Drain(context.Background(), id, eve)
		require.NoError(t, err)
		require.Equal(t, nstance.ExecutorAgent, d.Executor)
		w.r.Observe(nstance.Reported{Report: nstance.Report{InstanceID: id, Timestamp: time.Now()}})
		w.passes(time.Second)
		require.Equal(t, nstance.ExecutorNone, w.recordedExecutor(id))
		defer w.executor(nstance.DefaultTenant)()
		w.passes(time.Second)
		require.Equal(t, nstance.ExecutorOperator, w.recordedExecutor(id))
	})
}
