//go:build kube

package operator_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/test/shardtest"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/operator"
)

// connected is a world whose operator follows a shard, with a group web of one machine.
func connected(t *testing.T) (*world, *shardtest.Shard) {
	t.Helper()
	w := newWorld(t)
	w.shards.DrainTimeout = time.Second // nobody drains
	a := w.shards.Start("a", 1)
	w.nonce(w.shards.OperatorNonce())
	w.start()
	until(w, w.cluster(a), func(nc *infrav1.NstanceCluster) bool { return isTrue(nc, infrav1.ConditionShardsConnected) }, "connected")
	return w, a
}

// shardGroup makes an NstanceShardGroup of shard a.
func (w *world) shardGroup(group string, size int32, change func(*infrav1.NstanceShardGroupSpec)) *infrav1.NstanceShardGroup {
	w.Helper()
	sg := &infrav1.NstanceShardGroup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.namespace, Name: operator.ShardGroupName(nstance.GroupID(group), "a"),
			Labels: map[string]string{clusterv1.ClusterNameLabel: "c"},
		},
		Spec: infrav1.NstanceShardGroupSpec{Group: group, Shard: "a", Size: &size},
	}
	if change != nil {
		change(&sg.Spec)
	}
	require.NoError(w, w.Create(w.Context(), sg))
	return sg
}

// resize changes the size of a group.
func (w *world) resize(sg *infrav1.NstanceShardGroup, size int32) {
	w.Helper()
	base := sg.DeepCopy()
	sg.Spec.Size = &size
	require.NoError(w, w.Patch(w.Context(), sg, client.MergeFrom(base)))
}

func ready(n int32) func(*infrav1.NstanceShardGroup) bool {
	return func(sg *infrav1.NstanceShardGroup) bool {
		return ptr.Deref(sg.Status.Ready, -1) == n && ptr.Deref(sg.Status.Size, -1) == n &&
			meta.IsStatusConditionTrue(sg.Status.Conditions, clusterv1.ReadyCondition)
	}
}

// refused returns what the condition Synced of a group says is wrong.
func (w *world) refused(sg *infrav1.NstanceShardGroup) string {
	w.Helper()
	var message string
	until(w, sg, func(sg *infrav1.NstanceShardGroup) bool {
		c := meta.FindStatusCondition(sg.Status.Conditions, infrav1.ConditionSynced)
		if c != nil && c.Status == metav1.ConditionFalse {
			message = c.Message
		}
		return message != ""
	}, "it says what is wrong")
	return message
}

func (w *world) untilGone(obj client.Object) {
	w.Helper()
	require.Eventually(w, func() bool {
		return apierrors.IsNotFound(w.Get(w.Context(), client.ObjectKeyFromObject(obj), obj))
	}, eventually, eventually/1000, "it goes: %s", lazy(w.everything))
}

// TestKubeStaticGroup scales a group of the shard's configuration, also while the
// shard is away, and gives its machines up at the end.
func TestKubeStaticGroup(t *testing.T) {
	t.Parallel()
	w, a := connected(t)
	sg := w.shardGroup("web", 3, nil)
	until(w, sg, ready(3), "it has three machines")
	a.Stop()
	w.resize(sg, 2)
	w.refused(sg)
	a.Restart()
	until(w, sg, ready(2), "what was asked for while the shard was away is done")
	require.NoError(t, w.Delete(t.Context(), sg))
	w.untilGone(sg)
	require.Empty(t, a.Cloud.Machines(), "no machine is left")
}

// TestKubeDynamicGroup makes a group from a template of the shard, and deletes it.
func TestKubeDynamicGroup(t *testing.T) {
	t.Parallel()
	w, a := connected(t)
	sg := w.shardGroup("pool", 2, func(s *infrav1.NstanceShardGroupSpec) {
		s.DrainTimeout = &metav1.Duration{Duration: time.Second}
		s.Template, s.Shape = "vm", infrav1.Shape{InstanceType: "large", Spot: &infrav1.SpotOptions{MaxPrice: "0.5"}}
	})
	until(w, sg, ready(2), "it has two machines")
	for _, m := range a.Cloud.Machines() {
		if m.Group == "pool" {
			require.Equal(t, "large", m.InstanceType)
			require.Equal(t, nstance.Spot, m.Market)
		}
	}
	w.resize(sg, 1)
	until(w, sg, ready(1), "it is scaled")
	require.NoError(t, w.Delete(t.Context(), sg))
	w.untilGone(sg)
	for _, m := range a.Cloud.Machines() {
		require.NotEqual(t, nstance.GroupID("pool"), m.Group)
	}
}

// TestKubeGroupMistakes has the condition name what is wrong, and what to do.
func TestKubeGroupMistakes(t *testing.T) {
	t.Parallel()
	w, _ := connected(t)
	require.Contains(t, w.refused(w.shardGroup("nowhere", 1, nil)), "spec.template")
	require.Contains(t, w.refused(w.shardGroup("bad", 1, func(s *infrav1.NstanceShardGroupSpec) { s.Template = "unknown" })), "template")

	sg := w.shardGroup("web", 1, nil)
	until(w, sg, ready(1), "ready")
	base := sg.DeepCopy()
	sg.Spec.Group = "other"
	err := w.Patch(t.Context(), sg, client.MergeFrom(base))
	require.ErrorContains(t, err, "make another one")
}
