//go:build kube

package operator_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

func (w *world) nstanceCluster() *infrav1.NstanceCluster {
	w.Helper()
	nc := &infrav1.NstanceCluster{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c"}}
	require.NoError(w, w.Get(w.Context(), client.ObjectKeyFromObject(nc), nc))
	return nc
}

// TestKubeClusterTakesGroups: a Cluster that is deleted takes its groups without a pool along,
// also when the operator restarts meanwhile. It is not Ready while it goes.
func TestKubeClusterTakesGroups(t *testing.T) {
	t.Parallel()
	w, a, b := provisioned(t)
	extra := w.shardGroup("extra", 2, func(s *infrav1.NstanceShardGroupSpec) { s.Template = "vm" })
	static := w.shardGroup("web", 1, nil)
	until(w, extra, ready(2), "ready")
	until(w, static, ready(1), "ready")
	a.Stop() // so that it does not end before the restart
	c := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c"}}
	require.NoError(t, w.Delete(t.Context(), c))
	until(w, w.nstanceCluster(), func(nc *infrav1.NstanceCluster) bool {
		return meta.IsStatusConditionFalse(nc.Status.Conditions, clusterv1.ReadyCondition)
	}, "it says that it goes")
	w.restart()
	a.Restart()
	w.untilGone(extra)
	w.untilGone(static)
	w.untilGone(c)
	require.Empty(t, append(a.Cloud.Machines(), b.Cloud.Machines()...))
}

// TestKubeShardRemoved: a shard with machines stays in the NstanceCluster, until its groups
// and machines are elsewhere.
func TestKubeShardRemoved(t *testing.T) {
	t.Parallel()
	w, a, b := provisioned(t)
	mp := w.pool(2, nil)
	w.untilMachines(mp, 2)
	without := func() error {
		nc := w.nstanceCluster()
		base := nc.DeepCopy()
		nc.Spec.Shards = nc.Spec.Shards[:1]
		return w.Patch(t.Context(), nc, client.MergeFrom(base))
	}
	err := without()
	require.ErrorContains(t, err, "shard b has 1 NstanceShardGroups and 1 NstanceMachines")
	require.ErrorContains(t, err, "spec.shards of the pools")
	require.ErrorContains(t, err, infrav1.AnnotationAbandonedShards)

	p := &infrav1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "pool"}}
	require.NoError(t, w.Get(t.Context(), client.ObjectKeyFromObject(p), p))
	base := p.DeepCopy()
	p.Spec.Shards = []string{"a"}
	require.NoError(t, w.Patch(t.Context(), p, client.MergeFrom(base)))
	w.untilMachines(mp, 2)
	require.Eventually(t, func() bool { return len(b.Cloud.Machines()) == 0 && without() == nil }, eventually, eventually/300)
	require.Len(t, a.Cloud.Machines(), 2)
}

// TestKubeShardAbandoned: a shard that is lost for good is taken out, and a pool makes its
// machines elsewhere.
func TestKubeShardAbandoned(t *testing.T) {
	t.Parallel()
	w, a, b := provisioned(t)
	mp := w.pool(2, nil)
	w.untilMachines(mp, 2)
	b.Stop()
	sg := &infrav1.NstanceShardGroup{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "pool--b"}}
	until(w, sg, func(sg *infrav1.NstanceShardGroup) bool {
		return !meta.IsStatusConditionTrue(sg.Status.Conditions, clusterv1.ReadyCondition)
	}, "Ready is not known while the shard is away")
	nc := w.nstanceCluster()
	base := nc.DeepCopy()
	nc.Spec.Shards, nc.Annotations = nc.Spec.Shards[:1], map[string]string{infrav1.AnnotationAbandonedShards: "x, b"}
	require.NoError(t, w.Patch(t.Context(), nc, client.MergeFrom(base)))
	w.untilGone(sg)
	w.untilMachines(mp, 2)
	require.Len(t, a.Cloud.Machines(), 2)
}
