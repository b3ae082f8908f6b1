//go:build kube

package program

import (
	"bytes"
	"context"
	"crypto/x509"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestKubeRotation: certificates are renewed in time. Replicas that still use the one
// before are trusted meanwhile, and a new one is used only when it is trusted.
func TestKubeRotation(t *testing.T) {
	const name = "rotation"
	namespace := servers.Namespace(t)
	now := time.Now()
	keeper := func() *certificates {
		c := newCertificates(servers.Client, &options{name: name, ownNamespace: namespace, webhookConfiguration: name}, slog.New(slog.DiscardHandler))
		c.now = func() time.Time { return now }
		return c
	}
	a, b := keeper(), keeper()
	require.True(t, apierrors.IsNotFound(a.check(t.Context())), "there is no configuration yet")
	_, err := a.get(nil)
	require.ErrorContains(t, err, "no certificate yet")

	require.NoError(t, api.Create(t.Context(), configuration(t, name, "1")))
	t.Cleanup(func() {
		require.NoError(t, api.Delete(context.Background(), &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	})
	require.NoError(t, a.check(t.Context()))
	require.NoError(t, b.check(t.Context()))
	first := served(t, a)
	require.Equal(t, first.Raw, served(t, b).Raw, "replicas share it")
	requireTrusted(t, name, first)

	now = now.Add(certificateLife / 2)
	require.NoError(t, a.check(t.Context()))
	require.Equal(t, first.Raw, served(t, a).Raw, "it is good for longer")

	now = now.Add(certificateLife / 4)
	require.NoError(t, a.check(t.Context()))
	require.Equal(t, first.Raw, served(t, a).Raw, "until the API server trusts the next one")
	require.NoError(t, a.check(t.Context()))
	second := served(t, a)
	require.NotEqual(t, first.Raw, second.Raw)
	requireTrusted(t, name, first, second)
	require.Equal(t, first.Raw, served(t, b).Raw)
	require.NoError(t, b.check(t.Context()))
	require.Equal(t, second.Raw, served(t, b).Raw)

	now = now.Add(certificateLife * 3 / 4)
	require.NoError(t, b.check(t.Context()))
	require.NoError(t, b.check(t.Context()))
	requireTrusted(t, name, second, served(t, b))
	require.NotContains(t, string(bundle(t, name)), string(first.Raw))

	// The API server calls the webhooks by another name.
	require.NoError(t, api.Delete(t.Context(), &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	c := configuration(t, name, "1")
	for i := range c.Webhooks {
		c.Webhooks[i].ClientConfig = admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: "x", Name: "y"}}
	}
	require.NoError(t, api.Create(t.Context(), c))
	require.NoError(t, a.check(t.Context()))
	require.NoError(t, a.check(t.Context()))
	require.NoError(t, served(t, a).VerifyHostname("y.x.svc"))

	// An emptied Secret is made anew.
	secret := &corev1.Secret{}
	require.NoError(t, api.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name + "-webhook"}, secret))
	last := served(t, a)
	secret.Data = map[string][]byte{corev1.TLSCertKey: nil, corev1.TLSPrivateKeyKey: nil}
	require.NoError(t, api.Update(t.Context(), secret))
	require.NoError(t, a.check(t.Context()))
	require.NoError(t, a.check(t.Context()))
	require.NotEqual(t, last.Raw, served(t, a).Raw)
	requireTrusted(t, name, served(t, a))
}

func served(t *testing.T, c *certificates) *x509.Certificate {
	t.Helper()
	pair, err := c.get(nil)
	require.NoError(t, err)
	return pair.Leaf
}

func bundle(t *testing.T, name string) []byte {
	t.Helper()
	var c admissionv1.ValidatingWebhookConfiguration
	require.NoError(t, api.Get(t.Context(), client.ObjectKey{Name: name}, &c))
	for _, w := range c.Webhooks {
		require.True(t, bytes.Equal(c.Webhooks[0].ClientConfig.CABundle, w.ClientConfig.CABundle))
	}
	return c.Webhooks[0].ClientConfig.CABundle
}

// requireTrusted: the API server trusts exactly these certificates.
func requireTrusted(t *testing.T, name string, certs ...*x509.Certificate) {
	t.Helper()
	pool, want := x509.NewCertPool(), x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(bundle(t, name)))
	for _, c := range certs {
		want.AddCert(c)
		_, err := c.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: c.NotBefore.Add(time.Hour), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
		require.NoError(t, err)
	}
	require.True(t, want.Equal(pool))
}
