package nodedrain

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nstance-go/nstance"
)

// attach has a volume be attached to a node.
func (r *virtualRig) attach(name, node string) {
	r.kube.Put(&storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{"external-attacher/csi"}},
		Spec:       storagev1.VolumeAttachmentSpec{NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To("pv-" + name)}},
	})
}

func (r *virtualRig) exists(path string) bool { return len(r.kube.Objects(path)) > 0 }

// TestGoneWaitsForVolumes: the node of a machine that is gone stays until its volumes are
// detached, for 30 s at most.
func TestGoneWaitsForVolumes(t *testing.T) {
	for name, after := range map[string]time.Duration{"soon": 5 * time.Second, "never": time.Hour} {
		t.Run(name, func(t *testing.T) {
			virtual(t, nil, func(r *virtualRig) {
				r.node("n")
				r.attach("v", "n")
				r.pod("p", "n", stops("never"))
				pass(time.Second)
				began := time.Now()
				time.AfterFunc(after, func() { r.kube.Remove("/apis/storage.k8s.io/v1/volumeattachments/v") })
				ended := make(chan error, 1)
				r.running.Go(func() { ended <- r.Gone(r.ctx, "web-n", "cloud:///n") })
				pass(min(after, detachLimit) - time.Second)
				require.True(r, r.exists("/api/v1/nodes/n"), "volumes are attached")
				require.Empty(r, r.pods(), "but pods may be made elsewhere")
				require.NoError(r, <-ended)
				require.False(r, r.exists("/api/v1/nodes/n"))
				require.InDelta(r, min(after, detachLimit).Seconds(), time.Since(began).Seconds(), 1)
			})
		})
	}
}

// TestDrainWaitsForVolumes: a node is drained once its volumes are detached, after six minutes at
// the latest, when Kubernetes detaches them by force.
func TestDrainWaitsForVolumes(t *testing.T) {
	for name, after := range map[string]time.Duration{"soon": time.Minute, "never": time.Hour} {
		t.Run(name, func(t *testing.T) {
			virtual(t, nil, func(r *virtualRig) {
				r.node("n")
				r.attach("v", "n")
				r.pod("p", "n", func(p *corev1.Pod) {
					p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "v"}}}}
				})
				time.AfterFunc(after, func() { r.kube.Remove("/apis/storage.k8s.io/v1/volumeattachments/v") })
				d := r.drain("n", 20*time.Minute, nil)
				pass(min(after, volumesLimit))
				require.Nil(r, r.ack(d), "volumes are attached")
				pass(15 * time.Second)
				require.Equal(r, nstance.OutcomeDrained, r.ack(d).Outcome)
			})
		})
	}
}

// TestStuckPods: a pod that does not end is waited for two minutes beyond its grace period, is
// named in an event, and keeps no other pod from being evicted.
func TestStuckPods(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){
		"its kubelet does not end it": stops("never"),
		"a finalizer":                 func(p *corev1.Pod) { p.Finalizers = []string{"test.dev/keep"} },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, nil, func(r *virtualRig) {
				r.node("n")
				r.pod("stuck", "n", change)
				r.pod("critical", "n", func(p *corev1.Pod) { p.Spec.PriorityClassName = "system-node-critical" })
				d := r.drain("n", 20*time.Minute, nil)
				pass(30*time.Second + stuckLimit)
				require.Nil(r, r.ack(d))
				require.Empty(r, r.said(reasonLeft))
				require.Len(r, r.pods(), 1, "other tiers go on after a moment")
				pass(30 * time.Second)
				require.Equal(r, nstance.OutcomeDrained, r.ack(d).Outcome)
				require.Contains(r, r.ack(d).Message, "1 pods do not end, and are left: ns/stuck")
				require.Len(r, r.said(reasonLeft), 1)
			})
		})
	}
}

// TestPodsOfSilentKubelet: pods of a node whose kubelet is silent cannot end. They are asked to, and
// waited for during their grace period.
func TestPodsOfSilentKubelet(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("n")
		r.attach("v", "n")
		r.pod("p", "n", stops("never"))
		r.kube.Change("/api/v1/nodes/n", func(o map[string]any) {
			o["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": "Unknown"}}}
		})
		d := r.drain("n", 10*time.Minute, nil)
		pass(30 * time.Second)
		require.Nil(r, r.ack(d))
		pass(20 * time.Second)
		require.Equal(r, nstance.OutcomeDrained, r.ack(d).Outcome)
		require.Contains(r, r.said(reasonLeft)[0], "the kubelet of its node is silent")
	})
}

// TestConflicts: a node that others change all the time is not written without a pause, and the
// drain goes on once it can be.
func TestConflicts(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		var tries atomic.Int64
		storm := time.Now().Add(time.Minute)
		r.kube.Refuse(func(q *http.Request) error {
			if q.Method != http.MethodPatch || time.Now().After(storm) {
				return nil
			}
			tries.Add(1)
			return apierrors.NewConflict(corev1.Resource("nodes"), "n", nil)
		})
		r.node("n")
		r.pod("p", "n", nil)
		d := r.drain("n", 5*time.Minute, nil)
		pass(time.Minute)
		require.Less(r, tries.Load(), int64(300))
		pass(30 * time.Second)
		require.Equal(r, nstance.OutcomeDrained, r.ack(d).Outcome)
	})
}

// TestEvictionAnswers: whatever is answered to evictions, the pod is asked to end in time for its
// grace period, and other pods go at once.
func TestEvictionAnswers(t *testing.T) {
	pods := corev1.Resource("pods")
	for name, answer := range map[string]error{
		"429":                     apierrors.NewTooManyRequests("slow down", 0),
		"429 with Retry-After":    apierrors.NewTooManyRequests("slow down", 3600),
		"403 of a webhook":        apierrors.NewForbidden(pods, "p", nil),
		"409":                     apierrors.NewConflict(pods, "p", nil),
		"500":                     apierrors.NewInternalError(http.ErrBodyNotAllowed),
		"503":                     apierrors.NewServiceUnavailable("try again"),
		"504":                     apierrors.NewTimeoutError("webhook", 10),
		"422":                     apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), "p", nil),
		"410":                     apierrors.NewResourceExpired("gone"),
		"401 of these alone":      apierrors.NewUnauthorized("no"),
		"404 of the subresource":  apierrors.NewNotFound(pods, "p"),
		"405 of an old server":    apierrors.NewMethodNotSupported(pods, "create"),
		"413 of a proxy":          apierrors.NewRequestEntityTooLargeError("too large"),
		"418 that nobody listed":  apierrors.NewGenericServerResponse(418, "post", pods, "p", "teapot", 0, false),
		"a disruption controller": apierrors.NewTooManyRequests("the budget is still being processed by the server", 10),
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, nil, func(r *virtualRig) {
				r.kube.Refuse(func(q *http.Request) error {
					if strings.HasSuffix(q.URL.Path, "/p/eviction") {
						return answer
					}
					return nil
				})
				r.node("n")
				r.pod("p", "n", stops("20s"))
				r.pod("other", "n", nil)
				d := r.drain("n", 2*time.Minute, nil)
				pass(5 * time.Second)
				require.Len(r, r.pods(), 1, "the other one is gone")
				pass(110 * time.Second)
				require.Empty(r, r.pods(), "it was asked to end in time")
				require.Equal(r, nstance.OutcomeDrained, r.ack(d).Outcome)
			})
		})
	}
}

// TestReplacedPods: a StatefulSet's pod that comes back under its name on the same node is evicted
// again, and no pod is deleted in place of one that had its name.
func TestReplacedPods(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("n")
		r.pod("db-0", "n", nil)
		r.pod("job", "n", func(p *corev1.Pod) { p.Labels["cluster.x-k8s.io/drain"] = "wait-completed" }) // the drain does not end before db-0 comes back
		comes := 3
		r.running.Go(func() {
			for comes > 0 && r.ctx.Err() == nil {
				next := r.kube.Changed()
				if len(r.pods()) == 1 {
					comes--
					r.pod("db-0", "n", nil) // it tolerates the cordon
				}
				select {
				case <-next:
				case <-r.ctx.Done():
				}
			}
		})
		d := r.drain("n", 5*time.Minute, nil)
		pass(time.Minute)
		require.True(r, r.kube.Remove("/api/v1/namespaces/ns/pods/job"))
		require.Empty(r, r.pods())
		pass(10 * time.Second)
		require.Equal(r, nstance.OutcomeDrained, r.ack(d).Outcome)
		require.Len(r, r.said(reasonEvicted), 4)
	})
}

// TestNodeComesBack: a node that is deleted and registers again while its drain runs is drained as
// it is then.
func TestNodeComesBack(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("n")
		r.pod("a", "n", func(p *corev1.Pod) { p.Labels["cluster.x-k8s.io/drain"] = "wait-completed" })
		d := r.drain("n", 10*time.Minute, nil)
		pass(5 * time.Second)
		require.True(r, r.kube.Remove("/api/v1/nodes/n"))
		pass(10 * time.Second)
		r.node("n")
		pass(10 * time.Second)
		require.Equal(r, true, r.kube.Objects("/api/v1/nodes/n")["/api/v1/nodes/n"]["spec"].(map[string]any)["unschedulable"])
		require.Nil(r, r.ack(d))
		require.True(r, r.kube.Remove("/api/v1/namespaces/ns/pods/a"))
		pass(20 * time.Second)
		require.Equal(r, nstance.OutcomeDrained, r.ack(d).Outcome)
	})
}

// TestLateProviderID: a node that gets its provider ID after the drain has begun is drained.
func TestLateProviderID(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("n")
		r.kube.Change("/api/v1/nodes/n", func(o map[string]any) { delete(o["spec"].(map[string]any), "providerID") })
		r.pod("p", "n", nil)
		d := r.drain("n", 2*time.Minute, nil)
		pass(30 * time.Second)
		require.Len(r, r.pods(), 1)
		r.kube.Change("/api/v1/nodes/n", func(o map[string]any) { o["spec"].(map[string]any)["providerID"] = "cloud:///n" })
		pass(10 * time.Second)
		require.Equal(r, nstance.OutcomeDrained, r.ack(d).Outcome)
	})
}

// TestBudgetThatAllowsNothing: a budget that can never allow a disruption is passed in time, and
// named.
func TestBudgetThatAllowsNothing(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("n")
		r.pod("p", "n", stops("20s"))
		r.budget(3) // of which two will never be
		d := r.drain("n", 2*time.Minute, nil)
		pass(80 * time.Second)
		require.Len(r, r.pods(), 1)
		require.Nil(r, r.pods()[0].DeletionTimestamp)
		pass(35 * time.Second)
		require.Empty(r, r.pods())
		require.Equal(r, nstance.OutcomeDrained, r.ack(d).Outcome)
		require.Len(r, r.said(reasonOverridden), 1)
		require.Contains(r, r.said(reasonOverridden)[0], "web")
	})
}

// TestBudgetPermitsLate: a budget that permits evictions a second before pods are deleted past it
// is used at once, however often it refused them before: the next budget may need that second.
func TestBudgetPermitsLate(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		permits := time.Now().Add(12 * time.Second) // pods are deleted past it at 13 s: 15 s before the margin of 2 s
		r.kube.Refuse(func(q *http.Request) error {
			if strings.HasSuffix(q.URL.Path, "/eviction") && time.Now().Before(permits) {
				return apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
			}
			return nil
		})
		r.node("n")
		for i := range 10 {
			r.pod(fmt.Sprint("p", i), "n", nil)
		}
		d := r.drain("n", 30*time.Second, nil)
		pass(12900 * time.Millisecond)
		for _, p := range r.pods() {
			require.NotNil(r, p.DeletionTimestamp, p.Name)
		}
		pass(16 * time.Second)
		require.Equal(r, nstance.OutcomeDrained, r.ack(d).Outcome)
		require.Zero(r, r.Stats().PDBOverridden)
	})
}

// TestSeveralBudgets: two budgets select one pod, which Kubernetes answers with an error of its
// own. It is one pod's trouble.
func TestSeveralBudgets(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("n")
		r.pod("p", "n", nil)
		r.pod("other", "n", func(p *corev1.Pod) { p.Labels = nil })
		r.budget(1)
		r.budgetNamed("second", 1)
		d := r.drain("n", 2*time.Minute, nil)
		pass(5 * time.Second)
		require.Len(r, r.pods(), 1)
		pass(110 * time.Second)
		require.Empty(r, r.pods())
		require.Equal(r, nstance.OutcomeDrained, r.ack(d).Outcome)
		require.Contains(r, r.said(reasonOverridden)[0], "more than one PodDisruptionBudget")
	})
}

// noRules cannot say what becomes of a pod whose name begins with a prefix.
type noRules struct{ prefix string }

func (n noRules) Rule(_ context.Context, _ nstance.Drain, _ *corev1.Node, pod *corev1.Pod) (Rule, error) {
	if strings.HasPrefix(pod.Name, n.prefix) {
		return Rule{}, errors.New("namespaces cannot be listed")
	}
	return Rule{}, nil
}

// TestUnknownRule: a pod of which it is not known what is to become of it is left for as long as
// there is time, and keeps no other pod from being evicted.
func TestUnknownRule(t *testing.T) {
	virtual(t, &Options{Rules: noRules{"unknown"}}, func(r *virtualRig) {
		r.node("n")
		r.pod("unknown", "n", stops("20s"))
		r.pod("p", "n", nil)
		d := r.drain("n", 2*time.Minute, nil)
		pass(10 * time.Second)
		require.Len(r, r.pods(), 1)
		require.Nil(r, r.pods()[0].DeletionTimestamp)
		pass(70 * time.Second)
		require.Contains(r, strings.Join(r.said(reasonBlocked), "\n"), "namespaces cannot be listed")
		pass(35 * time.Second)
		require.Empty(r, r.pods(), "it was asked to end in time")
		require.Equal(r, nstance.OutcomeDrained, r.ack(d).Outcome)
	})
}

// TestDaemonSetsUnknown: while it is not known whether a DaemonSet exists, other pods go.
func TestDaemonSetsUnknown(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.kube.Refuse(func(q *http.Request) error {
			if strings.HasSuffix(q.URL.Path, "/daemonsets") {
				return apierrors.NewForbidden(corev1.Resource("daemonsets"), "", nil)
			}
			return nil
		})
		r.node("n")
		r.pod("agent", "n", func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "agent", UID: "1", Controller: ptr.To(true)}}
		})
		r.pod("p", "n", nil)
		r.drain("n", 2*time.Minute, nil)
		pass(10 * time.Second)
		require.Len(r, r.pods(), 1)
		require.Equal(r, "agent", r.pods()[0].Name)
		require.Nil(r, r.pods()[0].DeletionTimestamp)
	})
}

// TestHangingListing: while an API server does not answer what a listing asks for, its pods wait, and
// others are evicted. It holds up a pass once, and not once for each pod and each drain.
func TestHangingListing(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.kube.Refuse(func(q *http.Request) error {
			if !strings.HasSuffix(q.URL.Path, "/daemonsets") {
				return nil
			}
			<-q.Context().Done()
			return q.Context().Err()
		})
		for i := range 4 {
			node := fmt.Sprint("n", i)
			r.node(node)
			r.pod("web-"+node, node, stops("1s"))
			for j := range 10 {
				r.pod(fmt.Sprint("agent-", node, "-", j), node, func(p *corev1.Pod) {
					p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "agent", Controller: ptr.To(true)}}
				})
			}
		}
		for i := range 4 {
			r.drain(fmt.Sprint("n", i), 10*time.Minute, nil)
		}
		pass(15 * time.Second)
		for _, p := range r.pods() {
			require.NotContains(r, p.Name, "web-")
		}
		require.Len(r, r.pods(), 40)
	})
}
