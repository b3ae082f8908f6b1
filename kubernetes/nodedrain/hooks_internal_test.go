package nodedrain

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nstance-go/nstance"
)

// hangingHooks do not answer.
type hangingHooks struct{}

func (hangingHooks) Begin(ctx context.Context, _ nstance.Drain, _ *corev1.Node) error {
	<-ctx.Done()
	return ctx.Err()
}

func (h hangingHooks) End(ctx context.Context, d nstance.Drain, n *corev1.Node, _ Result) error {
	return h.Begin(ctx, d, n)
}

func (h hangingHooks) MayUncordon(ctx context.Context, d nstance.Drain, n *corev1.Node) (bool, error) {
	return true, h.Begin(ctx, d, n)
}

// TestHangingHooks: hooks that do not answer delay a drain by five seconds each. A node that they
// might keep cordoned stays so.
func TestHangingHooks(t *testing.T) {
	virtual(t, &Options{Hooks: hangingHooks{}}, func(r *virtualRig) {
		r.node("n")
		r.pod("p", "n", nil)
		d := r.drain("n", time.Hour, nil)
		pass(2*callTimeout + 5*time.Second)
		require.Equal(r, nstance.OutcomeDrained, r.ack(d).Outcome)
		require.NoError(r, r.drains.Cancel(r.ctx, d.Instance, d.Generation))
		pass(2*callTimeout + 5*time.Second)
		n := r.get("n")
		require.NotContains(r, n.Annotations, annotationInstance)
		require.True(r, n.Spec.Unschedulable)
	})
}

// slowHooks need a time for each call, whatever becomes of its drain.
type slowHooks struct {
	mu       sync.Mutex
	calls    []string
	now, all int // calls under way: at present, and the most
}

func (h *slowHooks) call(name string) {
	h.mu.Lock()
	h.calls = append(h.calls, name)
	h.now++
	h.all = max(h.all, h.now)
	h.mu.Unlock()
	<-time.After(2 * time.Second)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now--
}

// await returns within a call.
func (h *slowHooks) await(name string) {
	for called := false; !called; {
		pass(100 * time.Millisecond)
		h.mu.Lock()
		called = slices.Contains(h.calls, name)
		h.mu.Unlock()
	}
}

func (h *slowHooks) Begin(context.Context, nstance.Drain, *corev1.Node) error {
	h.call("begin")
	return nil
}

func (h *slowHooks) End(_ context.Context, _ nstance.Drain, _ *corev1.Node, r Result) error {
	h.call(string(r.Ending))
	return nil
}

func (*slowHooks) MayUncordon(context.Context, nstance.Drain, *corev1.Node) (bool, error) {
	return true, nil
}

// TestOneWorkerPerNode: a drain that begins while the one before is taken back begins after that. Each
// has its hook called once.
func TestOneWorkerPerNode(t *testing.T) {
	hooks := &slowHooks{}
	virtual(t, &Options{Hooks: hooks}, func(r *virtualRig) {
		r.node("n")
		r.pod("job", "n", waits)
		d := r.drain("n", time.Hour, nil)
		pass(time.Minute)
		require.NoError(r, r.drains.Cancel(r.ctx, d.Instance, d.Generation))
		pass(time.Second)
		require.Empty(r, r.Progress(d.Instance))
		d.Generation++
		require.NoError(r, r.drains.Start(r.ctx, d))
		pass(time.Minute)
		hooks.mu.Lock()
		defer hooks.mu.Unlock()
		require.Equal(r, []string{"begin", string(Cancelled), "begin"}, hooks.calls)
		require.Equal(r, 1, hooks.all)
		n := r.get("n")
		require.True(r, n.Spec.Unschedulable)
		require.Equal(r, generationText(d), n.Annotations[annotationGeneration])
	})
}

// TestEndBeforeAck: hooks are told of a drain's end before it is acknowledged: the machine is deleted
// then.
func TestEndBeforeAck(t *testing.T) {
	hooks := &slowHooks{}
	virtual(t, &Options{Hooks: hooks}, func(r *virtualRig) {
		r.node("n")
		r.node("m")
		r.pod("p", "m", func(p *corev1.Pod) { waits(p); stops("never")(p) })
		empty := r.drain("n", time.Hour, nil)
		hooks.await(string(Drained))
		require.Nil(r, r.ack(empty))
		pass(10 * time.Second)
		require.Equal(r, nstance.OutcomeDrained, r.ack(empty).Outcome)
		full := r.drain("m", time.Minute, nil)
		hooks.await(string(Expired))
		require.Nil(r, r.ack(full))
		pass(10 * time.Second)
		require.Equal(r, nstance.OutcomeFailed, r.ack(full).Outcome)
	})
}

// TestProgressEnds: a drain that has ended waits for nothing, whether it was under way or done.
func TestProgressEnds(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){"under way": waits, "done": nil} {
		t.Run(name, func(t *testing.T) {
			virtual(t, nil, func(r *virtualRig) {
				r.node("n")
				r.pod("p", "n", change)
				d := r.drain("n", time.Hour, nil)
				pass(30 * time.Second)
				require.NotEmpty(r, r.Progress(d.Instance))
				require.Equal(r, change != nil, r.Stats().Draining == 1)
				require.NoError(r, r.drains.End(r.ctx, d.Instance))
				pass(30 * time.Second)
				require.Empty(r, r.Progress(d.Instance))
				require.Zero(r, r.Stats().Draining)
			})
		})
	}
}

// TestExpiredBeforeStart: a drain whose deadline has passed is none to a Drainer that begins.
func TestExpiredBeforeStart(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("n")
		r.pod("job", "n", func(p *corev1.Pod) {
			waits(p)
			stops("never")(p)
		})
		d := r.drain("n", time.Minute, nil)
		pass(2 * time.Minute)
		require.Equal(r, nstance.OutcomeFailed, r.ack(d).Outcome)
		r.restart(nil)
		pass(10 * time.Second)
		require.Empty(r, r.Progress(d.Instance))
	})
}

// TestStatsOfRefusals: a node whose evictions are refused is counted for as long as they are.
func TestStatsOfRefusals(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("n")
		r.pod("p", "n", nil)
		r.budget(3) // of which two will never be
		d := r.drain("n", time.Hour, nil)
		pass(time.Minute)
		require.Equal(r, 1, r.Stats().Refused)
		require.NoError(r, r.drains.End(r.ctx, d.Instance))
		pass(time.Minute)
		require.Zero(r, r.Stats().Refused)
		require.InDelta(r, 60, r.Stats().BudgetWait.Seconds(), 2)
	})
}

// TestOverriddenAtTheEnd: the annotation names what was deleted past its budget, also where pods could
// not be listed after that. It has the names of ten.
func TestOverriddenAtTheEnd(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		const all = maxListed + 2
		var mu sync.Mutex
		deleted := 0
		r.kube.Refuse(func(q *http.Request) error {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case strings.HasSuffix(q.URL.Path, "/eviction"):
				return apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
			case q.Method == http.MethodDelete:
				deleted++
			case q.URL.Path == "/api/v1/pods" && deleted == all:
				return apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("by a policy"))
			}
			return nil
		})
		r.node("n")
		for i := range all {
			r.pod("p"+string(rune('a'+i)), "n", stops("never"))
		}
		d := r.drain("n", 2*time.Minute, nil)
		pass(3 * time.Minute)
		require.Equal(r, nstance.OutcomeFailed, r.ack(d).Outcome)
		require.Len(r, splitList(r.get("n").Annotations[annotationOverridden]), maxListed)
		require.EqualValues(r, all, r.Stats().PDBOverridden)
	})
}
