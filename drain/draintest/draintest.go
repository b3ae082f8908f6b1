// Package draintest checks that an nstance.DrainCoordinator keeps its promises, one
// subtest for each.
//
// The first subtest, smoke, starts one drain, watches it and acknowledges it. If it fails,
// no other one is run. A call, or a wait for an event, that does not end within 10 seconds
// is a failure with its name. After 20 seconds of such waits, or of a run in which a
// subtest has failed, the rest is skipped.
//
// Subtests run one after the other; some call their coordinator concurrently.
package draintest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/conformance"
)

// A Subject is one coordinator under test, without drains.
type Subject struct {
	Coordinator nstance.DrainCoordinator

	// AddExecutor says that an operator carries out the tenant's drains (empty: every
	// tenant's) until remove is called. Nil: those promises are not checked.
	AddExecutor func(tenant nstance.TenantID) (remove func())
}

// A Factory makes a subject for one subtest. Clean up with t.Cleanup.
type Factory func(t *testing.T) Subject

const callLimit = 10 * time.Second

// Run checks every promise of nstance.DrainCoordinator.
func Run(t *testing.T, open Factory) { runWithin(t, open, callLimit) }

func runWithin(t *testing.T, open Factory, limit time.Duration) {
	r := conformance.NewRun(limit)
	with := func(check func(*testing.T, fixture)) func(*testing.T, *conformance.Calls) {
		return func(t *testing.T, c *conformance.Calls) {
			s := open(t)
			check(t, fixture{recorded{s.Coordinator, c}, s})
		}
	}
	if !r.Smoke(t, with(smoke)) {
		return
	}
	for _, p := range promises {
		r.Test(t, p.name, with(p.check))
	}
}

var promises = []struct {
	name  string
	check func(*testing.T, fixture)
}{
	{"the same generation again publishes nothing", again},
	{"an earlier deadline tightens, a later one is ignored", tightens},
	{"another executor replaces the one announced", reassigns},
	{"an older generation is a conflict", older},
	{"a newer generation replaces the drain", newer},
	{"what is not draining cannot be acknowledged", unknown},
	{"only the executor of this generation acknowledges", acknowledges},
	{"a drain that was withdrawn is over", cancels},
	{"a drain that has ended cannot be started again", ends},
	{"a watch begins with what is under way", snapshot},
	{"a watch resumes after a number", resumes},
	{"a watch shows one tenant, or all", tenants},
	{"several watches see the same", several},
	{"a watch ends with its context", watchEnds},
	{"executors come and go", executors},
}

type fixture struct {
	recorded
	subject Subject
}

// recorded is a coordinator whose calls are bounded and recorded.
type recorded struct {
	nstance.DrainCoordinator
	calls *conformance.Calls
}

func (r recorded) do(ctx context.Context, name string, call func(context.Context) error) error {
	_, err := conformance.Call(ctx, r.calls, name, func(ctx context.Context) (conformance.None, error) {
		return conformance.None{}, call(ctx)
	})
	return err
}

func (r recorded) Start(ctx context.Context, d nstance.Drain) error {
	return r.do(ctx, fmt.Sprintf("Start(drain %d of %s for %s)", d.Generation, d.Instance, d.Executor), func(ctx context.Context) error {
		return r.DrainCoordinator.Start(ctx, d)
	})
}

func (r recorded) Acknowledge(ctx context.Context, a nstance.Ack) error {
	return r.do(ctx, fmt.Sprintf("Acknowledge(drain %d of %s by %s: %s)", a.Generation, a.Instance, a.By, a.Outcome), func(ctx context.Context) error {
		return r.DrainCoordinator.Acknowledge(ctx, a)
	})
}

func (r recorded) Cancel(ctx context.Context, id nstance.InstanceID, generation uint64) error {
	return r.do(ctx, fmt.Sprintf("Cancel(%s, generation %d)", id, generation), func(ctx context.Context) error {
		return r.DrainCoordinator.Cancel(ctx, id, generation)
	})
}

func (r recorded) End(ctx context.Context, id nstance.InstanceID) error {
	return r.do(ctx, fmt.Sprintf("End(%s)", id), func(ctx context.Context) error { return r.DrainCoordinator.End(ctx, id) })
}

var deadline = time.Date(2130, 1, 1, 0, 0, 0, 0, time.UTC)

func drainOf(id nstance.InstanceID, generation uint64) nstance.Drain {
	return nstance.Drain{
		Instance: id, Group: nstance.GroupKey{Tenant: "t1", Group: "web"}, Generation: generation, Deadline: deadline, Voluntary: true,
		StartedAt: deadline.Add(-time.Hour), Executor: nstance.ExecutorOperator, Causes: []nstance.Cause{{Kind: nstance.CauseRequest, Message: "test"}},
	}
}

func ackOf(d nstance.Drain) nstance.Ack {
	return nstance.Ack{Instance: d.Instance, Generation: d.Generation, By: d.Executor, Outcome: nstance.OutcomeDrained}
}

// A watch is one that goes on.
type watch struct {
	f      fixture
	events chan nstance.DrainEvent
	errs   chan error
	done   chan struct{}
	stop   context.CancelFunc
}

func (f fixture) watch(t *testing.T, tenant nstance.TenantID, after nstance.Seq) *watch {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	w := &watch{f, make(chan nstance.DrainEvent, 1000), make(chan error, 1), make(chan struct{}), stop}
	go func() {
		defer close(w.done)
		for e, err := range f.Watch(ctx, tenant, after) {
			if err != nil {
				w.errs <- err
				return
			}
			w.events <- e
		}
	}()
	t.Cleanup(stop)
	return w
}

// next returns the next event, which must be of this type.
func (w *watch) next(t *testing.T, typ nstance.DrainEventType) nstance.DrainEvent {
	t.Helper()
	limit := w.f.calls.Run().Limit()
	select {
	case e := <-w.events:
		require.Equal(t, typ, e.Type, "the event after %s", w.f.calls.Last())
		return e
	case err := <-w.errs:
		require.NoError(t, err, "a watch of drains")
	case <-time.After(limit):
		w.f.calls.Run().Waste(limit)
		require.FailNow(t, "a watch of drains yields nothing", "%s was due after %s", typ, w.f.calls.Last())
	}
	return nstance.DrainEvent{}
}

// nothingBefore requires that nothing was published before a drain that starts now.
func (w *watch) nothingBefore(t *testing.T, id nstance.InstanceID) {
	t.Helper()
	require.NoError(t, w.f.Start(t.Context(), drainOf(id, 1)))
	require.Equal(t, id, w.next(t, nstance.DrainRequested).Drain.Instance, "an event was published that changes nothing")
}

// synced returns a watch of every tenant, when nothing is under way.
func (f fixture) synced(t *testing.T) *watch {
	t.Helper()
	w := f.watch(t, "", 0)
	w.next(t, nstance.DrainSynced)
	return w
}

func smoke(t *testing.T, f fixture) {
	w := f.synced(t)
	d := drainOf("i1", 1)
	if err := f.Start(t.Context(), d); err != nil {
		t.Fatalf("%s: no error was due", f.calls.Last())
	}
	e := w.next(t, nstance.DrainRequested)
	require.Equal(t, d, e.Drain)
	if err := f.Acknowledge(t.Context(), ackOf(d)); err != nil {
		t.Fatalf("%s: no error was due", f.calls.Last())
	}
	e = w.next(t, nstance.DrainAcknowledged)
	require.NotNil(t, e.Ack)
	require.Equal(t, ackOf(d), *e.Ack)
}

func again(t *testing.T, f fixture) {
	w := f.synced(t)
	for range 3 {
		require.NoError(t, f.Start(t.Context(), drainOf("i1", 1)))
	}
	w.next(t, nstance.DrainRequested)
	w.nothingBefore(t, "i2")
}

func tightens(t *testing.T, f fixture) {
	w := f.synced(t)
	d := drainOf("i1", 1)
	require.NoError(t, f.Start(t.Context(), d))
	w.next(t, nstance.DrainRequested)
	d.Deadline = deadline.Add(-time.Minute)
	require.NoError(t, f.Start(t.Context(), d))
	require.True(t, d.Deadline.Equal(w.next(t, nstance.DrainTightened).Drain.Deadline))
	d.Deadline = deadline.Add(time.Minute)
	require.NoError(t, f.Start(t.Context(), d))
	w.nothingBefore(t, "i2")
	after := f.watch(t, "", 0)
	for range 2 {
		if e := after.next(t, nstance.DrainSnapshot); e.Drain.Instance == "i1" {
			require.True(t, deadline.Add(-time.Minute).Equal(e.Drain.Deadline))
		}
	}
}

func reassigns(t *testing.T, f fixture) {
	w := f.synced(t)
	d := drainOf("i1", 1)
	require.NoError(t, f.Start(t.Context(), d))
	w.next(t, nstance.DrainRequested)
	former := ackOf(d)
	d.Executor = nstance.ExecutorAgent
	require.NoError(t, f.Start(t.Context(), d))
	require.Equal(t, nstance.ExecutorAgent, w.next(t, nstance.DrainReassigned).Drain.Executor)
	require.ErrorIs(t, f.Acknowledge(t.Context(), former), nstance.Denied, "by the former executor")
	require.NoError(t, f.Acknowledge(t.Context(), ackOf(d)))
}

func older(t *testing.T, f fixture) {
	require.NoError(t, f.Start(t.Context(), drainOf("i1", 3)))
	require.ErrorIs(t, f.Start(t.Context(), drainOf("i1", 2)), nstance.Conflict)
	require.NoError(t, f.Acknowledge(t.Context(), ackOf(drainOf("i1", 3))))
}

func newer(t *testing.T, f fixture) {
	w := f.synced(t)
	require.NoError(t, f.Start(t.Context(), drainOf("i1", 1)))
	w.next(t, nstance.DrainRequested)
	require.NoError(t, f.Start(t.Context(), drainOf("i1", 2)))
	require.EqualValues(t, 2, w.next(t, nstance.DrainRequested).Drain.Generation)
	require.ErrorIs(t, f.Acknowledge(t.Context(), ackOf(drainOf("i1", 1))), nstance.Conflict)
}

func unknown(t *testing.T, f fixture) {
	require.NoError(t, f.Start(t.Context(), drainOf("i1", 1)))
	require.ErrorIs(t, f.Acknowledge(t.Context(), ackOf(drainOf("i2", 1))), nstance.NotFound)
	require.NoError(t, f.Cancel(t.Context(), "i2", 1), "of none")
	require.NoError(t, f.End(t.Context(), "i2"), "of none")
}

func acknowledges(t *testing.T, f fixture) {
	d := drainOf("i1", 2)
	require.NoError(t, f.Start(t.Context(), d))
	for _, by := range []nstance.Executor{nstance.ExecutorAgent, nstance.ExecutorNone, ""} {
		a := ackOf(d)
		a.By = by
		require.ErrorIs(t, f.Acknowledge(t.Context(), a), nstance.Denied, "by %q", by)
	}
	for _, generation := range []uint64{1, 3} {
		require.ErrorIs(t, f.Acknowledge(t.Context(), ackOf(drainOf("i1", generation))), nstance.Conflict)
	}
	blocked := ackOf(d)
	blocked.Outcome, blocked.Message = nstance.OutcomeBlocked, "by a pod"
	require.NoError(t, f.Acknowledge(t.Context(), blocked), "it goes on")
	require.NoError(t, f.Acknowledge(t.Context(), ackOf(d)))
	require.NoError(t, f.Acknowledge(t.Context(), ackOf(d)), "once more: the answer may have been lost")
}

func cancels(t *testing.T, f fixture) {
	w := f.synced(t)
	require.NoError(t, f.Start(t.Context(), drainOf("i1", 1)))
	w.next(t, nstance.DrainRequested)
	require.NoError(t, f.Cancel(t.Context(), "i1", 1))
	w.next(t, nstance.DrainCancelled)
	require.ErrorIs(t, f.Acknowledge(t.Context(), ackOf(drainOf("i1", 1))), nstance.NotFound)
	require.NoError(t, f.Start(t.Context(), drainOf("i1", 2)))
	w.next(t, nstance.DrainRequested)
	require.NoError(t, f.Cancel(t.Context(), "i1", 1), "of an older one")
	require.NoError(t, f.Acknowledge(t.Context(), ackOf(drainOf("i1", 2))), "a newer drain is left alone")
}

func ends(t *testing.T, f fixture) {
	w := f.synced(t)
	require.NoError(t, f.Start(t.Context(), drainOf("i1", 1)))
	w.next(t, nstance.DrainRequested)
	require.NoError(t, f.End(t.Context(), "i1"))
	w.next(t, nstance.DrainEnded)
	require.ErrorIs(t, f.Start(t.Context(), drainOf("i1", 1)), nstance.Conflict)
	require.ErrorIs(t, f.Acknowledge(t.Context(), ackOf(drainOf("i1", 1))), nstance.NotFound)
	f.synced(t)
}

func snapshot(t *testing.T, f fixture) {
	for _, id := range []nstance.InstanceID{"i1", "i2", "i3"} {
		require.NoError(t, f.Start(t.Context(), drainOf(id, 1)))
	}
	require.NoError(t, f.Cancel(t.Context(), "i2", 1))
	w := f.watch(t, "", 0)
	seen := map[nstance.InstanceID]nstance.Drain{}
	for range 2 {
		e := w.next(t, nstance.DrainSnapshot)
		seen[e.Drain.Instance] = e.Drain
	}
	require.Equal(t, map[nstance.InstanceID]nstance.Drain{"i1": drainOf("i1", 1), "i3": drainOf("i3", 1)}, seen)
	w.next(t, nstance.DrainSynced)
	require.NoError(t, f.Start(t.Context(), drainOf("i4", 1)))
	w.next(t, nstance.DrainRequested)
}

func resumes(t *testing.T, f fixture) {
	w := f.synced(t)
	for _, id := range []nstance.InstanceID{"i1", "i2"} {
		require.NoError(t, f.Start(t.Context(), drainOf(id, 1)))
	}
	first := w.next(t, nstance.DrainRequested)
	second := w.next(t, nstance.DrainRequested)
	require.Greater(t, second.Seq, first.Seq)
	resumed := f.watch(t, "", first.Seq)
	require.Equal(t, second, resumed.next(t, nstance.DrainRequested))
}

func tenants(t *testing.T, f fixture) {
	other := drainOf("i2", 1)
	other.Group.Tenant = "t2"
	require.NoError(t, f.Start(t.Context(), other))
	w := f.watch(t, "t1", 0)
	w.next(t, nstance.DrainSynced)
	require.NoError(t, f.Start(t.Context(), drainOf("i1", 1)))
	require.Equal(t, nstance.InstanceID("i1"), w.next(t, nstance.DrainRequested).Drain.Instance)
	require.NoError(t, f.Cancel(t.Context(), "i2", 1))
	require.NoError(t, f.Cancel(t.Context(), "i1", 1))
	require.Equal(t, nstance.InstanceID("i1"), w.next(t, nstance.DrainCancelled).Drain.Instance)
}

func several(t *testing.T, f fixture) {
	one, two := f.synced(t), f.synced(t)
	require.NoError(t, f.Start(t.Context(), drainOf("i1", 1)))
	e := one.next(t, nstance.DrainRequested)
	e.Drain.Causes[0].Message = "changed by a reader"
	require.Equal(t, drainOf("i1", 1), two.next(t, nstance.DrainRequested).Drain)
}

func watchEnds(t *testing.T, f fixture) {
	w := f.synced(t)
	w.stop()
	select {
	case <-w.done:
	case <-time.After(f.calls.Run().Limit()):
		require.Fail(t, "a watch of drains hangs: it goes on after its context has ended")
	}
}

func executors(t *testing.T, f fixture) {
	if f.subject.AddExecutor == nil {
		t.Skip("not checked: Subject.AddExecutor is nil")
	}
	told := make(chan nstance.TenantID, 10)
	stop := f.NotifyExecutors(func(tenant nstance.TenantID) { told <- tenant })
	await := func(want nstance.TenantID) {
		t.Helper()
		select {
		case got := <-told:
			require.Equal(t, want, got)
		case <-time.After(f.calls.Run().Limit()):
			require.FailNow(t, "NotifyExecutors does not tell of a change")
		}
	}
	require.False(t, f.HasExecutor("t1"))
	remove := f.subject.AddExecutor("t1")
	await("t1")
	require.True(t, f.HasExecutor("t1"))
	require.False(t, f.HasExecutor("t2"))
	remove()
	await("t1")
	require.False(t, f.HasExecutor("t1"))
	remove = f.subject.AddExecutor("")
	await("")
	require.True(t, f.HasExecutor("t2"), "every tenant's")
	remove()
	await("")
	stop()
	defer f.subject.AddExecutor("t1")()
	require.Empty(t, told, "after stop")
}
