package kube

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// InstallCRDs installs the CRDs of folders and files, and waits until they are served.
func (c *Cluster) InstallCRDs(paths ...string) error {
	_, err := envtest.InstallCRDs(c.Config, envtest.CRDInstallOptions{Paths: paths, ErrorIfPathMissing: true})
	return err
}

// StartClusterAPI installs Cluster API's CRDs and starts its own manager, without
// webhooks: defaults must be spelled out. Further flags are the manager's.
func (c *Cluster) StartClusterAPI(flags ...string) error {
	if err := c.InstallCRDs(filepath.Join(os.Getenv(Assets), "crds")); err != nil {
		return err
	}
	const namespace = "capi-system"
	if _, err := c.Client.CoreV1().Namespaces().Create(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := writePair(c.path("capi")); err != nil {
		return err
	}
	health, err := freePort()
	if err != nil {
		return err
	}
	webhook, err := freePort()
	if err != nil {
		return err
	}
	for name, value := range map[string]string{"POD_NAMESPACE": namespace, "POD_NAME": "capi"} {
		if err := os.Setenv(name, value); err != nil { // children inherit it
			return err
		}
	}
	if err := c.begin("capi-manager", append([]string{
		"--kubeconfig", c.Kubeconfig, "--webhook-cert-dir", c.path("capi"), "--webhook-port", portOf(webhook), "--health-addr", health,
		"--diagnostics-address=127.0.0.1:0", "--insecure-diagnostics", "--leader-elect=false", "--feature-gates=MachinePool=true",
		"--skip-crd-migration-phases=StorageVersionMigration,CleanupManagedFields",
	}, flags...)...); err != nil {
		return err
	}
	return c.await(http.DefaultClient, "http://"+health+"/readyz", "")
}

func portOf(address string) string { return address[len("127.0.0.1:"):] }

// writePair writes a certificate of the manager's webhooks, which are not installed.
func writePair(dir string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "capi"}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "tls.crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "tls.key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}
