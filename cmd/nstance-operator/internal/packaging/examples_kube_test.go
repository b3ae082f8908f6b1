//go:build kube

package packaging_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// example builds a program of the module examples, and runs it against the API server
// until the test ends.
func example(t *testing.T, name string, env ...string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "example")
	build := exec.Command("go", "build", "-o", path, "./shortest/"+name)
	build.Dir = root + "/examples"
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	var log buffer
	cmd := exec.Command(path)
	cmd.Env = append(append(os.Environ(), "KUBECONFIG="+servers.Kubeconfig), env...)
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(t, cmd.Wait(), log.String())
		if t.Failed() {
			t.Log(log.String())
		}
	})
}

// TestKubeExampleNodes: the drains of nodes work in a manager of others.
func TestKubeExampleNodes(t *testing.T) {
	nodes := servers.Client.CoreV1().Nodes()
	for name, annotations := range map[string]map[string]string{
		"leaves": {"example.com/drain-by": time.Now().Add(time.Hour).Format(time.RFC3339)}, "stays": nil,
	} {
		_, err := nodes.Create(t.Context(), &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}, Spec: corev1.NodeSpec{ProviderID: "example:///" + name},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	example(t, "nodecontroller")
	require.Eventually(t, func() bool {
		n, err := nodes.Get(t.Context(), "leaves", metav1.GetOptions{})
		return err == nil && n.Spec.Unschedulable && n.Annotations["nstance.dev/drain-instance"] == "leaves"
	}, eventually, interval)
	n, err := nodes.Get(t.Context(), "stays", metav1.GetOptions{})
	require.NoError(t, err)
	require.False(t, n.Spec.Unschedulable)
}

// TestKubeExampleOperator: controllers and webhooks work in a manager of others.
func TestKubeExampleOperator(t *testing.T) {
	require.NoError(t, servers.InstallCRDs(root+"/kubernetes/config/crd"))
	scheme := runtime.NewScheme()
	require.NoError(t, clusterv1.AddToScheme(scheme))
	require.NoError(t, infrav1.AddToScheme(scheme))
	typed, err := client.New(servers.Config, client.Options{Scheme: scheme})
	require.NoError(t, err)
	t.Cleanup(func() { // no controller runs any more, and the finalizers would keep the CRDs
		var left infrav1.NstanceClusterList
		require.NoError(t, typed.List(context.Background(), &left))
		for i := range left.Items {
			before := left.Items[i].DeepCopy()
			left.Items[i].Finalizers = nil
			require.NoError(t, typed.Patch(context.Background(), &left.Items[i], client.MergeFrom(before)))
		}
	})
	hooks := &envtest.WebhookInstallOptions{
		Paths: []string{root + "/kubernetes/config/webhook/manifests.yaml"}, LocalServingHost: "127.0.0.1", LocalServingPort: 9443, // the default port
	}
	require.NoError(t, hooks.Install(servers.Config))
	t.Cleanup(func() { require.NoError(t, hooks.Cleanup()) })
	for _, c := range hooks.ValidatingWebhooks {
		t.Cleanup(func() {
			require.NoError(t, servers.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(context.Background(), c.Name, metav1.DeleteOptions{}))
		})
	}
	example(t, "operator", "WEBHOOK_CERTS="+hooks.LocalServingCertDir)

	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: servers.Namespace(t), Name: "c"}, Spec: clusterv1.ClusterSpec{
		InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: "NstanceCluster", Name: "c"},
	}}
	require.NoError(t, typed.Create(t.Context(), cluster))
	nc := &infrav1.NstanceCluster{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: "c", OwnerReferences: []metav1.OwnerReference{{
		APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: "c", UID: cluster.UID,
	}}}, Spec: infrav1.NstanceClusterSpec{
		Shards:       []infrav1.Shard{{Name: "a", Address: "127.0.0.1:1", RegistrationAddress: "127.0.0.1:1"}},
		Registration: infrav1.RegistrationReference{SecretName: "nstance"},
	}}
	require.NoError(t, typed.Create(t.Context(), nc))
	require.Eventually(t, func() bool {
		return typed.Get(t.Context(), client.ObjectKeyFromObject(nc), nc) == nil && len(nc.Finalizers) == 1
	}, eventually, interval)

	bad := &infrav1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: "bad"}}
	bad.Spec.Spot = &infrav1.SpotOptions{}
	require.Eventually(t, func() bool { return apierrors.IsInvalid(typed.Create(t.Context(), bad.DeepCopy())) }, eventually, interval)
}
