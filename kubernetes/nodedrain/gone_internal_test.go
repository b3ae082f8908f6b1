package nodedrain

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/nstance-go/nstance"
)

// TestGoneTakenOverLate: a node that another machine's kubelet takes over while its volumes are detached
// is left alone, and one that it has taken over before is not waited for.
func TestGoneTakenOverLate(t *testing.T) {
	taken := func(r *virtualRig) { r.change("n", func(n *corev1.Node) { n.Status.NodeInfo.SystemUUID = "2" }) }
	for name, c := range map[string]struct {
		when, longest time.Duration
	}{
		"before":                     {0, time.Second},
		"while volumes are detached": {5 * time.Second, detachLimit + time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, nil, func(r *virtualRig) {
				r.node("n")
				r.change("n", func(n *corev1.Node) { n.Status.NodeInfo.SystemUUID = "1" })
				r.attach("v", "n")
				pass(time.Second)
				if c.when == 0 {
					taken(r)
				} else {
					time.AfterFunc(c.when, func() { taken(r) })
				}
				began := time.Now()
				require.ErrorIs(r, r.Gone(r.ctx, "web-n", "cloud:///n"), nstance.Conflict)
				require.Less(r, time.Since(began), c.longest)
				require.True(r, r.exists("/api/v1/nodes/n"))
			})
		})
	}
}

// TestGoneNameReused: a node of that name that registers before pods are listed keeps its pods.
func TestGoneNameReused(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("n")
		pass(time.Second)
		r.kube.Refuse(func(q *http.Request) error {
			if q.URL.Path == "/api/v1/pods" {
				r.kube.Remove("/api/v1/nodes/n")
				r.node("n")
				r.pod("new", "n", nil)
			}
			return nil
		})
		require.NoError(r, r.Gone(r.ctx, "web-n", "cloud:///n"))
		require.True(r, r.exists("/api/v1/nodes/n"))
		require.Len(r, r.pods(), 1)
		require.Nil(r, r.pods()[0].DeletionTimestamp)
	})
}

// TestSilentSoon: the node of a machine that is gone is removed seconds after its kubelet's Lease has ended.
func TestSilentSoon(t *testing.T) {
	virtual(t, &Options{Instances: allGone{}}, func(r *virtualRig) {
		r.kube.Put(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: "n"}})
		r.node("n")
		pass(defaultLease - time.Second)
		require.True(r, r.exists("/api/v1/nodes/n"))
		pass(suspectInterval + 5*time.Second)
		require.False(r, r.exists("/api/v1/nodes/n"))
	})
}

// TestNodeReplacedAtOnce: a node that is replaced by another one of the machine is cordoned as the first was.
func TestNodeReplacedAtOnce(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("n")
		r.pod("job", "n", waits)
		d := r.drain("n", time.Hour, nil)
		pass(5 * time.Second)
		require.True(r, r.kube.Remove("/api/v1/nodes/n"))
		r.node("n")
		pass(15 * time.Second)
		require.True(r, r.get("n").Spec.Unschedulable)
		require.Nil(r, r.ack(d))
	})
}

// TestPodReplacedBeforeEviction: a pod that has the name of the one that is to be evicted, or deleted past
// its budget, stays.
func TestPodReplacedBeforeEviction(t *testing.T) {
	for name, last := range map[string]string{"evicted": "/db-0/eviction", "deleted": "/db-0"} {
		t.Run(name, func(t *testing.T) {
			virtual(t, nil, func(r *virtualRig) {
				r.kube.Refuse(func(q *http.Request) error {
					if q.Method != http.MethodGet && strings.HasSuffix(q.URL.Path, last) {
						r.kube.Remove("/api/v1/namespaces/ns/pods/db-0")
						r.pod("db-0", "m", nil)
					} else if strings.HasSuffix(q.URL.Path, "/eviction") {
						return errBudget
					}
					return nil
				})
				r.node("n")
				r.node("m")
				r.pod("db-0", "n", nil)
				d := r.drain("n", 2*time.Minute, nil)
				pass(100 * time.Second)
				require.NotNil(r, r.ack(d))
				require.Equal(r, nstance.OutcomeDrained, r.ack(d).Outcome)
				require.Len(r, r.pods(), 1)
				require.Nil(r, r.pods()[0].DeletionTimestamp)
			})
		})
	}
}

// TestGoneNameReusedLate: a node of that name that registers right before the deletion stays.
func TestGoneNameReusedLate(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("n")
		pass(time.Second)
		r.kube.Refuse(func(q *http.Request) error {
			if q.Method == http.MethodDelete && q.URL.Path == "/api/v1/nodes/n" {
				r.kube.Remove("/api/v1/nodes/n")
				r.node("n")
			}
			return nil
		})
		require.NoError(r, r.Gone(r.ctx, "web-n", "cloud:///n"))
		require.True(r, r.exists("/api/v1/nodes/n"))
	})
}

// TestGoneInTrouble: the node of a machine that is gone is removed within seconds, also where it cannot
// be tainted, or its pods cannot be deleted.
func TestGoneInTrouble(t *testing.T) {
	for name, selected := range map[string]func(*http.Request) bool{
		"it is not tainted":      func(q *http.Request) bool { return q.Method == http.MethodPatch },
		"pods are not listed":    func(q *http.Request) bool { return q.URL.Path == "/api/v1/pods" },
		"a pod is not deleted":   func(q *http.Request) bool { return strings.HasSuffix(q.URL.Path, "/pods/p") },
		"attachments are secret": func(q *http.Request) bool { return strings.HasSuffix(q.URL.Path, "/volumeattachments") },
	} {
		for answer, do := range map[string]func(*http.Request) error{
			"refused": func(*http.Request) error {
				return apierrors.NewForbidden(corev1.Resource("nodes"), "n", errors.New("by a policy"))
			},
			"hangs": hang,
		} {
			t.Run(name+": "+answer, func(t *testing.T) {
				virtual(t, nil, func(r *virtualRig) {
					r.node("n")
					r.pod("p", "n", nil)
					pass(time.Second)
					r.kube.Refuse(func(q *http.Request) error {
						if selected(q) {
							return do(q)
						}
						return nil
					})
					began := time.Now()
					require.NoError(r, r.Gone(r.ctx, "web-n", "cloud:///n"))
					require.False(r, r.exists("/api/v1/nodes/n"))
					limit := goneLimit
					if name == "attachments are secret" {
						limit = detachLimit
					}
					require.Less(r, time.Since(began), limit+time.Second)
				})
			})
		}
	}
}

// TestHangingLeases: nodes are compared while the Lease of one of them is not answered.
func TestHangingLeases(t *testing.T) {
	virtual(t, &Options{Instances: allGone{}}, func(r *virtualRig) {
		r.kube.Refuse(func(q *http.Request) error {
			if strings.HasSuffix(q.URL.Path, "/leases/a") {
				return hang(q)
			}
			return nil
		})
		r.node("a")
		pass(time.Minute)
		r.node("b") // which has no Lease
		pass(time.Minute)
		require.True(r, r.exists("/api/v1/nodes/a"))
		require.False(r, r.exists("/api/v1/nodes/b"))
	})
}

// TestManyAreGone: nodes whose machines are gone wait for their volumes at the same time.
func TestManyAreGone(t *testing.T) {
	virtual(t, &Options{Instances: allGone{}}, func(r *virtualRig) {
		for _, name := range []string{"a", "b", "c", "d"} {
			r.node(name)
			r.attach("of-"+name, name)
		}
		pass(time.Minute + detachLimit)
		require.False(r, r.exists("/api/v1/nodes/"))
	})
}

// TestNodesAreForgotten: what is remembered of nodes goes with them, also where their deletion was missed.
func TestNodesAreForgotten(t *testing.T) {
	virtual(t, &Options{Instances: allGone{}}, func(r *virtualRig) {
		for _, name := range []string{"a", "b"} {
			r.node(name)
			r.kube.Put(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: name}})
			r.change(name, func(n *corev1.Node) { n.Status.NodeInfo.SystemUUID = name })
		}
		remembered := func() []int {
			r.kubelets.mu.Lock()
			defer r.kubelets.mu.Unlock()
			r.nodes.systems.mu.Lock()
			defer r.nodes.systems.mu.Unlock()
			return []int{len(r.kubelets.last), len(r.nodes.systems.first)}
		}
		pass(20 * time.Second)
		require.Equal(r, []int{2, 2}, remembered())
		a, b := r.get("a"), r.get("b")
		pass(2 * time.Minute)
		require.False(r, r.exists("/api/v1/nodes/"))
		require.Equal(r, []int{0, 0}, remembered())

		var s systems
		h := s.handler()
		h.OnAdd(&a, true)
		h.OnUpdate(&a, &b)
		require.Len(r, s.first, 1, "another node of that name")
		h.OnDelete(cache.DeletedFinalStateUnknown{Key: "b", Obj: &b})
		require.Empty(r, s.first)
	})
}
