package nodedrain

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/nstance-go/nstance"
)

var errBudget = apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)

// evictions has requests for pods be answered, and records when each was deleted past its budget.
type evictions struct {
	mu      sync.Mutex
	deleted map[string]time.Time
}

// answer answers evictions by the pod's name. It may wait; nil lets one pass.
func (r *virtualRig) answer(evict func(q *http.Request, pod string) error) *evictions {
	e := &evictions{deleted: map[string]time.Time{}}
	r.kube.Refuse(func(q *http.Request) error {
		rest, ok := strings.CutPrefix(q.URL.Path, "/api/v1/namespaces/ns/pods/")
		if pod, isEviction := strings.CutSuffix(rest, "/eviction"); ok && isEviction {
			return evict(q, pod)
		}
		if ok && q.Method == http.MethodDelete {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.deleted[rest] = time.Now()
		}
		return nil
	})
	return e
}

func (e *evictions) deletedAt(pod string) time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.deleted[pod]
}

func hang(q *http.Request) error {
	<-q.Context().Done()
	return q.Context().Err()
}

// TestOverrideIsInTime: a pod whose eviction is refused is deleted when its grace period must begin,
// however seldom a long drain looks at its pods.
func TestOverrideIsInTime(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		e := r.answer(func(*http.Request, string) error { return errBudget })
		r.node("n")
		for i := range int64(3) {
			r.pod(fmt.Sprint("p", i), "n", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = ptr.To(300 + 20*i) })
		}
		d := r.drain("n", 20*time.Minute, nil)
		pass(20 * time.Minute)
		for i := range 3 {
			due := d.Deadline.Add(-2*time.Second - 300*time.Second - time.Duration(20*i)*time.Second)
			require.InDelta(r, 0, e.deletedAt(fmt.Sprint("p", i)).Sub(due).Seconds(), 0.1)
		}
	})
}

// TestOverrideBesideEvictions: so is one while others are evicted.
func TestOverrideBesideEvictions(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		e := r.answer(func(_ *http.Request, pod string) error {
			if pod == "refused" {
				return errBudget
			}
			<-time.After(900 * time.Millisecond)
			return nil
		})
		r.node("n")
		r.pod("refused", "n", func(p *corev1.Pod) {
			stops("never")(p)
			p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](300)
		})
		r.pod("job", "n", func(p *corev1.Pod) {
			waits(p)
			p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](300)
		})
		d := r.drain("n", 20*time.Minute, nil)
		pass(19 * time.Minute)
		due := d.Deadline.Add(-2*time.Second - 300*time.Second)
		require.InDelta(r, 0.1, e.deletedAt("refused").Sub(due).Seconds(), 0.05)
	})
}

// TestWakeAgain: a pod that was refused while a round lasted, and is due again by its end, is looked at at
// once. One that was evicted is not.
func TestWakeAgain(t *testing.T) {
	began := time.Now()
	pod := func(name string) *corev1.Pod { return podOn(name, "n") }
	refused, evicted, later := pod("refused"), pod("evicted"), pod("later")
	f := timeFrame{since: began, deadline: began.Add(time.Hour)}
	for name, c := range map[string]struct {
		pods []*corev1.Pod
		want time.Time
	}{
		"refused": {[]*corev1.Pod{evicted, refused}, began.Add(300 * time.Millisecond)},
		"evicted": {[]*corev1.Pod{evicted}, time.Time{}},
		"later":   {[]*corev1.Pod{evicted, later}, began.Add(time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			var all []candidate
			for _, p := range c.pods {
				all = append(all, candidate{pod: p})
			}
			tries := map[types.UID]try{
				refused.UID: {failures: 1, next: began.Add(300 * time.Millisecond), refusedAt: began}, evicted.UID: {failures: 1, next: began.Add(-time.Second)},
				later.UID: {failures: 1, next: began.Add(time.Second)},
			}
			r := planRound(all, map[types.UID]try{}, f, began)
			require.Zero(t, r.next)
			r.wakeAgain(planRound(all, tries, f, began.Add(500*time.Millisecond)), tries, began)
			require.Equal(t, c.want, r.next)
		})
	}
}

// TestSlowRefusals: pods whose evictions are refused slowly, beside one whose eviction has no answer at
// all, are deleted soon after their grace periods must begin: an answer is awaited for a second.
func TestSlowRefusals(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		e := r.answer(func(q *http.Request, pod string) error {
			if pod == "hangs" {
				return hang(q)
			}
			select {
			case <-time.After(1500 * time.Millisecond):
				return errBudget
			case <-q.Context().Done():
				return q.Context().Err()
			}
		})
		r.node("n")
		r.pod("hangs", "n", nil)
		for i := range int64(10) {
			r.pod(fmt.Sprint("p", i), "n", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = ptr.To(300 + 21*i) })
		}
		d := r.drain("n", 20*time.Minute, nil)
		pass(20 * time.Minute)
		for i := range 10 {
			due := d.Deadline.Add(-2*time.Second - 300*time.Second - time.Duration(21*i)*time.Second)
			require.InDelta(r, 1.1, e.deletedAt(fmt.Sprint("p", i)).Sub(due).Seconds(), 1.2)
		}
	})
}

// TestHangingEvictions: pods are evicted when their grace periods must begin while evictions of others
// hang. A pod whose own evictions do is deleted then.
func TestHangingEvictions(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		var mu sync.Mutex
		asked := map[string]time.Time{}
		e := r.answer(func(q *http.Request, pod string) error {
			if pod == "hangs" {
				return hang(q)
			}
			mu.Lock()
			defer mu.Unlock()
			asked[pod] = time.Now()
			return nil
		})
		r.node("n")
		r.pod("hangs", "n", stops("never"))
		graces := map[string]int64{}
		for i := range int64(10) {
			name := fmt.Sprint("job", i)
			graces[name] = 40 + 17*i
			r.pod(name, "n", func(p *corev1.Pod) {
				waits(p)
				p.Spec.TerminationGracePeriodSeconds = ptr.To(graces[name])
			})
		}
		d := r.drain("n", 10*time.Minute, nil)
		pass(10 * time.Minute)
		end := d.Deadline.Add(-2 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		for name, grace := range graces {
			require.InDelta(r, float64(-grace), asked[name].Sub(end).Seconds(), 0.05, name)
		}
		require.InDelta(r, -30, e.deletedAt("hangs").Sub(end).Seconds(), 1.1)
	})
}

// TestNoTimeLeft: however little time there is, an eviction is asked for before a pod is deleted
// without one.
func TestNoTimeLeft(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("n")
		r.pod("p", "n", nil)
		r.drain("n", time.Second, nil)
		pass(5 * time.Second)
		require.Empty(r, r.pods())
		require.Len(r, r.said(reasonEvicted), 1)
		require.Empty(r, r.said(reasonOverridden))
	})
}

// TestOneFailureIsNoRefusal: a pod whose first eviction fails when its grace period must begin is
// evicted by the next, not deleted past its budget.
func TestOneFailureIsNoRefusal(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		failed := false
		r.answer(func(*http.Request, string) error {
			if failed {
				return nil
			}
			failed = true
			return apierrors.NewInternalError(errors.New("etcdserver: leader changed"))
		})
		r.node("n")
		r.pod("job", "n", waits)
		d := r.drain("n", 2*time.Minute, nil)
		pass(100 * time.Second)
		require.Equal(r, nstance.OutcomeDrained, r.ack(d).Outcome)
		require.Len(r, r.said(reasonEvicted), 1)
		require.Empty(r, r.said(reasonOverridden))
	})
}

// TestGrantedEviction: a budget that counts a pod as evicted refuses all evictions until the pod is gone. It is
// deleted, which the budget has permitted; budgets are read when that may have happened only.
func TestGrantedEviction(t *testing.T) {
	for name, c := range map[string]struct {
		granted time.Duration // after the pod was made
		hangs   bool          // the first eviction, during which it is granted
		denied  bool          // reading budgets
		gone    bool
		reads   int
	}{
		"before the drain":                    {granted: time.Second, gone: true, reads: 1},
		"by a try without an answer":          {granted: 12 * time.Second, hangs: true, gone: true, reads: 1},
		"to a pod that had its name before":   {granted: -time.Second, reads: 1},
		"perhaps, in the second of the pod's": {granted: 0, reads: 1},
		"where that cannot be read":           {granted: time.Second, denied: true, reads: 1},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, nil, func(r *virtualRig) {
				r.node("n")
				r.pod("p", "n", nil)
				r.budget(3) // of which two will never be
				granted := time.Now().Add(c.granted)
				pass(10 * time.Second)
				grant := func() {
					r.kube.Change("/apis/policy/v1/namespaces/ns/poddisruptionbudgets/web", func(o map[string]any) {
						o["status"] = map[string]any{"disruptedPods": map[string]any{"p": granted.UTC().Format(time.RFC3339)}}
					})
				}
				if !c.hangs {
					grant()
				}
				var mu sync.Mutex
				reads, tries := 0, 0
				r.kube.Refuse(func(q *http.Request) error {
					mu.Lock()
					defer mu.Unlock()
					switch {
					case strings.HasSuffix(q.URL.Path, "/poddisruptionbudgets"):
						if reads++; c.denied {
							return apierrors.NewForbidden(policyv1.Resource("poddisruptionbudgets"), "", nil)
						}
					case strings.HasSuffix(q.URL.Path, "/eviction"):
						if tries++; tries == 1 && c.hangs {
							grant()
							return context.DeadlineExceeded
						}
					}
					return nil
				})
				r.drain("n", time.Hour, nil)
				pass(time.Minute)
				require.Equal(r, c.gone, len(r.pods()) == 0)
				require.Empty(r, r.said(reasonOverridden))
				require.Equal(r, c.reads, reads)
			})
		})
	}
}

// TestRefusedForAWhile: a pod whose eviction is refused for so many seconds is tried again before: the
// budget may permit it at any moment.
func TestRefusedForAWhile(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		permitted := time.Now().Add(time.Second)
		r.answer(func(*http.Request, string) error {
			if time.Now().After(permitted) {
				return nil
			}
			return apierrors.NewTooManyRequests("The disruption budget is still being processed by the server.", 10)
		})
		r.node("n")
		r.pod("p", "n", nil)
		r.drain("n", time.Hour, nil)
		pass(5 * time.Second)
		require.Empty(r, r.pods())
	})
}

// TestRefusalIsKept: what refused evictions before they had no answer is what the event names.
func TestRefusalIsKept(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		hangs := time.Now().Add(30 * time.Second)
		r.answer(func(q *http.Request, _ string) error {
			if time.Now().After(hangs) {
				return hang(q)
			}
			return apierrors.NewForbidden(corev1.Resource("pods"), "p", errors.New("by a policy"))
		})
		r.node("n")
		r.pod("p", "n", nil)
		r.drain("n", 2*time.Minute, nil)
		pass(2 * time.Minute)
		require.Len(r, r.said(reasonOverridden), 1)
		require.Contains(r, r.said(reasonOverridden)[0], "by a policy")
	})
}

// TestHangingEvictionsLeaveRoom: evictions that have no answer use few of the requests that may be in
// flight, and each is repeated until it has one.
func TestHangingEvictionsLeaveRoom(t *testing.T) {
	virtual(t, &Options{MaxCalls: 4}, func(r *virtualRig) {
		answers := time.Now().Add(time.Minute)
		r.answer(func(q *http.Request, pod string) error {
			if strings.HasPrefix(pod, "hangs") && time.Now().Before(answers) {
				return hang(q)
			}
			return nil
		})
		r.node("a")
		r.node("b")
		for i := range 8 {
			r.pod(fmt.Sprint("hangs", i), "a", nil)
		}
		r.pod("other", "b", nil)
		r.drain("a", 20*time.Minute, nil)
		pass(30 * time.Second)
		r.drain("b", time.Hour, nil)
		pass(4 * time.Second)
		require.Len(r, r.pods(), 8)
		pass(time.Minute)
		require.Empty(r, r.pods())
		require.Empty(r, r.said(reasonOverridden))
	})
}

// TestShortenedPodHoldsTiers: a pod whose grace period was cut has all of what it was given: pods that
// go after it wait until then.
func TestShortenedPodHoldsTiers(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("n")
		r.pod("p", "n", func(p *corev1.Pod) {
			stops("never")(p)
			p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](590)
		})
		r.pod("critical", "n", func(p *corev1.Pod) { p.Spec.PriorityClassName = "system-node-critical" })
		d := r.drain("n", 20*time.Minute, nil)
		pass(5 * time.Minute)
		d.Deadline = time.Now().Add(4 * time.Minute)
		require.NoError(r, r.drains.Start(r.ctx, d))
		pass(2 * time.Minute)
		require.Len(r, r.said(reasonShortened), 1)
		for _, p := range r.pods() {
			require.Equal(r, p.Name == "p", p.DeletionTimestamp != nil, p.Name)
		}
		require.Len(r, r.pods(), 2)
		require.Empty(r, r.said(reasonBlocked), "it may end yet")
	})
}

// TestTightenedInTime: a drain that is tightened looks at its pods at once.
func TestTightenedInTime(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("n")
		r.pod("job", "n", waits)
		d := r.drain("n", 3*time.Hour, nil)
		pass(time.Hour + 100*time.Millisecond) // by now it looks every five seconds
		d.Deadline = time.Now().Add(33 * time.Second)
		require.NoError(r, r.drains.Start(r.ctx, d))
		pass(1100 * time.Millisecond)
		require.Len(r, r.said(reasonEvicted), 1)
	})
}

// TestLooksLessOften: a drain that waits looks at its pods less and less often, and more often again
// when something has changed.
func TestLooksLessOften(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		var mu sync.Mutex
		lists := 0
		r.kube.Refuse(func(q *http.Request) error {
			if q.URL.Path == "/api/v1/pods" {
				mu.Lock()
				defer mu.Unlock()
				lists++
			}
			return nil
		})
		during := func(d time.Duration) int {
			mu.Lock()
			before := lists
			mu.Unlock()
			pass(d)
			mu.Lock()
			defer mu.Unlock()
			return lists - before
		}
		r.node("n")
		r.pod("job", "n", waits)
		r.pod("other", "n", waits)
		r.drain("n", 3*time.Hour, nil)
		require.Less(r, during(time.Hour), 800)
		require.True(r, r.kube.Remove("/api/v1/namespaces/ns/pods/other"))
		require.GreaterOrEqual(r, during(10*time.Second), 4)
		require.Less(r, during(time.Hour), 800)
	})
}

// TestProgressIsWrittenNowAndThen: however often something changes, the node says so every ten seconds.
func TestProgressIsWrittenNowAndThen(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		var mu sync.Mutex
		patches := 0
		r.kube.Refuse(func(q *http.Request) error {
			if q.Method == http.MethodPatch {
				mu.Lock()
				defer mu.Unlock()
				patches++
			}
			return nil
		})
		r.node("n")
		for i := range 25 {
			r.pod(fmt.Sprint("p", i), "n", stops(fmt.Sprint(i+2, "s")))
		}
		d := r.drain("n", 10*time.Minute, nil)
		pass(40 * time.Second)
		require.Equal(r, nstance.OutcomeDrained, r.ack(d).Outcome)
		mu.Lock()
		defer mu.Unlock()
		require.InDelta(r, 4, patches, 2)
	})
}
