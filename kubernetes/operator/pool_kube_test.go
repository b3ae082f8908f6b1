//go:build kube

package operator_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/internal/test/never"
	"github.com/nstance-go/nstance/internal/test/shardtest"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/kubetest"
	"github.com/nstance-go/nstance/kubernetes/operator"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// provisioned is a world whose cluster is provisioned over the shards a and b, with a
// kubelet on each machine.
func provisioned(t *testing.T) (w *world, a, b *shardtest.Shard) {
	t.Helper()
	w = newWorld(t)
	a, b = w.provision()
	return w, a, b
}

func (w *world) provision() (a, b *shardtest.Shard) {
	w.Helper()
	w.kubeconfig()
	a, b = w.shards.Start("a", 0), w.shards.Start("b", 0)
	w.kubelets(a, b)
	w.nonce(w.shards.OperatorNonce())
	w.start()
	nc := w.cluster(a, b)
	until(w, nc, func(nc *infrav1.NstanceCluster) bool {
		return isTrue(nc, infrav1.ConditionShardsConnected) && isTrue(nc, infrav1.ConditionNodesReached)
	}, "shards and nodes are reached")
	return a, b
}

// healthy are the conditions that make a Machine available.
var healthy = []corev1.NodeCondition{
	{Type: corev1.NodeReady, Status: corev1.ConditionTrue}, {Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse},
	{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse}, {Type: corev1.NodePIDPressure, Status: corev1.ConditionFalse},
}

// room is what a kubelet says that its node has. kwok gives it only to nodes that are not
// ready yet.
var room = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("110")}

// kubeletVersion is that of the documented Cluster: Cluster API takes a pool whose nodes have
// another one for one that is being upgraded, and does not look again when a node changes.
const kubeletVersion = "v1.36.3"

// kubelets makes a healthy Node for each machine that there is, as its kubelet would.
func (w *world) kubelets(shards ...*shardtest.Shard) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.Context()))
	var running sync.WaitGroup
	known := map[nstance.InstanceID]bool{}
	running.Go(func() {
		for sleep.For(ctx, 50*time.Millisecond) {
			for _, s := range shards {
				for _, m := range s.Cloud.Machines() {
					if known[m.ID] || m.Status != nstance.StatusRunning {
						continue
					}
					n := &corev1.Node{
						ObjectMeta: metav1.ObjectMeta{Name: string(m.ID)}, Spec: corev1.NodeSpec{ProviderID: "nstance:///" + string(m.ID)},
						Status: corev1.NodeStatus{
							Conditions: healthy, Capacity: room, Allocatable: room, NodeInfo: corev1.NodeSystemInfo{KubeletVersion: kubeletVersion},
						},
					}
					err := w.nodes.Create(ctx, n)
					known[m.ID] = err == nil || apierrors.IsAlreadyExists(err)
					if !known[m.ID] {
						assert.Error(w, ctx.Err(), "%v", err)
					}
				}
			}
		}
	})
	w.Cleanup(func() {
		cancel()
		running.Wait()
		for id := range known {
			_ = w.nodes.Delete(context.WithoutCancel(w.Context()), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: string(id)}})
		}
	})
}

// pool makes a MachinePool with its NstanceMachinePool, both named pool.
func (w *world) pool(replicas int32, change func(*infrav1.NstanceMachinePoolSpec), bootstrap ...string) *clusterv1.MachinePool {
	w.Helper()
	p := &infrav1.NstanceMachinePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "pool"},
		Spec:       infrav1.NstanceMachinePoolSpec{Template: "vm"},
	}
	if change != nil {
		change(&p.Spec)
	}
	require.NoError(w, w.Create(w.Context(), p))
	mp := &clusterv1.MachinePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "pool"},
		Spec: clusterv1.MachinePoolSpec{ClusterName: "c", Replicas: &replicas, Template: clusterv1.MachineTemplateSpec{Spec: clusterv1.MachineSpec{
			ClusterName: "c", Bootstrap: clusterv1.Bootstrap{DataSecretName: ptr.To(strings.Join(bootstrap, ""))},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: "NstanceMachinePool", Name: "pool"},
		}}},
	}
	require.NoError(w, w.Create(w.Context(), mp))
	return mp
}

func (w *world) scale(mp *clusterv1.MachinePool, replicas int32) {
	w.Helper()
	base := mp.DeepCopy()
	mp.Spec.Replicas = &replicas
	require.NoError(w, w.Patch(w.Context(), mp, client.MergeFrom(base)))
}

// machines returns the Machines of the cluster.
func (w *world) machines() []clusterv1.Machine {
	w.Helper()
	var list clusterv1.MachineList
	require.NoError(w, w.List(w.Context(), &list, client.InNamespace(w.namespace)))
	return list.Items
}

// untilMachines waits until there are so many Machines, each with a Node and none leaving,
// and what the pool says fits.
func (w *world) untilMachines(mp *clusterv1.MachinePool, n int) {
	w.Helper()
	p := &infrav1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: mp.Name}}
	var machines []clusterv1.Machine
	require.Eventually(w, func() bool {
		machines = w.machines()
		if w.Get(w.Context(), client.ObjectKeyFromObject(p), p) != nil || w.Get(w.Context(), client.ObjectKeyFromObject(mp), mp) != nil {
			return false
		}
		return len(machines) == n && !slices.ContainsFunc(machines, func(m clusterv1.Machine) bool {
			return m.Status.NodeRef.Name == "" || !m.DeletionTimestamp.IsZero() || !slices.Contains(p.Spec.ProviderIDList, m.Spec.ProviderID)
		}) && len(p.Spec.ProviderIDList) == n && int(ptr.Deref(p.Status.Replicas, -1)) == n && len(mp.Status.NodeRefs) == n
	}, eventually, poll, "%d machines: %s", n, lazy(func() string {
		out := ""
		for _, m := range machines {
			out += m.Name + " node=" + m.Status.NodeRef.Name + " provider=" + m.Spec.ProviderID + " phase=" + m.Status.Phase + "\n"
		}
		return out + mustYAML(p) + mustYAML(mp)
	}))
}

// sizes returns what the pool asks of its shards.
func (w *world) sizes() map[string]int32 { return w.sizesOf("pool") }

// untilSizes waits until the pool asks that of its shards: what one could not make it gives
// up only when another has it ready.
func (w *world) untilSizes(want map[string]int32) {
	w.Helper()
	require.Eventually(w, func() bool { return maps.Equal(w.sizes(), want) }, eventually, poll, "%v: %s", want, lazy(w.everything))
}

func (w *world) sizesOf(group string) map[string]int32 {
	w.Helper()
	var list infrav1.NstanceShardGroupList
	require.NoError(w, w.List(w.Context(), &list, client.InNamespace(w.namespace)))
	out := map[string]int32{}
	for _, g := range list.Items {
		if g.Spec.Group == group {
			out[g.Spec.Shard] = *g.Spec.Size
		}
	}
	return out
}

// TestKubePool splits a MachinePool over two shards, scales it, and gives it up. Cluster
// API makes a Machine for each instance, and finds its Node.
func TestKubePool(t *testing.T) {
	t.Parallel()
	w, a, b := provisioned(t)
	mp := w.pool(5, nil)
	w.untilMachines(mp, 5)
	w.untilSizes(map[string]int32{"a": 3, "b": 2})
	for _, m := range w.machines() {
		require.Equal(t, m.Name, m.Status.NodeRef.Name)
	}
	w.scale(mp, 9)
	w.untilMachines(mp, 9)
	w.untilSizes(map[string]int32{"a": 5, "b": 4})
	w.scale(mp, 5)
	w.untilMachines(mp, 5)
	w.untilSizes(map[string]int32{"a": 3, "b": 2})

	require.NoError(t, w.Delete(t.Context(), mp))
	w.untilGone(mp)
	require.Empty(t, w.machines())
	require.Empty(t, a.Cloud.Machines())
	require.Empty(t, b.Cloud.Machines())
}

// TestKubePoolReclaim replaces a machine that the cloud takes back. It stays in the list
// of provider IDs until it is gone: Cluster API deletes the nodes of others at once.
func TestKubePoolReclaim(t *testing.T) {
	t.Parallel()
	w, a, _ := provisioned(t)
	mp := w.pool(3, func(s *infrav1.NstanceMachinePoolSpec) { s.Shape = infrav1.Shape{Spot: &infrav1.SpotOptions{}} })
	w.untilMachines(mp, 3)
	doomed := a.Cloud.Machines()[0]
	machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: string(doomed.ID)}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: string(doomed.ID)}}
	until(w, node, func(n *corev1.Node) bool { return metav1.HasLabel(n.ObjectMeta, "cluster.x-k8s.io/interruptible") }, "interruptible")

	pod := w.slowPod(node.Name)
	require.NoError(t, a.Cloud.Reclaim(doomed.ID, time.Minute))
	until(w, machine, func(m *clusterv1.Machine) bool {
		return meta.IsStatusConditionTrue(m.Status.Conditions, infrav1.ConditionInterrupted)
	}, "its Machine says so")
	require.Contains(t, machine.Annotations, "pre-drain.delete.hook.machine.cluster.x-k8s.io/nstance", "and is not drained by Cluster API")
	until(w, node, func(n *corev1.Node) bool {
		return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == infrav1.ConditionInterrupted && c.Status == corev1.ConditionTrue
		})
	}, "so does its Node")
	p := &infrav1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "pool"}}
	until(w, p, func(p *infrav1.NstanceMachinePool) bool { return len(p.Spec.ProviderIDList) == 4 }, "replaced before it is gone")
	require.Contains(t, p.Spec.ProviderIDList, "nstance:///"+string(doomed.ID))
	require.NoError(t, w.Delete(t.Context(), pod, client.GracePeriodSeconds(0)))
	w.untilGone(machine)
	w.untilMachines(mp, 3)
	w.untilGone(node)
}

// TestKubePoolScaleDown removes the machine that an autoscaler has marked, and keeps the
// shards even.
func TestKubePoolScaleDown(t *testing.T) {
	t.Parallel()
	w, a, b := provisioned(t)
	mp := w.pool(4, nil)
	w.untilMachines(mp, 4)
	mark := func(id nstance.InstanceID) *clusterv1.Machine {
		m := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: string(id)}}
		require.NoError(t, w.Patch(t.Context(), m, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"cluster.x-k8s.io/delete-machine":"now"}}}`))))
		return m
	}
	marked := mark(newest(a))
	w.scale(mp, 3)
	w.untilGone(marked)
	w.untilMachines(mp, 3)
	w.untilSizes(map[string]int32{"a": 1, "b": 2})

	// The other shard has to shrink: the marked machine goes all the same.
	marked = mark(newest(a))
	w.scale(mp, 2)
	w.untilGone(marked)
	w.untilMachines(mp, 2)
	w.untilSizes(map[string]int32{"a": 1, "b": 1})
	require.Len(t, b.Cloud.Machines(), 1)
}

// TestKubePoolScaleDownLate: a marked machine whose shard does not have the smaller size yet is not
// drained, since the shard would replace it.
func TestKubePoolScaleDownLate(t *testing.T) {
	t.Parallel()
	w, a, _ := provisioned(t)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "join"}, Data: map[string][]byte{"value": []byte("join")}}
	require.NoError(t, w.Create(t.Context(), secret.DeepCopy()))
	mp := w.pool(4, func(s *infrav1.NstanceMachinePoolSpec) { s.Template = "joining" }, "join")
	w.untilMachines(mp, 4)
	marked := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: string(newest(a))}}
	require.NoError(t, w.Patch(t.Context(), marked, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"cluster.x-k8s.io/delete-machine":"now"}}}`))))
	require.NoError(t, w.Delete(t.Context(), secret.DeepCopy())) // nothing of the group can be changed without it
	w.scale(mp, 3)
	sg := &infrav1.NstanceShardGroup{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "pool--a"}}
	until(w, sg, func(sg *infrav1.NstanceShardGroup) bool {
		return *sg.Spec.Size == 1 && meta.IsStatusConditionFalse(sg.Status.Conditions, infrav1.ConditionSynced)
	}, "not asked for")
	never.True(t, func() bool { return len(w.machines()) != 4 || len(a.Cloud.Machines()) != 2 }, 3*time.Second, 20*time.Millisecond)
	require.NoError(t, w.Create(t.Context(), secret))
	w.untilGone(marked)
	w.untilMachines(mp, 3)
	w.untilSizes(map[string]int32{"a": 1, "b": 2})
}

// newest returns the youngest machine of a shard, which would go last.
func newest(s *shardtest.Shard) (id nstance.InstanceID) {
	for _, m := range s.Cloud.Machines() {
		id = max(id, m.ID)
	}
	return id
}

// TestKubePoolRemediation has the pool replace a machine that a MachineHealthCheck finds
// unhealthy, replacement first: Cluster API leaves that to the pool.
func TestKubePoolRemediation(t *testing.T) {
	t.Parallel()
	w, a, _ := provisioned(t)
	mp := w.pool(2, nil)
	w.untilMachines(mp, 2)
	machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: string(newest(a))}}
	pod := w.slowPod(machine.Name)
	require.NoError(t, w.Patch(t.Context(), machine, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"cluster.x-k8s.io/remediate-machine":""}}}`))))
	w.healthCheck(map[string]string{clusterv1.ClusterNameLabel: "c"})
	require.Eventually(t, func() bool { return len(w.machines()) == 3 }, eventually, poll, "replaced first")
	require.NoError(t, w.Delete(t.Context(), pod, client.GracePeriodSeconds(0)))
	w.untilGone(machine)
	w.untilMachines(mp, 2)
}

// TestKubePoolShardLost keeps everything of a shard that is away, also for an operator
// that has never seen it, and scales the others.
func TestKubePoolShardLost(t *testing.T) {
	t.Parallel()
	w, a, b := provisioned(t)
	mp := w.pool(4, nil)
	w.untilMachines(mp, 4)
	b.Stop()
	w.restart()
	w.scale(mp, 6)
	require.Eventually(t, func() bool { return len(a.Cloud.Machines()) == 3 && len(w.machines()) == 5 }, eventually, poll, "shard a has its part")
	p := &infrav1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "pool"}}
	until(w, p, func(p *infrav1.NstanceMachinePool) bool { return len(p.Spec.ProviderIDList) == 5 }, "those of b are still there")
	require.Len(t, b.Cloud.Machines(), 2)
	b.Restart()
	w.untilMachines(mp, 6)
	w.untilSizes(map[string]int32{"a": 3, "b": 3})
}

// TestKubePoolBootstrap gives new machines the bootstrap data as it is then, and replaces
// none for it: its token is renewed all the time.
func TestKubePoolBootstrap(t *testing.T) {
	t.Parallel()
	w, a, b := provisioned(t)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "join-1"}, Data: map[string][]byte{"value": []byte("join one")},
	}
	require.NoError(t, w.Create(t.Context(), secret))
	mp := w.pool(2, func(s *infrav1.NstanceMachinePoolSpec) { s.Template = "joining" }, "join-1")
	w.untilMachines(mp, 2)
	data := func() (out []string) {
		for _, s := range []*shardtest.Shard{a, b} {
			for _, m := range s.Cloud.Machines() {
				spec, ok := s.Cloud.Spec(m.ID)
				require.True(t, ok)
				_, joins, _ := strings.Cut(string(spec.UserData), "\n")
				out = append(out, joins)
			}
		}
		slices.Sort(out)
		return out
	}
	require.Equal(t, []string{"join one", "join one"}, data())

	require.NoError(t, w.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "join-2"}, Data: map[string][]byte{"value": []byte("join two")},
	}))
	base := mp.DeepCopy()
	mp.Spec.Template.Spec.Bootstrap.DataSecretName, mp.Spec.Replicas = ptr.To("join-2"), ptr.To[int32](4)
	require.NoError(t, w.Patch(t.Context(), mp, client.MergeFrom(base)))
	w.untilMachines(mp, 4)
	require.Equal(t, []string{"join one", "join one", "join two", "join two"}, data())
}

// TestKubePoolMistakes has the condition name what is wrong, and what to do.
func TestKubePoolMistakes(t *testing.T) {
	t.Parallel()
	w, _, _ := provisioned(t)
	w.pool(1, func(s *infrav1.NstanceMachinePoolSpec) { s.Shards = []string{"a", "z"} })
	p := &infrav1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "pool"}}
	until(w, p, func(p *infrav1.NstanceMachinePool) bool {
		c := meta.FindStatusCondition(p.Status.Conditions, infrav1.ConditionSynced)
		return c != nil && c.Message == "spec.shards: NstanceCluster c has no shard z (name shards of the NstanceCluster: a, b)"
	}, "it says what is wrong")
}

// TestKubePoolFailover has the other shard make what one has no capacity for, also under
// an operator that has not seen it, and gives it back with never fewer machines than
// replicas.
func TestKubePoolFailover(t *testing.T) {
	t.Parallel()
	w, _, b := provisioned(t)
	b.Cloud.SetCapacity(simcloud.Pool{}, 1)
	mp := w.pool(6, func(s *infrav1.NstanceMachinePoolSpec) { s.Distribution = infrav1.DistributionFailover })
	w.untilMachines(mp, 6)
	w.untilSizes(map[string]int32{"a": 5, "b": 1})
	p := &infrav1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "pool"}}
	until(w, p, func(p *infrav1.NstanceMachinePool) bool { return ptr.Deref(p.Status.Shards[1].Limit, -1) == 1 }, "the status says so")
	require.Contains(t, p.Status.Shards[1].Message, "no capacity for more than 1 machines")

	w.restart()
	w.scale(mp, 8)
	w.untilMachines(mp, 8)
	w.untilSizes(map[string]int32{"a": 7, "b": 1})
	until(w, p, func(p *infrav1.NstanceMachinePool) bool {
		return meta.IsStatusConditionTrue(p.Status.Conditions, clusterv1.ReadyCondition)
	}, "all are ready")

	b.Cloud.SetCapacity(simcloud.Pool{}, -1)
	b.Restart() // it has forgotten what was sold out
	w.untilConnected()
	w.retryNow(p)
	mostReady := int32(1) // of b, whose agents connect again
	require.Eventually(t, func() bool {
		var list infrav1.NstanceShardGroupList
		require.NoError(t, w.List(t.Context(), &list, client.InNamespace(w.namespace)))
		mostReady = max(mostReady, *list.Items[1].Status.Ready)
		kept := *list.Items[0].Spec.Size + mostReady
		require.GreaterOrEqual(t, kept, int32(8), "a gives up only what b has ready")
		return kept == 8 && maps.Equal(w.sizes(), map[string]int32{"a": 4, "b": 4})
	}, eventually, poll, "%s", lazy(w.everything))
	w.untilMachines(mp, 8)
	require.Len(t, b.Cloud.Machines(), 4)
}

// retryNow ends the time after which shards without capacity are asked again. It is repeated
// until no shard has a limit: the operator may write a status that it read before.
func (w *world) retryNow(p *infrav1.NstanceMachinePool) {
	w.Helper()
	require.Eventually(w, func() bool {
		if w.Get(w.Context(), client.ObjectKeyFromObject(p), p) != nil {
			return false
		}
		limited := false
		for i := range p.Status.Shards {
			if at := &p.Status.Shards[i]; at.RetryAt != nil {
				at.RetryAt, limited = ptr.To(metav1.NewTime(time.Now().Add(-time.Second))), true
			}
		}
		if limited {
			err := w.Status().Update(w.Context(), p)
			assert.True(w, err == nil || apierrors.IsConflict(err), "%v", err)
		}
		return !limited
	}, eventually, poll, "%s", lazy(w.everything))
}

// untilConnected waits until the operator has all shards.
func (w *world) untilConnected() {
	w.Helper()
	nc := &infrav1.NstanceCluster{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c"}}
	until(w, nc, func(nc *infrav1.NstanceCluster) bool { return isTrue(nc, infrav1.ConditionShardsConnected) }, "shards are reached")
}

// TestKubePaused changes nothing of a paused pool, and of a machine of one, until it is not
// paused any more.
func TestKubePaused(t *testing.T) {
	t.Parallel()
	w, a, b := provisioned(t)
	mp := w.pool(2, nil)
	w.untilMachines(mp, 2)
	p := &infrav1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "pool"}}
	pause := func(value string) {
		require.NoError(t, w.Patch(t.Context(), p, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"cluster.x-k8s.io/paused":`+value+`}}}`))))
	}
	pause(`""`)
	until(w, p, func(p *infrav1.NstanceMachinePool) bool {
		return meta.IsStatusConditionTrue(p.Status.Conditions, clusterv1.PausedCondition)
	}, "paused")
	w.scale(mp, 4)
	other := w.shardGroup("web", 1, nil)
	until(w, other, ready(1), "what is not paused goes on")
	require.Equal(t, map[string]int32{"a": 1, "b": 1}, w.sizesOf("pool"))
	pause("null")
	w.untilMachines(mp, 4)
	require.Len(t, append(a.Cloud.Machines(), b.Cloud.Machines()...), 5)
}

// TestKubeWatchFilter leaves objects alone that are another operator's.
func TestKubeWatchFilter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.options = &operator.Options{WatchFilter: "green"}
	a := w.shards.Start("a", 0)
	w.nonce(w.shards.OperatorNonce())
	w.start()
	nc := w.cluster(a)
	label := func(value string) {
		require.NoError(t, w.Patch(t.Context(), nc, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"cluster.x-k8s.io/watch-filter":"`+value+`"}}}`))))
	}
	until(w, nc, func(nc *infrav1.NstanceCluster) bool { return len(nc.OwnerReferences) > 0 }, "Cluster API has taken it over")
	label("blue")
	before := nc.ResourceVersion
	other := &infrav1.NstanceMachineTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "t", Labels: map[string]string{clusterv1.WatchLabel: "green"}}}
	other.Spec.Template.Spec.Group, other.Spec.NodeInfo.Architecture = "web", "amd64"
	require.NoError(t, w.Create(t.Context(), other))
	until(w, other, func(t *infrav1.NstanceMachineTemplate) bool { return t.Status.NodeInfo.Architecture == "amd64" }, "its own are reconciled")
	require.NoError(t, w.Get(t.Context(), client.ObjectKeyFromObject(nc), nc))
	require.Equal(t, before, nc.ResourceVersion)
	label("green")
	until(w, nc, func(nc *infrav1.NstanceCluster) bool { return isTrue(nc, infrav1.ConditionShardsConnected) }, "so is this one from now on")
}

// TestKubeTwoClusters drains and removes nodes of a workload cluster that is another one than
// that of the operator.
func TestKubeTwoClusters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var err error
	w.workload, err = kubetest.Start(kubetest.Options{})
	require.NoError(t, err)
	t.Cleanup(w.workload.Stop)
	w.nodes, err = client.New(w.workload.Config, client.Options{Scheme: scheme(t)})
	require.NoError(t, err)
	a, _ := w.provision()
	mp := w.pool(2, func(s *infrav1.NstanceMachinePoolSpec) { s.Shape = infrav1.Shape{Spot: &infrav1.SpotOptions{}} })
	w.untilMachines(mp, 2)
	doomed := a.Cloud.Machines()[0].ID
	node := client.ObjectKey{Name: string(doomed)}
	var pod corev1.Pod
	pod.Namespace, pod.Name = w.workload.Namespace(t), "slow"
	pod.Spec = corev1.PodSpec{NodeName: node.Name, Containers: []corev1.Container{{Name: "c", Image: "none"}}}
	require.NoError(t, w.nodes.Create(t.Context(), &pod))

	require.NoError(t, a.Cloud.Reclaim(doomed, time.Minute))
	var n corev1.Node
	require.Eventually(t, func() bool { return w.nodes.Get(t.Context(), node, &n) == nil && n.Spec.Unschedulable }, eventually, poll)
	require.Eventually(t, func() bool {
		return w.nodes.Get(t.Context(), client.ObjectKeyFromObject(&pod), &pod) == nil && pod.DeletionTimestamp != nil
	}, eventually, poll, "its pod is evicted")
	require.NoError(t, w.nodes.Delete(t.Context(), &pod, client.GracePeriodSeconds(0)))
	w.untilMachines(mp, 2)
	require.Eventually(t, func() bool { return apierrors.IsNotFound(w.nodes.Get(t.Context(), node, &n)) }, eventually, poll)
	var here corev1.NodeList
	require.NoError(t, w.List(t.Context(), &here))
	for _, n := range here.Items {
		require.NotContains(t, w.machinesNamed(), n.Name, "no node is in the operator's cluster")
	}
}

func (w *world) machinesNamed() (names []string) {
	w.Helper()
	for _, m := range w.machines() {
		names = append(names, m.Name)
	}
	return names
}
