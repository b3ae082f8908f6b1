package operator

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/internal/memkube"
	"github.com/nstance-go/nstance/kubernetes/internal/shards"
	"github.com/nstance-go/nstance/kubernetes/nodedrain"
)

// TestAckBeforeListing: while a shard is not connected and listed, it may have the instance of
// an acknowledgement, which is then repeated. Not found ends the repetition.
func TestAckBeforeListing(t *testing.T) {
	fl := &fleet{key: client.ObjectKey{Namespace: "ns", Name: "c"}, drains: drain.New(nil), shards: map[string]*connection{
		"a": {Shard: shards.New(shards.Options{Name: "a"})},
	}}
	drains := shardDrains{fl.drains, fl}
	ack := nstance.Ack{Instance: "web-1", Generation: 1, By: nstance.ExecutorOperator, Outcome: nstance.OutcomeDrained}
	require.ErrorIs(t, drains.Acknowledge(t.Context(), ack), nstance.Unavailable)
	delete(fl.shards, "a")
	require.ErrorIs(t, drains.Acknowledge(t.Context(), ack), nstance.NotFound, "no shard is left that may have it")
}

// withNode runs a test of what reaches a cluster with one node, n of instance i, in virtual time.
func withNode(t *testing.T, test func(*testing.T, *memkube.Server, *nodeDrainer)) {
	synctest.Test(t, func(t *testing.T) {
		kube := memkube.New()
		kube.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{ProviderID: "sim:///i"}})
		kube.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: corev1.NodeSpec{ProviderID: "sim:///other"}})
		drainer, err := nodedrain.New(kube.Config(), drain.New(nil), nil)
		require.NoError(t, err)
		own, err := kubernetes.NewForConfig(kube.Config())
		require.NoError(t, err)
		n := &nodeDrainer{
			Drainer: drainer, client: own, access: &nodeAccess{}, goneSince: map[nstance.InstanceID]time.Time{},
			gone: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[goneMachine]()),
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			_ = drainer.Run(ctx)
			n.gone.ShutDown()
		})
		running.Go(func() { n.removeGone(ctx) })
		pass(time.Second)
		test(t, kube, n)
		kube.Refuse(nil)
		cancel()
		running.Wait()
		pass(time.Minute)
	})
}

// TestRemovesGoneNode: a node is removed once, until that has succeeded. It is waited for as long as it
// may be there, but not for long while nothing reaches it, nor with its cluster.
func TestRemovesGoneNode(t *testing.T) {
	withNode(t, func(t *testing.T, kube *memkube.Server, n *nodeDrainer) {
		cluster := &clusterv1.Cluster{}
		f := newFleets(nil, slog.New(slog.DiscardHandler))
		fl := &fleet{nodes: n, began: time.Now().Add(-nodeLimit)}
		f.byCluster[infrastructureOf(cluster)] = fl
		ending := cluster.DeepCopy()
		deleting(ending)
		waits := func() bool { return f.removesNode(cluster, "i", "sim:///i") }
		require.False(t, f.removesNode(ending, "i", "sim:///i"), "it goes with its cluster")
		require.False(t, f.removesNode(cluster, "none", "sim:///none"))
		n.access.failure = nstance.Errorf(nstance.Unavailable, "no route to host")
		require.False(t, waits(), "nothing reaches it")
		fl.began = time.Now()
		require.True(t, waits(), "something may soon")
		n.access.failure = nil

		kube.Refuse(func(q *http.Request) error {
			if q.Method == http.MethodDelete {
				return apierrors.NewInternalError(io.ErrUnexpectedEOF)
			}
			return nil
		})
		since := n.remove(goneMachine{"i", "sim:///i"})
		pass(time.Second)
		require.Equal(t, since, n.remove(goneMachine{"i", "sim:///i"}), "it is under way")
		require.Len(t, kube.Objects("/api/v1/nodes"), 2)
		kube.Refuse(nil)
		pass(nodeLimit)
		nodes := kube.Objects("/api/v1/nodes")
		require.Len(t, nodes, 1, "it was repeated: %v", nodes)
		require.False(t, waits())
		require.NotEqual(t, since, n.remove(goneMachine{"i", "sim:///i"}), "another time")
	})
}

// TestNodeCondition: the condition is written where it is not yet, on that very node. One that is gone, or
// whose name another one has, is left alone.
func TestNodeCondition(t *testing.T) {
	withNode(t, func(t *testing.T, kube *memkube.Server, n *nodeDrainer) {
		var answer error
		patches := 0
		kube.Refuse(func(q *http.Request) error {
			if q.Method != http.MethodPatch {
				return nil
			}
			patches++
			body, err := q.GetBody()
			require.NoError(t, err)
			var patch struct{ Metadata metav1.ObjectMeta }
			require.NoError(t, json.NewDecoder(body).Decode(&patch))
			require.NotEmpty(t, patch.Metadata.UID)
			return answer
		})
		c := corev1.NodeCondition{Type: infrav1.ConditionInterrupted, Status: corev1.ConditionTrue, Reason: reasonReclaimed, Message: "soon"}
		set := func() error {
			defer pass(time.Second)
			return n.setCondition(t.Context(), "i", "sim:///i", c)
		}
		require.NoError(t, n.setCondition(t.Context(), "none", "sim:///none", c))
		require.Zero(t, patches)
		for range 2 {
			require.NoError(t, set())
		}
		require.Equal(t, 1, patches, "it has it")
		c.Message = "sooner"
		require.NoError(t, set())
		c.Reason = reasonMachineGone
		require.NoError(t, set())
		require.Equal(t, 3, patches)
		c.Status = corev1.ConditionFalse
		for _, left := range []error{
			apierrors.NewNotFound(corev1.Resource("nodes"), "n"), apierrors.NewConflict(corev1.Resource("nodes"), "n", nil), apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Node").GroupKind(), "n", nil),
		} {
			answer = left
			require.NoError(t, set())
		}
		answer = apierrors.NewInternalError(io.ErrUnexpectedEOF)
		require.Error(t, set())
		require.Equal(t, 7, patches)
	})
}

// TestNodesAreLost: the operator drains no machine while it does not reach the nodes. A surge may have begun
// before it does.
func TestNodesAreLost(t *testing.T) {
	r, servers := newCertificateRig(t, "a")
	surges := 0
	r.fleets.onSurgeChanged(func(client.ObjectKey) { surges++ })
	id := r.machines(servers[0], 1)[0]
	r.fleet().nodesReached(false)
	require.Equal(t, 1, surges)
	r.until(func() bool { return r.fleet().checkSynced() == nil }, "connected again")
	servers[0].Restart() // which forgets the executor of before
	r.until(func() bool { return r.fleet().checkSynced() == nil && r.connected() }, "connected again")
	r.drain(servers[0], id)
	require.NotEqual(t, nstance.ExecutorOperator, servers[0].Executor(id))
}
