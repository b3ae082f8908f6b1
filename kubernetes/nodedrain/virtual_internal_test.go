package nodedrain

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/kubernetes/internal/memkube"
)

// A virtualRig is a cluster in memory and a Drainer, in virtual time.
type virtualRig struct {
	*testing.T
	*Drainer
	kube    *memkube.Server
	drains  *drain.Coordinator
	ctx     context.Context
	running sync.WaitGroup
	stop    func()                   // ends the Drainer
	watched nstance.DrainCoordinator // by the next Drainer; nil: drains
}

// virtual runs a test in a bubble.
func virtual(t *testing.T, options *Options, test func(r *virtualRig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &virtualRig{T: t, kube: memkube.New(), drains: drain.New(nil), stop: func() {}}
		ctx, cancel := context.WithCancel(t.Context())
		r.ctx = ctx
		defer r.running.Wait()
		defer cancel()
		r.restart(options)
		synctest.Wait()
		test(r)
	})
}

// restart runs a Drainer in place of the one that ran.
func (r *virtualRig) restart(options *Options) {
	r.stop()
	watched := nstance.DrainCoordinator(r.drains)
	if r.watched != nil {
		watched = r.watched
	}
	d, err := New(r.kube.Config(), watched, options)
	require.NoError(r, err)
	r.Drainer = d
	ctx, cancel := context.WithCancel(r.ctx)
	ended := make(chan struct{})
	r.running.Go(func() {
		defer close(ended)
		_ = d.Run(ctx)
	})
	r.stop = func() {
		cancel()
		<-ended
	}
}

// waits has a pod be left to complete.
func waits(p *corev1.Pod) { p.Labels["cluster.x-k8s.io/drain"] = "wait-completed" }

// pass lets virtual time pass.
func pass(d time.Duration) { <-time.After(d) }

// node makes a ready node, whose provider ID ends in its name.
func (r *virtualRig) node(name string) {
	r.kube.Put(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: "cloud:///" + name},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	})
}

// pod makes a ready pod with a grace period of 30 s.
func (r *virtualRig) pod(name, node string, change func(*corev1.Pod)) {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: ptr.To[int64](30)},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	if change != nil {
		change(p)
	}
	r.kube.Put(p)
}

// stops has a pod need a time to end.
func stops(after string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{memkube.AnnotationStops: after} }
}

// budget lets one of so many pods be unavailable.
func (r *virtualRig) budget(pods int) { r.budgetNamed("web", pods) }

func (r *virtualRig) budgetNamed(name string, pods int) {
	r.kube.Put(&policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Annotations: map[string]string{memkube.AnnotationExpected: strconv.Itoa(pods)}},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromInt(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
	})
}

func (r *virtualRig) pods() (out []corev1.Pod) {
	for _, o := range r.kube.Objects("/api/v1/namespaces/ns/pods/") {
		var p corev1.Pod
		require.NoError(r, runtime.DefaultUnstructuredConverter.FromUnstructured(o, &p))
		out = append(out, p)
	}
	return out
}

// drain starts a drain of a node.
func (r *virtualRig) drain(node string, left time.Duration, change func(*nstance.Drain)) nstance.Drain {
	r.Helper()
	synctest.Wait() // the Drainer has seen the nodes as the test made them
	d := nstance.Drain{
		Instance: nstance.InstanceID("web-" + node), ProviderID: "cloud:///" + node, Generation: 1, StartedAt: time.Now(), Deadline: time.Now().Add(left),
		Executor: nstance.ExecutorOperator, Causes: []nstance.Cause{{Kind: nstance.CauseNotice, EventID: "event-1"}},
	}
	if change != nil {
		change(&d)
	}
	require.NoError(r, r.drains.Start(r.ctx, d))
	return d
}

// ack returns the acknowledgement of a drain, and when it came; nil: there is none.
func (r *virtualRig) ack(d nstance.Drain) (found *nstance.Ack) {
	for e, err := range r.drains.Watch(r.ctx, "", 0) {
		require.NoError(r, err)
		if e.Drain.Instance == d.Instance {
			found = e.Ack
		}
		if e.Type == nstance.DrainSynced {
			return found
		}
	}
	return nil
}

// said returns the messages of events for a reason.
func (r *virtualRig) said(reason string) (out []string) {
	synctest.Wait()
	for path, o := range r.kube.Objects("/api/v1/namespaces/") {
		if strings.Contains(path, "/events/") && o["reason"] == reason {
			out = append(out, o["message"].(string))
		}
	}
	return out
}

// deployment keeps so many pods, which a scheduler spreads over schedulable nodes, and which are
// ready after a time. It returns what reports the fewest that were ready.
func (r *virtualRig) deployment(replicas int, readyAfter time.Duration, change func(*corev1.Pod)) (fewest func() int) {
	made, least := 0, replicas
	var mu sync.Mutex
	place := func(ready bool) {
		made++
		name := fmt.Sprintf("web-%d", made)
		r.pod(name, r.freest(), func(p *corev1.Pod) {
			if change != nil {
				change(p)
			}
			if !ready {
				p.Status = corev1.PodStatus{Phase: corev1.PodPending}
			}
		})
		if !ready {
			time.AfterFunc(readyAfter, func() {
				r.kube.Change("/api/v1/namespaces/ns/pods/"+name, func(o map[string]any) {
					o["status"] = map[string]any{"phase": "Running", "conditions": []any{map[string]any{"type": "Ready", "status": "True"}}}
				})
			})
		}
	}
	for range replicas {
		place(true)
	}
	r.running.Go(func() {
		for r.ctx.Err() == nil {
			next := r.kube.Changed()
			living, ready := 0, 0
			for _, p := range r.pods() {
				if p.DeletionTimestamp == nil {
					living++
				}
				if memkube.PodReady(&p) {
					ready++
				}
			}
			mu.Lock()
			least = min(least, ready)
			mu.Unlock()
			for ; living < replicas; living++ {
				place(false)
			}
			select {
			case <-next:
			case <-r.ctx.Done():
			}
		}
	})
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return least
	}
}

// freest returns the schedulable node with the fewest pods.
func (r *virtualRig) freest() string {
	on, best := map[string]int{}, ""
	for _, p := range r.pods() {
		on[p.Spec.NodeName]++
	}
	for path, o := range r.kube.Objects("/api/v1/nodes/") {
		name := path[strings.LastIndexByte(path, '/')+1:]
		if closed, _ := o["spec"].(map[string]any)["unschedulable"].(bool); !closed && (best == "" || on[name] < on[best] || on[name] == on[best] && name < best) {
			best = name
		}
	}
	return best
}

// TestShortNoticesKeepBudget: three of six nodes are taken back at once, with 30 s notices, 30 s
// graces and a budget of one pod. It is kept for as long as the replacements come in time: the
// last pod must begin to end 15 s before the margin, half of the drain's time.
func TestShortNoticesKeepBudget(t *testing.T) {
	for _, readyAfter := range []time.Duration{time.Second, 3 * time.Second, 5 * time.Second} {
		for _, stop := range []string{"1s", "10m"} { // they end soon, or when they are killed
			t.Run(fmt.Sprintf("ready after %s, stops after %s", readyAfter, stop), func(t *testing.T) {
				virtual(t, nil, func(r *virtualRig) {
					for i := range 6 {
						r.node(fmt.Sprint("n", i))
					}
					fewest := r.deployment(6, readyAfter, stops(stop))
					r.budget(6)
					pass(10 * time.Second)
					var drains []nstance.Drain
					for i := range 3 {
						drains = append(drains, r.drain(fmt.Sprint("n", i), 30*time.Second, nil))
					}
					pass(29900 * time.Millisecond)
					require.Equal(r, 5, fewest(), "ready pods: %q", r.said(reasonOverridden))
					require.Zero(r, r.Stats().PDBOverridden)
					for _, d := range drains {
						require.Equal(r, nstance.OutcomeDrained, r.ack(d).Outcome)
					}
				})
			})
		}
	}
}
