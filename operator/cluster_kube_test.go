//go:build kube

package operator_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/nstance-go/nstance/operator/api/v1beta1"
)

func onlyNamespace(namespace string) cache.Options {
	return cache.Options{DefaultNamespaces: map[string]cache.Config{namespace: {}}}
}

func isTrue(nc *infrav1.NstanceCluster, condition string) bool {
	return meta.IsStatusConditionTrue(nc.Status.Conditions, condition)
}

// TestKubeCluster registers with a nonce, and is provisioned as Cluster API's own
// manager understands it.
func TestKubeCluster(t *testing.T) {
	w := newWorld(t)
	a, b := w.shards.Start("a", 0), w.shards.Start("b", 0)
	w.start()
	nc := w.cluster(a, b)
	until(w, nc, func(nc *infrav1.NstanceCluster) bool {
		c := meta.FindStatusCondition(nc.Status.Conditions, infrav1.ConditionRegistered)
		return c != nil && c.Status == metav1.ConditionFalse
	}, "without a nonce it says what is missing")
	c := meta.FindStatusCondition(nc.Status.Conditions, infrav1.ConditionRegistered)
	require.Contains(t, c.Message, "spec.registration.secretName")
	require.Contains(t, c.Message, "nstance-admin cluster nonce", "the remedy")

	w.nonce(w.shards.OperatorNonce())
	until(w, nc, func(nc *infrav1.NstanceCluster) bool { return isTrue(nc, infrav1.ConditionShardsConnected) }, "both shards are connected")
	require.True(t, isTrue(nc, clusterv1.ReadyCondition))
	require.Contains(t, nc.Finalizers, infrav1.Finalizer)

	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c"}}
	until(w, cluster, func(c *clusterv1.Cluster) bool {
		return c.Status.Initialization.InfrastructureProvisioned != nil && *c.Status.Initialization.InfrastructureProvisioned
	}, "Cluster API sees that it is provisioned")
	require.Equal(t, "127.0.0.1", cluster.Spec.ControlPlaneEndpoint.Host)
	var names []string
	for _, d := range cluster.Status.FailureDomains {
		names = append(names, d.Name)
	}
	require.Equal(t, []string{"a", "b"}, names)

	b.Stop()
	until(w, nc, func(nc *infrav1.NstanceCluster) bool { return !isTrue(nc, infrav1.ConditionShardsConnected) }, "a lost shard shows")
	require.True(t, isTrue(nc, clusterv1.ReadyCondition), "and never turns the cluster unready: no health check would be evaluated")
	b.Restart()
	until(w, nc, func(nc *infrav1.NstanceCluster) bool { return isTrue(nc, infrav1.ConditionShardsConnected) }, "and comes back")

	require.NoError(t, w.Delete(t.Context(), cluster))
	require.Eventually(t, func() bool {
		return apierrors.IsNotFound(w.Get(t.Context(), client.ObjectKeyFromObject(nc), &infrav1.NstanceCluster{}))
	}, eventually, eventually/1000, "it goes with its Cluster")
}

// TestKubeClusterRestart has a second operator use the certificate of the first: the
// nonce is used once.
func TestKubeClusterRestart(t *testing.T) {
	w := newWorld(t)
	a := w.shards.Start("a", 0)
	w.nonce(w.shards.OperatorNonce())
	t.Run("first", func(t *testing.T) {
		first := *w
		first.T = t
		first.start()
		nc := first.cluster(a)
		until(&first, nc, func(nc *infrav1.NstanceCluster) bool { return isTrue(nc, infrav1.ConditionShardsConnected) }, "connected")
	})
	var secret corev1.Secret
	require.NoError(t, w.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "c-nstance"}, &secret))
	require.NotContains(t, secret.Data, "next.key", "no request is under way")
	require.NoError(t, w.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "nstance"}}))

	w.start()
	a.Restart()
	nc := &infrav1.NstanceCluster{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c"}}
	until(w, nc, func(nc *infrav1.NstanceCluster) bool {
		return isTrue(nc, infrav1.ConditionShardsConnected) && isTrue(nc, infrav1.ConditionRegistered)
	}, "the stored certificate serves")
	var again corev1.Secret
	require.NoError(t, w.Get(t.Context(), client.ObjectKeyFromObject(&secret), &again))
	require.Equal(t, secret.Data, again.Data)
}
