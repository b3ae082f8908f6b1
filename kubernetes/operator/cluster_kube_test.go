//go:build kube

package operator_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/test/never"
	"github.com/nstance-go/nstance/internal/test/shardtest"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
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
	t.Parallel()
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
	t.Parallel()
	w := newWorld(t)
	a := w.shards.Start("a", 0)
	w.nonce(w.shards.OperatorNonce())
	t.Run("first", func(t *testing.T) {
		first := *w
		first.TB = t
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

// TestKubeClusterRenewal has a certificate that is past two thirds of its life renewed,
// before it ends and without the nonce.
func TestKubeClusterRenewal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.shards.Start("a", 0)
	key, cred := a.RegisterOperator()
	issued := w.aged(key, cred, 25*time.Second)
	private, err := pki.MarshalKey(key)
	require.NoError(t, err)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c-nstance"},
		Data: map[string][]byte{
			"tls.crt": pki.MarshalCertificates(issued.Certificate), "tls.key": private, "ca.crt": w.shards.Keys().Identity.CertPEM(), "cluster": []byte(shardtest.ID),
		},
	}
	old := secret.Data["tls.crt"]
	require.NoError(t, w.Create(t.Context(), secret))
	w.start()
	nc := w.cluster(a)
	until(w, secret, func(s *corev1.Secret) bool { return !bytes.Equal(s.Data["tls.crt"], old) }, "it is renewed")
	chain, err := pki.ParseCertificates(secret.Data["tls.crt"])
	require.NoError(t, err)
	require.Greater(t, time.Until(chain[0].NotAfter), time.Hour)
	a.Restart()
	until(w, nc, func(nc *infrav1.NstanceCluster) bool {
		return isTrue(nc, infrav1.ConditionRegistered) && isTrue(nc, infrav1.ConditionShardsConnected)
	}, "the new one serves")
}

// aged replaces the certificate of the registered operator by one that began a minute ago,
// and is valid for that much longer.
func (w *world) aged(key ed25519.PrivateKey, cred nstance.Credential, left time.Duration) keyring.KeyRecord {
	w.Helper()
	certs, err := pki.ParseCertificates(pki.MarshalCertificates(cred.Chain...))
	require.NoError(w, err)
	holder, err := pki.IdentityOf(certs[0])
	require.NoError(w, err)
	issued, err := w.shards.Keys().Identity.Issue(keyring.Template{
		Subject: holder.Subject, Tenant: holder.Tenant, Role: holder.Role, Key: key.Public().(ed25519.PublicKey), Lifetime: left, Now: time.Now(),
	})
	require.NoError(w, err)
	stored, err := w.shards.Store.Get(w.Context(), layout.OperatorKey(holder.Tenant, holder.Subject))
	require.NoError(w, err)
	record := map[string]any{}
	require.NoError(w, json.Unmarshal(stored.Data, &record))
	registered, ok := record["operator"].(map[string]any)
	require.True(w, ok, "%s", stored.Data)
	require.Contains(w, registered, "current")
	registered["current"] = issued
	data, err := json.Marshal(record)
	require.NoError(w, err)
	_, err = w.shards.Store.PutIfMatch(w.Context(), stored.Key, data, stored.Version)
	require.NoError(w, err)
	return issued
}

// TestKubeExternallyManaged leaves an NstanceCluster alone that something else manages.
func TestKubeExternallyManaged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.shards.Start("a", 0)
	w.nonce(w.shards.OperatorNonce())
	nc := w.cluster(a)
	base := nc.DeepCopy()
	nc.Annotations = map[string]string{clusterv1.ManagedByAnnotation: "others"}
	require.NoError(t, w.Patch(t.Context(), nc, client.MergeFrom(base)))
	w.start()
	until(w, nc, func(nc *infrav1.NstanceCluster) bool { return len(nc.OwnerReferences) > 0 }, "Cluster API has taken it over")
	never.True(t, func() bool {
		now := &infrav1.NstanceCluster{}
		return w.Get(t.Context(), client.ObjectKeyFromObject(nc), now) != nil || len(now.Finalizers) > 0 || isTrue(now, infrav1.ConditionRegistered)
	}, time.Second, 50*time.Millisecond)
	require.NoError(t, w.Get(t.Context(), client.ObjectKeyFromObject(nc), nc))
	base = nc.DeepCopy()
	delete(nc.Annotations, clusterv1.ManagedByAnnotation)
	require.NoError(t, w.Patch(t.Context(), nc, client.MergeFrom(base)))
	until(w, nc, func(nc *infrav1.NstanceCluster) bool { return isTrue(nc, infrav1.ConditionShardsConnected) }, "it is the operator's from now on")
}
