//go:build kube

package operator_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/test/shardtest"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
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
// A node of others, whose provider ID ends as the cloud's ID of the machine does, stays.
func TestKubeNodeDrain(t *testing.T) {
	t.Parallel()
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
	n := w.node(doomed, "nstance:///"+string(doomed.ID))
	other := w.node(nstance.Machine{ID: "other-" + doomed.ID}, "other:///"+doomed.ProviderID)
	w.podOn(n.Name, "web", nil) // until it ends, the node is drained

	require.NoError(t, a.Cloud.Reclaim(doomed.ID, time.Minute))
	until(w, n, func(n *corev1.Node) bool { return n.Spec.Unschedulable }, "it is cordoned")
	require.NotEmpty(t, n.Annotations, "which says why and until when")
	require.Eventually(t, func() bool { return len(w.endPods()) > 0 }, eventually, poll, "its pod is evicted")
	w.untilGone(n)
	require.NoError(t, w.Get(t.Context(), client.ObjectKeyFromObject(other), other))
	require.False(t, other.Spec.Unschedulable)
	for _, m := range a.Cloud.Machines() {
		require.NotEqual(t, doomed.ID, m.ID, "the shard deleted it when the drain was acknowledged")
	}
	until(w, sg, ready(2), "it is replaced")
}

// TestKubePausedDrains: a shard deletes the machines of a paused cluster at their deadlines all the
// same, so that their nodes are drained, whether the operator began before the pause or after it. It
// asks the shard for nothing.
func TestKubePausedDrains(t *testing.T) {
	for name, restarted := range map[string]bool{"the operator goes on": false, "it begins anew": true} {
		for by, patch := range map[string]struct {
			obj  client.Object
			data string
		}{
			"of the Cluster":        {&clusterv1.Cluster{}, `{"spec":{"paused":true}}`},
			"of the NstanceCluster": {&infrav1.NstanceCluster{}, `{"metadata":{"annotations":{"cluster.x-k8s.io/paused":""}}}`},
		} {
			t.Run(name+", a pause "+by, func(t *testing.T) {
				t.Parallel()
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
				n := w.node(doomed, "nstance:///"+string(doomed.ID))
				w.podOn(n.Name, "web", nil)

				patch.obj.SetNamespace(w.namespace)
				patch.obj.SetName("c")
				require.NoError(t, w.Patch(t.Context(), patch.obj, client.RawPatch(types.MergePatchType, []byte(patch.data))))
				until(w, nc, func(nc *infrav1.NstanceCluster) bool { return isTrue(nc, clusterv1.PausedCondition) }, "paused")
				if restarted {
					w.restart()
				}
				require.NoError(t, a.Cloud.Reclaim(doomed.ID, time.Minute))
				until(w, n, func(n *corev1.Node) bool { return n.Spec.Unschedulable }, "it is cordoned")
				require.Eventually(t, func() bool { return len(w.endPods()) > 0 }, eventually, poll, "its pod is evicted")
				w.untilGone(n)
			})
		}
	}
}

// TestKubeDrainWaits has the drain of a machine that is too many wait for a disruption budget,
// as the group asks for, and the group say for which, until the budget permits it.
func TestKubeDrainWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.kubeconfig()
	a := w.shards.Start("a", 1)
	w.nonce(w.shards.OperatorNonce())
	w.start()
	until(w, w.cluster(a), func(nc *infrav1.NstanceCluster) bool {
		return isTrue(nc, infrav1.ConditionShardsConnected) && isTrue(nc, infrav1.ConditionNodesReached)
	}, "shards and nodes are reached")
	sg := w.shardGroup("pool", 2, func(s *infrav1.NstanceShardGroupSpec) {
		s.Template, s.DrainTimeout, s.OnDrainTimeout = "vm", &metav1.Duration{Duration: time.Second}, infrav1.DrainTimeoutWait
	})
	until(w, sg, ready(2), "ready")
	for _, m := range machinesOf(a, "pool") {
		w.node(m, "nstance:///"+string(m.ID))
		w.readyPod(string(m.ID), "web")
	}
	budget := w.budget("web")
	w.resize(sg, 1)
	until(w, sg, func(sg *infrav1.NstanceShardGroup) bool {
		return slices.ContainsFunc(sg.Status.Holds, func(h infrav1.Hold) bool {
			return h.Kind == "drain" && strings.Contains(h.Message, "The disruption budget web ")
		})
	}, "it says for which budget it waits")
	require.Len(t, machinesOf(a, "pool"), 2)
	require.Empty(t, w.endPods(), "none is asked to end")

	require.NoError(t, w.Delete(t.Context(), budget))
	require.Eventually(t, func() bool { return len(w.endPods()) > 0 || len(machinesOf(a, "pool")) == 1 }, eventually, poll, "it is evicted")
	require.Eventually(t, func() bool { return len(machinesOf(a, "pool")) == 1 }, eventually, poll, "and its machine deleted")
}

// readyPod makes a pod of an app, which its node says is ready.
func (w *world) readyPod(node, app string) {
	w.Helper()
	p := w.podOn(node, node, map[string]string{"app": app})
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	require.NoError(w, w.Status().Update(w.Context(), p))
}

// budget makes one that permits no disruption of an app.
func (w *world) budget(app string) *policyv1.PodDisruptionBudget {
	w.Helper()
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: app},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromInt32(0)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
	}
	require.NoError(w, w.Create(w.Context(), b))
	return b
}

func machinesOf(s *shardtest.Shard, group nstance.GroupID) []nstance.Machine {
	return slices.DeleteFunc(s.Cloud.Machines(), func(m nstance.Machine) bool { return m.Group != group })
}

// endPods ends the pods that were asked to, as their kubelets would, and returns them.
func (w *world) endPods() (ended []string) {
	w.Helper()
	var pods corev1.PodList
	require.NoError(w, w.List(w.Context(), &pods, client.InNamespace(w.namespace)))
	for i := range pods.Items {
		if p := &pods.Items[i]; p.DeletionTimestamp != nil {
			ended = append(ended, p.Name)
			require.NoError(w, client.IgnoreNotFound(w.Delete(w.Context(), p, client.GracePeriodSeconds(0))))
		}
	}
	return ended
}
