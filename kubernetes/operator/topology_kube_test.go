//go:build kube

package operator_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/internal/test/shardtest"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/kubetest"
)

// standIns do what the providers of control planes and bootstrap data would, until the
// test ends.
func (w *world) standIns() {
	w.Helper()
	require.NoError(w, w.Create(w.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "bootstrap"}, Data: map[string][]byte{"value": []byte("#cloud-config\n")},
	}))
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		for sleep.For(ctx, 50*time.Millisecond) {
			w.standIn(ctx, kubetest.BootstrapConfig, func(map[string]any) map[string]any {
				return map[string]any{"initialization": map[string]any{"dataSecretCreated": true}, "dataSecretName": "bootstrap"}
			})
			w.standIn(ctx, kubetest.ControlPlane, func(spec map[string]any) map[string]any {
				return map[string]any{
					"initialization": map[string]any{"controlPlaneInitialized": true}, "externalManagedControlPlane": true,
					"version": spec["version"], "replicas": spec["replicas"], "readyReplicas": spec["replicas"],
					"availableReplicas": spec["replicas"], "upToDateReplicas": spec["replicas"],
				}
			})
		}
	})
	w.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

// standIn sets the status of objects that have none.
func (w *world) standIn(ctx context.Context, kind schema.GroupVersionKind, status func(spec map[string]any) map[string]any) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind)
	if w.List(ctx, list, client.InNamespace(w.namespace)) != nil {
		return
	}
	for _, obj := range list.Items {
		if obj.Object["status"] != nil {
			continue
		}
		base := obj.DeepCopy()
		spec, _ := obj.Object["spec"].(map[string]any)
		obj.Object["status"] = status(spec)
		_ = w.Patch(ctx, &obj, client.MergeFrom(base)) // repeated
	}
}

// template makes an empty template of a stand-in.
func (w *world) template(kind schema.GroupVersionKind, name string) {
	w.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{}}}}}
	u.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "Template"))
	u.SetNamespace(w.namespace)
	u.SetName(name)
	require.NoError(w, w.Create(w.Context(), u))
}

// documentedClass makes the ClusterClass of the documents with these shards, and its Cluster.
func (w *world) documentedClass(shards ...*shardtest.Shard) *clusterv1.Cluster {
	w.Helper()
	names := map[string]string{
		"prod": "c", "eu1a": "a", "eu1b": "b", "node": "joining", "nodes": "joined", "m7i.large": "small",
		"KubeadmControlPlaneTemplate": kubetest.ControlPlane.Kind + "Template", "controlplane.cluster.x-k8s.io/v1beta2": kubetest.ControlPlane.GroupVersion().String(),
		"KubeadmConfigTemplate": kubetest.BootstrapConfig.Kind + "Template", "bootstrap.cluster.x-k8s.io/v1beta2": kubetest.BootstrapConfig.GroupVersion().String(),
	}
	w.template(kubetest.ControlPlane, "eu")
	w.template(kubetest.BootstrapConfig, "eu")
	for _, obj := range documented(w.TB, "cluster-api.md") {
		switch obj.GetKind() {
		case "NstanceClusterTemplate", "NstanceMachineTemplate", "NstanceMachinePoolTemplate", "ClusterClass", "Cluster":
			adapted(obj.Object, names)
			obj.SetNamespace(w.namespace)
			if obj.GetKind() == "NstanceClusterTemplate" {
				var at []any
				for _, s := range shards {
					at = append(at, map[string]any{"name": string(s.Name()), "address": s.Operator(), "registrationAddress": s.Registration()})
				}
				require.NoError(w, unstructured.SetNestedSlice(obj.Object, at, "spec", "template", "spec", "shards"))
			}
			require.NoError(w, w.Create(w.Context(), obj), mustYAML(obj))
		}
	}
	return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c"}}
}

// versions are the resource versions of what Cluster API makes from a ClusterClass.
func (w *world) versions() map[string]string {
	w.Helper()
	out := map[string]string{}
	for _, list := range []client.ObjectList{
		&clusterv1.MachineDeploymentList{}, &clusterv1.MachinePoolList{}, &clusterv1.MachineHealthCheckList{},
		&infrav1.NstanceClusterList{}, &infrav1.NstanceMachineTemplateList{}, &infrav1.NstanceMachinePoolList{},
		&infrav1.NstanceMachineList{}, &infrav1.NstanceShardGroupList{},
	} {
		require.NoError(w, w.List(w.Context(), list, client.InNamespace(w.namespace)))
		require.NoError(w, meta.EachListItem(list, func(obj runtime.Object) error {
			o := obj.(client.Object)
			out[fmt.Sprintf("%T/%s", o, o.GetName())] = o.GetResourceVersion()
			return nil
		}))
	}
	return out
}

// requireSettled: Cluster API and the operator write nothing any more, although the
// topology is reconciled again and again.
func (w *world) requireSettled(cluster *clusterv1.Cluster) {
	w.Helper()
	last := w.versions()
	since := time.Now()
	require.Eventually(w, func() bool {
		patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"again":"`+time.Now().String()+`"}}}`))
		require.NoError(w, w.Patch(w.Context(), cluster.DeepCopy(), patch))
		now := w.versions()
		if !maps.Equal(last, now) {
			last, since = now, time.Now()
		}
		return time.Since(since) > 3*time.Second
	}, eventually, poll, "%s", lazy(w.everything))
}

// TestKubeTopology makes the Cluster in the document from its ClusterClass, scales it,
// changes a variable, and deletes it. Nothing is written once there is nothing to change.
func TestKubeTopology(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.kubeconfig()
	w.standIns()
	a, b := w.shards.Start("a", 0), w.shards.Start("b", 0)
	w.kubelets(a, b)
	w.nonceIn("c-nstance-nonce", w.shards.OperatorNonce())
	w.start()
	cluster := w.documentedClass(a, b)
	w.untilRunning(5)
	var pools infrav1.NstanceMachinePoolList
	require.NoError(t, w.List(t.Context(), &pools, client.InNamespace(w.namespace)))
	require.Equal(t, "c-batch", pools.Items[0].Spec.Group)
	require.Equal(t, map[string]int32{"a": 2, "b": 1}, w.sizesOf("c-batch"))
	until(w, cluster, func(c *clusterv1.Cluster) bool {
		return meta.IsStatusConditionTrue(c.Status.Conditions, clusterv1.ClusterTopologyReconciledCondition) && c.Spec.ControlPlaneEndpoint.Port == 6443
	}, "the topology is reconciled")
	w.requireSettled(cluster)

	base := cluster.DeepCopy()
	cluster.Spec.Topology.Workers.MachineDeployments[0].Replicas = ptr.To[int32](1)
	cluster.Spec.Topology.Workers.MachinePools[0].Replicas = ptr.To[int32](4)
	require.NoError(t, w.Patch(t.Context(), cluster, client.MergeFrom(base)))
	require.Eventually(t, func() bool { return maps.Equal(w.sizesOf("c-batch"), map[string]int32{"a": 2, "b": 2}) }, eventually, poll)
	before := map[string]bool{}
	for _, m := range w.untilRunning(5) {
		before[m.Name] = true
	}

	base = cluster.DeepCopy()
	vars := cluster.Spec.Topology.Variables
	vars[slices.IndexFunc(vars, func(v clusterv1.ClusterVariable) bool { return v.Name == "instanceType" })].Value.Raw = []byte(`"large"`)
	require.NoError(t, w.Patch(t.Context(), cluster, client.MergeFrom(base)))
	require.Eventually(t, func() bool {
		left := 0
		for _, m := range w.machines() {
			if before[m.Name] {
				left++
			}
		}
		return left == 0
	}, 3*eventually, poll, "all machines are replaced: %s", lazy(w.everything))
	w.untilRunning(5)
	for _, m := range append(a.Cloud.Machines(), b.Cloud.Machines()...) {
		require.Equal(t, "large", m.InstanceType)
	}
	w.requireSettled(cluster)

	require.NoError(t, w.Delete(t.Context(), cluster))
	w.untilGone(cluster)
	require.Empty(t, append(a.Cloud.Machines(), b.Cloud.Machines()...))
}
