package operator

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/nstance-go/nstance"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// TestConnectedCondition: a shard of which nothing is known yet is not connected.
func TestConnectedCondition(t *testing.T) {
	known := []infrav1.ShardStatus{{Name: "a", Connected: ptr.To(true)}}
	require.Equal(t, metav1.ConditionTrue, connectedCondition(known).Status)
	known = append(known, infrav1.ShardStatus{Name: "b"}, infrav1.ShardStatus{Name: "c", Connected: ptr.To(false)})
	c := connectedCondition(known)
	require.Equal(t, metav1.ConditionFalse, c.Status)
	require.Equal(t, "b, c", c.Message)
}

// TestFailureDomains: each shard is one, for a control plane too unless it says otherwise.
func TestFailureDomains(t *testing.T) {
	nc := &infrav1.NstanceCluster{Spec: infrav1.NstanceClusterSpec{Shards: []infrav1.Shard{{Name: "a"}, {Name: "b", ControlPlane: ptr.To(false)}, {Name: "c", ControlPlane: ptr.To(true)}}}}
	require.Equal(t, []clusterv1.FailureDomain{{Name: "a", ControlPlane: ptr.To(true)}, {Name: "b", ControlPlane: ptr.To(false)}, {Name: "c", ControlPlane: ptr.To(true)}}, failureDomains(nc))
}

// TestUnreachedReason: a kubeconfig that is missing, wrong or not to be read is waited for.
func TestUnreachedReason(t *testing.T) {
	for code, want := range map[nstance.Code]string{
		nstance.NotFound: reasonWaiting, nstance.Invalid: reasonWaiting, nstance.Denied: reasonWaiting, nstance.Unavailable: reasonUnreachable,
	} {
		require.Equal(t, want, unreachedReason(nstance.Errorf(code, "no")), code)
	}
}
