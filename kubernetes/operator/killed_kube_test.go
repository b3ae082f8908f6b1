//go:build kube

package operator_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/test/shardtest"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// A killer ends an operator at one of the changes that it makes in its own cluster.
type killer struct {
	nth    int // 0: none
	killed chan struct{}

	mu   sync.Mutex
	made int
	dead bool
}

var errKilled = errors.New("the operator was killed")

func (k *killer) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(q *http.Request) (*http.Response, error) {
		if k.strikes(q) {
			return nil, errKilled
		}
		return next.RoundTrip(q)
	})
}

// strikes reports whether the operator is dead, from the nth change on.
func (k *killer) strikes(q *http.Request) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if q.Method != http.MethodGet && !strings.Contains(q.URL.Path, "/events") && !k.dead {
		k.made++
		if k.dead = k.made == k.nth; k.dead {
			close(k.killed)
		}
	}
	return k.dead
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A killedStory is something that an operator sees to, from a cluster with a shard to the end
// that it must come to.
type killedStory func(t *testing.T, w *world, a *shardtest.Shard)

var killedStories = map[string]killedStory{
	"a pool loses a machine": func(t *testing.T, w *world, a *shardtest.Shard) {
		mp := w.pool(2, func(p *infrav1.NstanceMachinePoolSpec) { p.Spot = &infrav1.SpotOptions{} })
		w.untilMachines(mp, 2)
		w.loses(machinesOf(a, "pool")[0], a)
		w.untilMachines(mp, 2)
		require.Len(t, w.ownMachines(), 2, "%s", lazy(w.allMachines))
	},
	"a smaller pool waits for a budget": func(t *testing.T, w *world, a *shardtest.Shard) {
		mp := w.pool(2, func(p *infrav1.NstanceMachinePoolSpec) {
			p.DrainTimeout, p.OnDrainTimeout = &metav1.Duration{Duration: time.Second}, infrav1.DrainTimeoutWait
		})
		w.untilMachines(mp, 2)
		for _, m := range machinesOf(a, "pool") {
			w.readyPod(string(m.ID), "web")
		}
		budget := w.budget("web")
		w.scale(mp, 1)
		cordoned := func() (nodes []string) {
			for _, m := range machinesOf(a, "pool") {
				n := &corev1.Node{}
				require.NoError(t, w.Get(t.Context(), client.ObjectKey{Name: string(m.ID)}, n))
				if n.Spec.Unschedulable {
					nodes = append(nodes, n.Name)
				}
			}
			return nodes
		}
		require.Eventually(t, func() bool { return len(cordoned()) == 1 }, eventually, poll, "%s", lazy(w.everything))
		leaving := cordoned()[0]
		require.Empty(t, w.endPods())
		require.NoError(t, w.Delete(t.Context(), budget))
		require.Eventually(t, func() bool { w.endPods(); return len(machinesOf(a, "pool")) == 1 }, eventually, poll, "%s", lazy(w.everything))
		w.untilGone(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: leaving}})
		w.untilMachines(mp, 1)
		require.Empty(t, cordoned())
	},
	"a notice is withdrawn": func(t *testing.T, w *world, a *shardtest.Shard) {
		mp := w.pool(2, func(p *infrav1.NstanceMachinePoolSpec) { p.Spot = &infrav1.SpotOptions{} })
		w.untilMachines(mp, 2)
		m := machinesOf(a, "pool")[0]
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: string(m.ID)}}
		w.slowPod(n.Name)
		a.Cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Code: nstance.Capacity, Times: -1}) // else one of three is too many in the end
		require.NoError(t, a.Cloud.Reclaim(m.ID, 5*time.Minute))
		until(w, n, func(n *corev1.Node) bool { return n.Spec.Unschedulable }, "it is cordoned")
		require.NoError(t, a.Cloud.Withdraw(m.ID))
		until(w, n, func(n *corev1.Node) bool {
			_, annotated := n.Annotations["nstance.dev/drain-instance"]
			return !n.Spec.Unschedulable && !annotated
		}, "it is schedulable again")
		w.untilMachines(mp, 2)
	},
	"a deployment of machines loses one, and shrinks": func(t *testing.T, w *world, a *shardtest.Shard) {
		w.healthCheck(map[string]string{clusterv1.ClusterNameLabel: "c"})
		md := w.deployment(2, nil)
		w.untilRunning(2)
		w.loses(a.Cloud.Machines()[0], a)
		w.untilRunning(2)
		base := md.DeepCopy()
		md.Spec.Replicas = ptr.To[int32](1)
		require.NoError(t, w.Patch(t.Context(), md, client.MergeFrom(base)))
		left := w.untilRunning(1)
		require.Eventually(t, func() bool { return len(w.ownMachines()) == 1 && len(a.Cloud.Machines()) == 1 }, eventually, poll, "%s",
			lazy(func() string { return w.allMachines() + mustYAML(a.Instances()) }))
		require.Equal(t, left[0].Status.NodeRef.Name, string(a.Cloud.Machines()[0].ID))
	},
}

// loses has the cloud take a machine back, and waits until its Node is gone.
func (w *world) loses(m nstance.Machine, a *shardtest.Shard) {
	w.Helper()
	require.NoError(w, a.Cloud.Reclaim(m.ID, 5*time.Second))
	require.Eventually(w, func() bool { return a.Ended(m.ID) }, eventually, poll)
	w.untilGone(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: string(m.ID)}})
}

// ownMachines returns those with an instance. Cluster API leaves one without a Machine where it
// could not make that.
func (w *world) ownMachines() []infrav1.NstanceMachine {
	w.Helper()
	var list infrav1.NstanceMachineList
	require.NoError(w, w.List(w.Context(), &list, client.InNamespace(w.namespace)))
	return slices.DeleteFunc(list.Items, func(m infrav1.NstanceMachine) bool { return m.Spec.InstanceID == "" })
}

// live has a story come to its end, and the cluster deleted with all that it has, while the
// operator is killed at the nth change that it makes, and another begins. It returns how many
// there were.
func live(t *testing.T, story killedStory, nth int) int {
	w := newWorld(t)
	w.kubeconfig()
	a := w.shards.Start("a", 0)
	w.kubelets(a)
	w.nonce(w.shards.OperatorNonce())
	k := &killer{nth: nth, killed: make(chan struct{})}
	w.wrap = k.wrap
	w.start()
	ctx, end := context.WithCancel(t.Context())
	var restarting sync.WaitGroup
	restarting.Go(func() {
		select {
		case <-k.killed:
			w.wrap = nil
			w.restart()
		case <-ctx.Done():
		}
	})
	nc := w.cluster(a)
	story(t, w, a)
	require.NoError(t, w.Delete(t.Context(), &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c"}}))
	require.Eventually(t, func() bool {
		w.endPods()
		return apierrors.IsNotFound(w.Get(t.Context(), client.ObjectKeyFromObject(nc), nc)) && len(a.Cloud.Machines()) == 0
	}, eventually, poll, "%s", lazy(w.everything))
	end()
	restarting.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.made
}

// killEvery is how far apart the changes are at which the operator is killed. Nearby ones are
// repeats of one another, since each controller writes the same again and again. All of them:
// make test-kube-kills.
const killEvery = 20

// TestKubeOperatorKilled: whatever the operator was doing when its process ended, its cluster
// comes to the same end, and nothing is left behind.
func TestKubeOperatorKilled(t *testing.T) {
	t.Parallel()
	every := killEvery
	if set := os.Getenv("NSTANCE_TEST_KILL_EVERY"); set != "" {
		var err error
		every, err = strconv.Atoi(set)
		require.NoError(t, err)
	}
	for name, story := range killedStories {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			changes := live(t, story, 0)
			require.Greater(t, changes, 20)
			for nth := 1 + len(name)%every; nth <= changes; nth += every {
				t.Run(fmt.Sprint("change ", nth, " of ", changes), func(t *testing.T) {
					t.Parallel()
					live(t, story, nth)
				})
			}
		})
	}
}
