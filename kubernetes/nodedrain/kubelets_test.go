package nodedrain_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/kubernetes/nodedrain"
)

// TestSilentKubelet: a kubelet is silent when its Lease was not renewed for as long as it is
// held while it was looked at, whatever times are in it.
func TestSilentKubelet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := int32(40)
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: "n", ResourceVersion: "1"}, Spec: coordinationv1.LeaseSpec{LeaseDurationSeconds: &held}}
		api := fake.NewClientset(lease)
		k := nodedrain.NewKubelets(api)
		silent := func(node *corev1.Node) bool {
			yes, err := k.Silent(t.Context(), node)
			require.NoError(t, err)
			return yes
		}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}}
		require.False(t, silent(node), "at first sight")
		pass := func(d time.Duration) { <-time.After(d) }
		pass(39 * time.Second)
		require.False(t, silent(node))
		lease.ResourceVersion = "2"
		require.NoError(t, api.Tracker().Update(coordinationv1.SchemeGroupVersion.WithResource("leases"), lease, lease.Namespace))
		pass(time.Second)
		require.False(t, silent(node), "it was renewed")
		pass(40 * time.Second)
		require.True(t, silent(node))
		long := int32(600)
		lease.Spec.LeaseDurationSeconds, lease.ResourceVersion = &long, "3"
		require.NoError(t, api.Tracker().Update(coordinationv1.SchemeGroupVersion.WithResource("leases"), lease, lease.Namespace))
		require.False(t, silent(node))
		pass(599 * time.Second)
		require.False(t, silent(node), "it is held for longer")
		pass(time.Second)
		require.True(t, silent(node))
		require.True(t, silent(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other", UID: "v"}}), "it has no Lease")
		unknown := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "w"}}
		unknown.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
		require.True(t, silent(unknown), "Kubernetes has found so")
		api.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, context.DeadlineExceeded })
		_, err := k.Silent(t.Context(), node)
		require.ErrorIs(t, err, nstance.Unavailable, "an error is no silence")
	})
}
