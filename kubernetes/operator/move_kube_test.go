//go:build kube

package operator_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/test/faultproxy"
	"github.com/nstance-go/nstance/internal/test/shardtest"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/kubetest"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// TestKubeClusterTaken has the operator end its connections for an NstanceCluster that is
// taken away without it, as clusterctl move does: another operator has the shards then.
func TestKubeClusterTaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.shards.Start("a", 0)
	wire, err := faultproxy.NewWire(a.Operator())
	require.NoError(t, err)
	t.Cleanup(wire.Close)
	w.nonce(w.shards.OperatorNonce())
	w.start()
	nc := w.clusterAt(infrav1.Shard{Name: "a", Address: wire.Addr(), RegistrationAddress: a.Registration()})
	until(w, nc, func(nc *infrav1.NstanceCluster) bool { return isTrue(nc, infrav1.ConditionShardsConnected) }, "connected")
	require.Positive(t, wire.Open())
	cluster := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"paused":true}}`))
	require.NoError(t, w.Patch(t.Context(), &clusterv1.Cluster{ObjectMeta: nc.ObjectMeta}, cluster))
	until(w, nc, func(nc *infrav1.NstanceCluster) bool {
		return meta.IsStatusConditionTrue(nc.Status.Conditions, clusterv1.PausedCondition)
	}, "paused")
	require.NoError(t, w.Delete(t.Context(), nc))
	none := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	require.NoError(t, w.Patch(t.Context(), nc, none))
	require.Eventually(t, func() bool { return wire.Open() == 0 }, eventually, poll)
}

// inventory labels all CRDs as clusterctl init does: it moves objects of these only.
func inventory(t *testing.T, c *kubetest.Cluster) {
	t.Helper()
	api, err := client.New(c.Config, client.Options{})
	require.NoError(t, err)
	crds := &metav1.PartialObjectMetadataList{}
	crds.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinitionList"})
	require.NoError(t, api.List(t.Context(), crds))
	for _, crd := range crds.Items {
		crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
		label := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"clusterctl.cluster.x-k8s.io":""}}}`))
		require.NoError(t, api.Patch(t.Context(), &crd, label))
	}
}

// instances are the machines that there are at shards.
func instances(shards ...*shardtest.Shard) (out []nstance.InstanceID) {
	for _, s := range shards {
		for _, m := range s.Cloud.Machines() {
			out = append(out, m.ID)
		}
	}
	slices.Sort(out)
	return out
}

// TestKubeMove has clusterctl move a cluster to another API server, with a pool, a
// deployment, a group without pool and the machine of a pod. Not one instance is made or
// deleted, and the operator there goes on. That a shard of the pool has no capacity is
// forgotten: statuses are not moved.
func TestKubeMove(t *testing.T) {
	t.Parallel()
	target, err := kubetest.Start(kubetest.Options{})
	require.NoError(t, err)
	t.Cleanup(target.Stop)
	stop, err := manage(target, "--feature-gates=ReconcilerRateLimiting=false,ClusterTopology=true")
	require.NoError(t, err)
	t.Cleanup(stop)
	w, a, b := provisioned(t)
	b.Cloud.SetCapacity(simcloud.Pool{}, 1)
	mp := w.pool(5, func(s *infrav1.NstanceMachinePoolSpec) { s.Distribution = infrav1.DistributionFailover })
	w.untilMachines(mp, 5)
	w.untilSizes(map[string]int32{"a": 4, "b": 1})
	w.deployment(1, nil)
	w.permitting(&infrav1.MachinesForPods{Namespaces: []string{w.namespace}, Groups: []string{"web"}, Max: 10})
	w.askingPod("job", "web", nil)
	w.untilRunning(7)
	sg := w.shardGroup("web", 1, nil)
	until(w, sg, ready(1), "ready")
	before := instances(a, b)
	require.Len(t, before, 8)

	there := *w
	there.management = target
	there.Client, err = client.New(target.Config, client.Options{Scheme: scheme(t)})
	require.NoError(t, err)
	there.start()
	inventory(t, w.management)
	inventory(t, target)
	move := exec.CommandContext(t.Context(), filepath.Join(os.Getenv(kubetest.Assets), "..", "clusterctl"),
		"move", "--namespace", w.namespace, "--kubeconfig", w.management.Kubeconfig, "--to-kubeconfig", target.Kubeconfig, "-v", "2")
	home := t.TempDir()
	move.Env = append(os.Environ(), "CLUSTERCTL_DISABLE_VERSIONCHECK=true", "HOME="+home, "XDG_CONFIG_HOME="+home)
	log, err := move.CombinedOutput()
	require.NoError(t, err, "%s", log)

	there.untilRunning(7)
	p := &infrav1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "pool"}}
	full := func(p *infrav1.NstanceMachinePool) bool {
		return len(p.Status.Shards) == 2 && ptr.Deref(p.Status.Shards[1].Limit, 0) == 1 && meta.IsStatusConditionTrue(p.Status.Conditions, clusterv1.ReadyCondition)
	}
	until(&there, p, full, "it has found again that one shard is full")
	until(&there, sg, ready(1), "the group without pool is there, too")
	require.Equal(t, before, instances(a, b))
	for _, list := range []client.ObjectList{
		&clusterv1.ClusterList{}, &clusterv1.MachineList{}, &clusterv1.MachinePoolList{}, &infrav1.NstanceClusterList{}, &infrav1.NstanceMachineList{},
		&infrav1.NstanceMachinePoolList{}, &infrav1.NstanceMachineTemplateList{}, &infrav1.NstanceShardGroupList{},
	} {
		require.NoError(t, w.List(t.Context(), list, client.InNamespace(w.namespace)))
		require.Zero(t, meta.LenList(list), "%T is left where it was", list)
	}
	var credentials corev1.Secret
	require.NoError(t, there.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "c-nstance"}, &credentials))

	there.scale(mp, 6)
	there.untilRunning(8)
	there.untilSizes(map[string]int32{"a": 5, "b": 1})
	require.Subset(t, instances(a, b), before)
	md := &clusterv1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "web"}}
	require.NoError(t, there.Delete(t.Context(), md))
	there.untilRunning(7)
	require.Len(t, instances(a, b), 8)
}
