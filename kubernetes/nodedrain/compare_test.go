//go:build kube

package nodedrain_test

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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/kubernetes/nodedrain"
)

// A registry knows the instances of one test by their nodes' provider IDs.
type registry struct {
	mu    sync.Mutex
	known map[string]nodedrain.Known
	asked int
}

func (r *registry) set(node string, state nodedrain.InstanceState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known == nil {
		r.known = map[string]nodedrain.Known{}
	}
	r.known["aws:///zone-a/i-"+node] = nodedrain.Known{Instance: nstance.InstanceID("web-" + node), State: state}
}

func (r *registry) OfNodes(_ context.Context, nodes []*corev1.Node) map[types.UID]nodedrain.Known {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	out := map[types.UID]nodedrain.Known{}
	for _, node := range nodes {
		if k, ok := r.known[node.Spec.ProviderID]; ok {
			out[node.UID] = k
		}
	}
	return out
}

func (r *registry) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked
}

func (r *rig) exists(node string) bool {
	r.Helper()
	_, err := servers.Client.CoreV1().Nodes().Get(r.Context(), node, metav1.GetOptions{})
	if err != nil {
		require.True(r, apierrors.IsNotFound(err), "%v", err)
	}
	return err == nil
}

// TestKubeCompareNode: the node of an instance that stays is marked with it, and that of one
// whose machine is gone is removed only when its kubelet is silent.
func TestKubeCompareNode(t *testing.T) {
	r := newRig(t)
	a, b := r.node("a"), r.node("b")
	known := &registry{}
	known.set(a, nodedrain.InstanceStays)
	d, _ := r.run(&nodedrain.Options{Instances: known})
	r.eventually(func() bool { return r.get(a).Annotations[nodedrain.AnnotationInstance] == "web-"+a }, "not marked")
	require.Empty(t, r.get(b).Annotations[nodedrain.AnnotationInstance], "nothing is known of it")
	lease := func() string {
		l, err := servers.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), a, metav1.GetOptions{})
		require.NoError(t, err)
		return l.ResourceVersion
	}
	renewed := lease()
	known.set(a, nodedrain.InstanceGone)
	count := known.count()
	d.Compare()
	r.eventually(func() bool { return known.count() >= count+3 && lease() != renewed }, "not looked at again")
	require.True(t, r.exists(a), "its kubelet lives")
	require.False(t, r.get(a).Spec.Unschedulable)
}

// TestKubeCompareGone: the node of a machine that ended while no Drainer ran is removed, and
// its pods move.
func TestKubeCompareGone(t *testing.T) {
	r := newRig(t)
	a := r.silentNode("a")
	r.bound("p", a)
	known := &registry{}
	known.set(a, nodedrain.InstanceGone)
	r.run(&nodedrain.Options{Instances: known})
	r.eventually(func() bool { return !r.exists(a) && r.getPod("p") == nil }, "not removed")
}

// silentNode makes a node whose kubelet has fallen silent, as Kubernetes has found.
func (r *rig) silentNode(name string) string {
	r.Helper()
	name = r.namespace + "-" + name
	_, err := servers.Client.CoreV1().Nodes().Create(r.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"test.nstance.dev/silent": "true"}, Labels: map[string]string{"test": r.namespace}},
		Spec:       corev1.NodeSpec{ProviderID: "aws:///zone-a/i-" + name},
	}, create)
	require.NoError(r, err)
	r.Cleanup(func() { _ = servers.Client.CoreV1().Nodes().Delete(background, name, remove) })
	_, err = servers.Client.CoreV1().Nodes().PatchStatus(r.Context(), name, []byte(`{"status":{"conditions":[{"type":"Ready","status":"Unknown"}]}}`))
	require.NoError(r, err)
	return name
}

// bound makes a pod that nothing runs.
func (r *rig) bound(name, node string) {
	r.Helper()
	r.makePod(name, node, func(p *corev1.Pod) { p.Labels["test.nstance.dev/kubelet"] = "none" })
}

// errKilled is what a Drainer gets for each request once it is killed.
var errKilled = errors.New("the process was killed")

// killAt has a Drainer's process end at its nth change of a node or pod: before the change,
// or when it is made and its answer is lost. It closes killed then. A Drainer that is not
// killed makes fewer changes.
type killAt struct {
	nth    int
	after  bool
	mu     sync.Mutex
	made   int
	dead   bool
	killed chan struct{}
}

func (k *killAt) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(q *http.Request) (*http.Response, error) {
		die := k.counts(q)
		if die && !k.after || k.isDead() {
			k.die()
			return nil, errKilled
		}
		answer, err := next.RoundTrip(q)
		if die {
			k.die()
			if answer != nil {
				_ = answer.Body.Close()
			}
			return nil, errKilled
		}
		return answer, err
	})
}

// counts reports whether this is the request at which the process ends.
func (k *killAt) counts(q *http.Request) bool {
	if q.Method == http.MethodGet || strings.Contains(q.URL.Path, "/events") {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.made++
	return k.made == k.nth
}

func (k *killAt) isDead() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.dead
}

func (k *killAt) die() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.dead {
		k.dead = true
		close(k.killed)
	}
}

// TestKubeKilledAtEveryStep: whatever a Drainer was doing when its process ended, and
// whatever happened to the machine before the next one began, the end is the same.
func TestKubeKilledAtEveryStep(t *testing.T) {
	removed := func(r *rig, node string) bool { return !r.exists(node) && r.getPod("p") == nil }
	for _, path := range []struct {
		name    string
		changes int                     // that are made on the way
		first   nodedrain.InstanceState // what is so when the first Drainer begins
		// meanwhile is what happens while none runs.
		meanwhile func(*rig, *registry, string, nstance.Drain)
		ended     func(*rig, string) bool
	}{
		{"machine ends in its drain", 5, nodedrain.InstanceLeaves, func(r *rig, known *registry, node string, d nstance.Drain) {
			known.set(node, nodedrain.InstanceGone)
			require.NoError(r, r.drains.End(r.Context(), d.Instance))
		}, removed},
		{"machine is gone", 4, nodedrain.InstanceGone, func(*rig, *registry, string, nstance.Drain) {}, removed},
		{"drain is cancelled", 5, nodedrain.InstanceLeaves, func(r *rig, known *registry, node string, d nstance.Drain) {
			known.set(node, nodedrain.InstanceStays)
			require.NoError(r, r.drains.Cancel(r.Context(), d.Instance, d.Generation))
		}, func(r *rig, node string) bool {
			n := r.get(node)
			return !n.Spec.Unschedulable && !annotated(n) && !excluded(n) && n.Annotations[nodedrain.AnnotationInstance] == "web-"+node
		}},
	} {
		for i := range 2 * path.changes {
			nth, after := 1+i/2, i%2 == 1
			t.Run(fmt.Sprintf("%s/change %d/made %t", path.name, nth, after), func(t *testing.T) {
				r := newRig(t)
				a := r.silentNode("a")
				r.bound("p", a)
				k := &killAt{nth: nth, after: after, killed: make(chan struct{})}
				known := &registry{}
				known.set(a, path.first)
				r.wrap = k.wrap
				_, stop := r.run(&nodedrain.Options{Instances: known})
				var d nstance.Drain
				if path.first == nodedrain.InstanceLeaves {
					d = r.drain(a, time.Minute, nil)
				}
				select {
				case <-k.killed:
				case <-time.After(5 * time.Second): // it has done all that it does
				}
				stop()
				path.meanwhile(r, known, a, d)
				r.wrap = nil
				r.run(&nodedrain.Options{Instances: known})
				r.eventually(func() bool { return path.ended(r, a) }, "not as without an interruption")
			})
		}
	}
}
