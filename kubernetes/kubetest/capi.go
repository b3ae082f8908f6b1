package kubetest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/internal/test/freeport"
)

// clusterAPI is the program of Cluster API's manager.
const clusterAPI = "capi-manager"

// InstallCRDs installs the CRDs of folders and files, and waits until they are served.
func (c *Cluster) InstallCRDs(paths ...string) error {
	_, err := envtest.InstallCRDs(c.Config, envtest.CRDInstallOptions{Paths: paths, ErrorIfPathMissing: true})
	return err
}

// PrepareWebhooks reads webhook configurations, and chooses address and certificate of
// the server that shall answer them. Its Install sends them to the API server, which may
// take a moment to ask.
func (c *Cluster) PrepareWebhooks(paths ...string) (*envtest.WebhookInstallOptions, error) {
	addr, err := freeport.Address() // envtest's own may be taken by a connection before the server starts
	if err != nil {
		return nil, err
	}
	at := netip.MustParseAddrPort(addr)
	hooks := &envtest.WebhookInstallOptions{Paths: paths, LocalServingHost: at.Addr().String(), LocalServingPort: int(at.Port())}
	if err := hooks.PrepWithoutInstalling(); err != nil {
		return nil, err
	}
	dir := c.path(fmt.Sprintf("webhooks-%d", hooks.LocalServingPort))
	if err := os.Rename(hooks.LocalServingCertDir, dir); err != nil {
		return nil, err
	}
	hooks.LocalServingCertDir = dir
	return hooks, nil
}

// StartClusterAPI installs Cluster API's CRDs, starts its own manager, and has its
// webhooks convert, set defaults and validate. Further flags are the manager's.
func (c *Cluster) StartClusterAPI(flags ...string) error {
	assets := os.Getenv(Assets)
	hooks, err := c.PrepareWebhooks(filepath.Join(assets, "webhooks"))
	if err != nil {
		return err
	}
	if err := c.installClusterAPI(filepath.Join(assets, "crds"), hooks); err != nil {
		return err
	}
	const namespace = "capi-system"
	if _, err := c.Client.CoreV1().Namespaces().Create(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	health, err := freeport.Address()
	if err != nil {
		return err
	}
	if c.diagnostics, err = freeport.Address(); err != nil {
		return err
	}
	for name, value := range map[string]string{"POD_NAMESPACE": namespace, "POD_NAME": "capi"} {
		if err := os.Setenv(name, value); err != nil { // children inherit it
			return err
		}
	}
	if err := c.begin(clusterAPI, append([]string{
		"--kubeconfig", c.Kubeconfig, "--webhook-cert-dir", hooks.LocalServingCertDir, "--webhook-port", strconv.Itoa(hooks.LocalServingPort), "--health-addr", health,
		"--diagnostics-address", c.diagnostics, "--insecure-diagnostics", "--leader-elect=false", "--feature-gates=MachinePool=true",
		"--skip-crd-migration-phases=StorageVersionMigration,CleanupManagedFields",
	}, flags...)...); err != nil {
		return err
	}
	if err := c.await(http.DefaultClient, "http://"+health+"/readyz", ""); err != nil {
		return err
	}
	if err := hooks.Install(c.Config); err != nil {
		return err
	}
	return c.awaitDefaults()
}

// ClusterAPI returns the process ID of Cluster API's manager, and the URL of its metrics.
func (c *Cluster) ClusterAPI() (pid int, metrics string) {
	for _, s := range c.servers {
		if s.name == clusterAPI {
			pid = s.cmd.Process.Pid
		}
	}
	return pid, "http://" + c.diagnostics + "/metrics"
}

// installClusterAPI installs Cluster API's CRDs, whose older versions its manager converts.
func (c *Cluster) installClusterAPI(crds string, hooks *envtest.WebhookInstallOptions) error {
	known := envtest.CRDInstallOptions{Paths: []string{crds}, ErrorIfPathMissing: true}
	if err := envtest.ReadCRDFiles(&known); err != nil {
		return err
	}
	url := "https://" + net.JoinHostPort(hooks.LocalServingHost, strconv.Itoa(hooks.LocalServingPort)) + "/convert"
	for _, crd := range known.CRDs {
		crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
			Strategy: apiextensionsv1.WebhookConverter,
			Webhook: &apiextensionsv1.WebhookConversion{
				ClientConfig:             &apiextensionsv1.WebhookClientConfig{URL: &url, CABundle: hooks.LocalServingCAData},
				ConversionReviewVersions: []string{"v1"},
			},
		}
	}
	_, err := envtest.InstallCRDs(c.Config, envtest.CRDInstallOptions{CRDs: known.CRDs})
	return err
}

// awaitDefaults waits until Cluster API's webhooks set defaults, and refuse what is wrong.
func (c *Cluster) awaitDefaults() error {
	api, err := client.New(c.Config, client.Options{})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	for {
		sound, wrong := probe("c"), probe("another")
		err := api.Create(ctx, sound, client.DryRunAll)
		_, defaulted, _ := unstructured.NestedInt64(sound.Object, "spec", "replicas")
		if refused := api.Create(ctx, wrong, client.DryRunAll); err == nil && defaulted && apierrors.IsInvalid(refused) {
			return nil
		}
		if !sleep.For(ctx, 20*time.Millisecond) {
			return fmt.Errorf("Cluster API's webhooks do not answer: %w: %s", err, c.tail())
		}
	}
}

// probe is a MachinePool of cluster c without replicas, whose machines are of a cluster.
func probe(cluster string) *unstructured.Unstructured {
	p := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"clusterName": "c", "template": map[string]any{"spec": map[string]any{
			"clusterName": cluster, "bootstrap": map[string]any{"dataSecretName": ""},
			"infrastructureRef": map[string]any{"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "NstanceMachinePool", "name": "p"},
		}},
	}}}
	p.SetAPIVersion("cluster.x-k8s.io/v1beta2")
	p.SetKind("MachinePool")
	p.SetNamespace(metav1.NamespaceDefault)
	p.SetName("probe")
	return p
}
