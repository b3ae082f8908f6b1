//go:build kube

package operator_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/test/never"
	"github.com/nstance-go/nstance/internal/test/shardtest"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/nodedrain"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// draining is a world whose operator drains the nodes of a shard with a group web of two
// machines, of which the first has a Node.
func draining(t *testing.T, drainTimeout time.Duration) (*world, *shardtest.Shard, nstance.Machine, *corev1.Node) {
	t.Helper()
	w := newWorld(t)
	w.shards.DrainTimeout = drainTimeout
	w.kubeconfig()
	a := w.shards.Start("a", 2)
	w.nonce(w.shards.OperatorNonce())
	w.start()
	until(w, w.cluster(a), reached, "shards and nodes are reached")
	until(w, w.shardGroup("web", 2, nil), ready(2), "ready")
	m := a.Cloud.Machines()[0]
	return w, a, m, w.node(m, "nstance:///"+string(m.ID))
}

// TestKubeEndedUnseen: a machine ends while no operator runs. The next one removes its Node,
// and the pods there move.
func TestKubeEndedUnseen(t *testing.T) {
	t.Parallel()
	w, a, m, n := draining(t, time.Second)
	pod := w.podOn(n.Name, "db", nil)
	until(w, n, func(n *corev1.Node) bool { return n.Annotations[nodedrain.AnnotationInstance] == string(m.ID) }, "marked")
	w.stop()
	require.NoError(t, a.Cloud.Reclaim(m.ID, 3*time.Second))
	require.Eventually(t, func() bool { return a.Ended(m.ID) }, eventually, poll, "the shard says that it has ended")
	w.start()
	w.untilGone(n)
	w.untilGone(pod)
}

// TestKubeCancelledUnseen: a notice is withdrawn while no operator runs. The next one takes
// back what the drain did to the Node.
func TestKubeCancelledUnseen(t *testing.T) {
	t.Parallel()
	w, a, m, n := draining(t, time.Minute)
	w.slowPod(n.Name)
	a.Cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Code: nstance.Capacity, Times: -1}) // else one of three is too many when the notice is withdrawn
	require.NoError(t, a.Cloud.Reclaim(m.ID, 5*time.Minute))
	until(w, n, func(n *corev1.Node) bool { return n.Spec.Unschedulable }, "it is cordoned")
	w.stop()
	require.NoError(t, a.Cloud.Withdraw(m.ID))
	require.Eventually(t, func() bool { return !a.Drains(m.ID) }, eventually, poll, "the shard has cancelled the drain: %s", lazy(func() string { return mustYAML(a.Instances()) }))
	w.start()
	until(w, n, func(n *corev1.Node) bool {
		_, annotated := n.Annotations["nstance.dev/drain-instance"]
		return !n.Spec.Unschedulable && !annotated
	}, "it is schedulable again")
}

// TestKubeConditionOfReusedName: a Node that has the name of a machine's former Node is not
// said to be interrupted.
func TestKubeConditionOfReusedName(t *testing.T) {
	t.Parallel()
	w, a, _ := provisioned(t)
	w.deployment(1, nil)
	machine := w.untilRunning(1)[0]
	m := a.Cloud.Machines()[0]
	former := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: machine.Status.NodeRef.Name}}
	require.NoError(t, w.Delete(t.Context(), former))
	other := w.node(m, "aws:///zone/i-"+w.namespace)
	require.NoError(t, a.Cloud.Reclaim(m.ID, time.Minute))
	nm := &infrav1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: machine.Spec.InfrastructureRef.Name}}
	until(w, nm, func(nm *infrav1.NstanceMachine) bool { return nm.Status.State == string(nstance.Draining) }, "it is taken back")
	never.True(t, func() bool {
		return w.Get(t.Context(), client.ObjectKeyFromObject(other), other) == nil && len(other.Status.Conditions) > 0
	}, 2*time.Second, 50*time.Millisecond)
	require.False(t, other.Spec.Unschedulable)
}
