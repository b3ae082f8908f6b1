//go:build kube

package operator_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/nstance-go/nstance"
	infrav1 "github.com/nstance-go/nstance/operator/api/v1beta1"
)

// kubeconfig makes the Secret through which the nodes are reached.
func (w *world) kubeconfig() {
	w.Helper()
	data, err := os.ReadFile(w.workload.Kubeconfig)
	require.NoError(w, err)
	require.NoError(w, w.Create(w.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c-kubeconfig", Labels: map[string]string{clusterv1.ClusterNameLabel: "c"}},
		Type:       clusterv1.ClusterSecretType, Data: map[string][]byte{"value": data},
	}))
}

// node makes the Node of a machine, as its kubelet would.
func (w *world) node(m nstance.Machine, providerID string) *corev1.Node {
	w.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: string(m.ID)}, Spec: corev1.NodeSpec{ProviderID: providerID}}
	require.NoError(w, w.Create(w.Context(), n))
	w.Cleanup(func() { _ = w.Delete(context.WithoutCancel(w.Context()), n) })
	return n
}

// TestKubeNodeDrain has the node of a machine that the cloud takes back cordoned with
// the reason, drained, acknowledged at the shard, and removed when the machine is gone.
// Its node is known by the provider's ID or by the instance's.
func TestKubeNodeDrain(t *testing.T) {
	t.Run("of the provider", func(t *testing.T) { nodeDrain(t, func(m nstance.Machine) string { return "sim:///" + m.ProviderID }) })
	t.Run("of the instance", func(t *testing.T) {
		nodeDrain(t, func(m nstance.Machine) string { return "nstance:///" + string(m.ID) })
	})
}

func nodeDrain(t *testing.T, providerID func(nstance.Machine) string) {
	t.Helper()
	w := newWorld(t)
	w.kubeconfig()
	a := w.shards.Start("a", 2)
	w.nonce(w.shards.OperatorNonce())
	w.start()
	nc := w.cluster(a)
	until(w, nc, func(nc *infrav1.NstanceCluster) bool {
		return isTrue(nc, infrav1.ConditionShardsConnected) && isTrue(nc, infrav1.ConditionNodesReached)
	}, "shards and nodes are reached")
	sg := w.shardGroup("web", 2, nil)
	until(w, sg, ready(2), "ready")
	doomed := a.Cloud.Machines()[0]
	n := w.node(doomed, providerID(doomed))

	require.NoError(t, a.Cloud.Reclaim(doomed.ID, time.Minute))
	until(w, n, func(n *corev1.Node) bool { return n.Spec.Unschedulable }, "it is cordoned")
	require.NotEmpty(t, n.Annotations, "which says why and until when")
	w.untilGone(n)
	for _, m := range a.Cloud.Machines() {
		require.NotEqual(t, doomed.ID, m.ID, "the shard deleted it when the drain was acknowledged")
	}
	until(w, sg, ready(2), "it is replaced")
}
