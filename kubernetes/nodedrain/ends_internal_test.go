package nodedrain

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nstance-go/nstance"
)

// allGone says of all nodes that their machines are gone.
type allGone struct{}

func (allGone) OfNodes(_ context.Context, nodes []*corev1.Node) map[types.UID]Known {
	out := map[types.UID]Known{}
	for _, node := range nodes {
		out[node.UID] = Known{Instance: nstance.InstanceID("web-" + node.Name), State: InstanceGone}
	}
	return out
}

// TestGoneWithKubelet: a node whose machine is said to be gone stays, as it is, while a kubelet renews
// its Lease, and goes with its pods once none does.
func TestGoneWithKubelet(t *testing.T) {
	virtual(t, &Options{Instances: allGone{}}, func(r *virtualRig) {
		r.node("n")
		r.pod("p", "n", nil)
		renew := func() {
			r.kube.Put(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: "n"}})
		}
		for range 60 {
			renew()
			pass(10 * time.Second)
			n := r.get("n")
			require.Empty(r, n.Annotations)
			require.False(r, n.Spec.Unschedulable)
		}
		require.Len(r, r.pods(), 1)
		pass(2 * time.Minute)
		require.False(r, r.exists("/api/v1/nodes/n"))
		require.Empty(r, r.pods())
	})
}

// TestNumberIsNoIdentity: another cluster has a machine with the number that a drain names.
func TestNumberIsNoIdentity(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("104")
		r.pod("p", "104", nil)
		d := r.drain("n", 5*time.Minute, func(d *nstance.Drain) { d.ProviderID = "104" })
		pass(time.Minute)
		require.Len(r, r.pods(), 1)
		require.False(r, r.get("104").Spec.Unschedulable)
		require.Nil(r, r.ack(d))
		require.NoError(r, r.Gone(r.ctx, d.Instance, "104"))
		require.True(r, r.exists("/api/v1/nodes/104"))
	})
}

func TestInstanceOf(t *testing.T) {
	for name, c := range map[string]struct{ annotation, providerID, want string }{
		"neither":                      {"", "aws:///zone/i-1", ""},
		"its provider ID":              {"", "nstance:///ID", "ID"},
		"its annotation":               {"ID", "aws:///zone/i-1", "ID"},
		"an annotation that is no ID":  {"../x", "nstance:///ID", "ID"},
		"an annotation of other words": {"not an instance", "aws:///zone/i-1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			valid, err := nstance.NewInstanceID("nde", time.Now())
			require.NoError(t, err)
			fill := func(s string) string { return strings.ReplaceAll(s, "ID", string(valid)) }
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{AnnotationInstance: fill(c.annotation)}}}
			node.Spec.ProviderID = fill(c.providerID)
			require.EqualValues(t, fill(c.want), InstanceOf(node))
		})
	}
}

// another runs a second Drainer of the same drains, as a restart does, for a while.
func (r *virtualRig) another(options *Options, d time.Duration) {
	next, err := New(r.kube.Config(), r.drains, options)
	require.NoError(r, err)
	ctx, cancel := context.WithCancel(r.ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = next.Run(ctx)
	}()
	pass(d)
	cancel()
	<-ended
}

// TestRestartAfterEnd: a drain that was acknowledged as drained, or whose deadline has passed, is not
// begun again.
func TestRestartAfterEnd(t *testing.T) {
	for name, reason := range map[string]string{"drained": reasonDrained, "expired": reasonExpired} {
		t.Run(name, func(t *testing.T) {
			virtual(t, nil, func(r *virtualRig) {
				r.node("n")
				if reason == reasonExpired {
					r.pod("p", "n", func(p *corev1.Pod) { p.Labels["cluster.x-k8s.io/drain"] = "wait-completed"; stops("never")(p) })
				}
				left := time.Hour
				if reason == reasonExpired {
					left = time.Minute
				}
				r.drain("n", left, nil)
				pass(2 * time.Minute)
				require.Len(r, r.said(reason), 1)
				require.Len(r, r.said(reasonStarted), 1)
				r.change("n", func(n *corev1.Node) { n.Spec.Unschedulable = false })
				r.another(nil, time.Minute)
				require.False(r, r.get("n").Spec.Unschedulable)
				require.Len(r, r.said(reason), 1)
				require.Len(r, r.said(reasonStarted), 1)
			})
		})
	}
}

// TestCancelledBeforeCordon: hooks are told of the end of a drain that has begun, though it could
// not write to the node. What another drain has written there by then stays.
func TestCancelledBeforeCordon(t *testing.T) {
	for name, others := range map[string]map[string]string{
		"nothing is written": nil,
		"another drain's":    {annotationInstance: "web-m", annotationCordoned: "true"},
	} {
		t.Run(name, func(t *testing.T) {
			hooks := &endings{}
			virtual(t, &Options{Hooks: hooks}, func(r *virtualRig) {
				var mu sync.Mutex
				refuse := true
				r.kube.Refuse(func(q *http.Request) error {
					mu.Lock()
					defer mu.Unlock()
					if refuse && q.Method == http.MethodPatch {
						return apierrors.NewForbidden(corev1.Resource("nodes"), "n", errors.New("by a policy"))
					}
					return nil
				})
				r.node("n")
				d := r.drain("n", time.Hour, nil)
				pass(10 * time.Second)
				if others != nil {
					r.change("n", annotated(maps.Clone(others)))
				}
				mu.Lock()
				refuse = false
				mu.Unlock()
				require.NoError(r, r.drains.Cancel(r.ctx, d.Instance, d.Generation))
				pass(10 * time.Second)
				hooks.mu.Lock()
				defer hooks.mu.Unlock()
				require.Equal(r, []Ending{Cancelled}, hooks.got)
				n := r.get("n")
				require.Equal(r, len(others) > 0, n.Spec.Unschedulable)
				require.Equal(r, others[annotationInstance], n.Annotations[annotationInstance])
			})
		})
	}
}

// A refusingCoordinator does not take acknowledgements.
type refusingCoordinator struct {
	nstance.DrainCoordinator
	code nstance.Code
	acks int
}

func (c *refusingCoordinator) Acknowledge(context.Context, nstance.Ack) error {
	c.acks++
	return nstance.Errorf(c.code, "no")
}

// TestAckNotWanted: an acknowledgement that is refused is not repeated, one that meets trouble is.
func TestAckNotWanted(t *testing.T) {
	for code, repeated := range map[nstance.Code]bool{
		nstance.NotFound: false, nstance.Conflict: false, nstance.Denied: false, nstance.Invalid: false,
		nstance.Unavailable: true, nstance.Throttled: true, nstance.Internal: true, nstance.Ambiguous: true,
	} {
		t.Run(string(code), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &refusingCoordinator{code: code}
				d := &Drainer{drains: c, workers: map[nstance.InstanceID]*worker{}, options: Options{Log: slog.New(slog.DiscardHandler)}}
				w := newWorker(d, nstance.Drain{Instance: "web-1", Generation: 1, Deadline: time.Now().Add(time.Hour)}, true)
				w.start(t.Context())
				time.AfterFunc(time.Minute, w.endLife)
				w.acknowledge(w.life, nstance.OutcomeDrained, "")
				require.Equal(t, repeated, c.acks > 1, "%d times", c.acks)
				w.close()
			})
		})
	}
}

// TestGoneOfNodeInUse: the node of a machine that is gone is left alone, with its pods, as soon as
// another machine's kubelet has taken it over.
func TestGoneOfNodeInUse(t *testing.T) {
	for name, when := range map[string]string{"before": "", "after its pods were listed": "/api/v1/pods"} {
		t.Run(name, func(t *testing.T) {
			virtual(t, nil, func(r *virtualRig) {
				taken := func() { r.change("n", func(n *corev1.Node) { n.Status.NodeInfo.SystemUUID = "2" }) }
				r.node("n")
				r.change("n", func(n *corev1.Node) { n.Status.NodeInfo.SystemUUID = "1" })
				r.pod("p", "n", nil)
				pass(time.Second)
				if when == "" {
					taken()
				}
				r.kube.Refuse(func(q *http.Request) error {
					if when != "" && q.URL.Path == when {
						taken()
					}
					return nil
				})
				require.ErrorIs(r, r.Gone(r.ctx, "web-n", "cloud:///n"), nstance.Conflict)
				require.Len(r, r.pods(), 1)
				require.Nil(r, r.pods()[0].DeletionTimestamp)
				n := r.get("n")
				require.Equal(r, when == "", len(n.Spec.Taints) == 0)
			})
		})
	}
}

// TestGoneTaints: until its volumes are detached the node of a machine that is gone has the taint by
// which Kubernetes detaches them, and no new pods.
func TestGoneTaints(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("n")
		r.attach("v", "n")
		pass(time.Second)
		ended := make(chan error, 1)
		r.running.Go(func() { ended <- r.Gone(r.ctx, "web-n", "cloud:///n") })
		pass(5 * time.Second)
		n := r.get("n")
		require.True(r, n.Spec.Unschedulable)
		require.Equal(r, []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}}, n.Spec.Taints)

		r.kube.Refuse(func(q *http.Request) error {
			if q.Method == http.MethodDelete && q.URL.Path == "/api/v1/nodes/n" {
				return apierrors.NewConflict(corev1.Resource("nodes"), "n", errors.New("the UID in the precondition does not match"))
			}
			return nil
		})
		r.kube.Remove("/apis/storage.k8s.io/v1/volumeattachments/v")
		require.NoError(r, <-ended, "another node has its name by now")
	})
}

// TestCordonOnly: pods of a node that is only cordoned are left to end, until another cause has it
// drained.
func TestCordonOnly(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("n")
		r.pod("web", "n", nil)
		d := r.drain("n", time.Hour, func(d *nstance.Drain) { d.CordonOnly = true })
		pass(time.Minute)
		require.True(r, r.get("n").Spec.Unschedulable)
		require.Len(r, r.pods(), 1)
		require.Nil(r, r.pods()[0].DeletionTimestamp)
		require.Nil(r, r.ack(d))
		d.CordonOnly = false
		require.NoError(r, r.drains.Start(r.ctx, d))
		pass(10 * time.Second)
		require.Empty(r, r.pods())
	})
}

// TestTiersOfSilentKubelet: pods of a later tier do not wait for one whose kubelet cannot end it.
func TestTiersOfSilentKubelet(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("n")
		r.change("n", readyIs(corev1.ConditionUnknown))
		r.pod("p", "n", func(p *corev1.Pod) {
			stops("never")(p)
			grace := int64(600)
			p.Spec.TerminationGracePeriodSeconds = &grace
		})
		r.pod("critical", "n", func(p *corev1.Pod) { p.Spec.PriorityClassName = "system-node-critical" })
		r.drain("n", 20*time.Minute, nil)
		pass(15 * time.Second)
		require.Len(r, r.pods(), 1)
	})
}
