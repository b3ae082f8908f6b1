//go:build kube

package operator_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance/internal/test/shardtest"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// beside is a world with another cluster, whose operator follows the same shards.
func (w *world) beside(shards ...*shardtest.Shard) *world {
	w.Helper()
	other := newWorld(w)
	other.shards = w.shards
	other.nonce(w.shards.OperatorNonce())
	other.start()
	until(other, other.cluster(shards...), func(nc *infrav1.NstanceCluster) bool { return isTrue(nc, infrav1.ConditionShardsConnected) }, "connected")
	return other
}

// owner returns what the annotation says whose the groups of the cluster are.
func (w *world) owner() string {
	w.Helper()
	nc := &infrav1.NstanceCluster{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c"}}
	until(w, nc, func(nc *infrav1.NstanceCluster) bool { return nc.Annotations[infrav1.AnnotationOwner] != "" }, "it has an owner")
	return nc.Annotations[infrav1.AnnotationOwner]
}

// untilOwnedBy waits until a pool says that its groups are another owner's, which it names.
func (w *world) untilOwnedBy(owner string) *infrav1.NstanceMachinePool {
	w.Helper()
	p := &infrav1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "pool"}}
	until(w, p, func(p *infrav1.NstanceMachinePool) bool {
		c := meta.FindStatusCondition(p.Status.Conditions, infrav1.ConditionSynced)
		return c != nil && c.Status == metav1.ConditionFalse && c.Reason == "OtherOwner" && strings.Count(c.Message, "is owned by "+owner) == 2 &&
			strings.Contains(c.Message, w.owner()) && strings.Contains(c.Message, infrav1.AnnotationOwner)
	}, "it says whose the groups are, and what to do")
	return p
}

// TestKubePoolOfAnotherCluster: of two clusters with a pool of the same name at the same
// shards, the first one has the groups. The second says so, and whatever is done with its
// pool, no machine of the first is touched or shown. When the first gives the groups up, the
// second has them.
func TestKubePoolOfAnotherCluster(t *testing.T) {
	t.Parallel()
	w, a, b := provisioned(t)
	mp := w.pool(4, nil)
	w.untilMachines(mp, 4)
	before := instances(a, b)
	other := w.beside(a, b)
	require.NotEqual(t, w.owner(), other.owner())

	theirs := other.pool(1, nil)
	p := other.untilOwnedBy(w.owner())
	other.scale(theirs, 9)
	require.Eventually(t, func() bool { return maps.Equal(other.sizes(), map[string]int32{"a": 5, "b": 4}) }, eventually, eventually/1000)
	other.untilOwnedBy(w.owner())
	w.scale(mp, 6)
	w.untilMachines(mp, 6)
	require.Subset(t, instances(a, b), before)
	require.Empty(t, other.machines())

	require.NoError(t, other.Delete(t.Context(), theirs))
	other.untilGone(theirs)
	other.untilGone(p)
	w.scale(mp, 5)
	w.untilMachines(mp, 5)
	require.Len(t, instances(a, b), 5)
	require.Empty(t, other.machines())

	other.pool(2, nil)
	other.untilOwnedBy(w.owner())
	before = instances(a, b)
	require.NoError(t, w.Delete(t.Context(), mp))
	w.untilGone(mp)
	for _, shard := range []string{"a", "b"} {
		sg := &infrav1.NstanceShardGroup{ObjectMeta: metav1.ObjectMeta{Namespace: other.namespace, Name: "pool--" + shard}}
		until(other, sg, ready(1), "the other cluster has the group")
	}
	after := instances(a, b)
	require.Len(t, after, 2)
	for _, id := range after {
		require.NotContains(t, before, id)
	}
}

// TestKubeGroupOfAnotherCluster: a group of the shard's configuration too is one cluster's.
// An annotation says which, so that a cluster that is restored without its UID has its groups.
func TestKubeGroupOfAnotherCluster(t *testing.T) {
	t.Parallel()
	w, a := connected(t)
	sg := w.shardGroup("web", 2, nil)
	until(w, sg, ready(2), "it is the first one's")
	before := instances(a)
	other := w.beside(a)
	theirs := other.shardGroup("web", 0, nil)
	require.Contains(t, other.refused(theirs), "is owned by "+w.owner())
	require.NoError(t, other.Delete(t.Context(), theirs))
	other.untilGone(theirs)
	w.resize(sg, 3)
	until(w, sg, ready(3), "it is the first one's still")
	require.Subset(t, instances(a), before)

	restored := w.beside(a)
	nc := &infrav1.NstanceCluster{ObjectMeta: metav1.ObjectMeta{Namespace: restored.namespace, Name: "c"}}
	require.NoError(t, restored.Get(t.Context(), client.ObjectKeyFromObject(nc), nc))
	base := nc.DeepCopy()
	nc.Annotations[infrav1.AnnotationOwner] = w.owner()
	require.NoError(t, restored.Patch(t.Context(), nc, client.MergeFrom(base)))
	require.NoError(t, w.Patch(t.Context(), &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c"}}, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"paused":true}}`))))
	again := restored.shardGroup("web", 4, nil)
	until(restored, again, ready(4), "it is the same owner")
	require.NoError(t, restored.Delete(t.Context(), again))
	restored.untilGone(again)
	require.Empty(t, a.Cloud.Machines())
	until(other, other.shardGroup("web", 1, nil), ready(1), "it was released")
}
