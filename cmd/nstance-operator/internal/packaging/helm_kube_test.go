//go:build kube

package packaging_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// helmCall runs helm against the API server.
func helmCall(args ...string) (errs string, err error) {
	_, errs, err = run("", "../helm", append(args, "--kubeconfig", servers.Kubeconfig)...)
	return errs, err
}

// everything returns the names of all objects that a release may have.
func everything(t *testing.T) []string {
	t.Helper()
	kinds := "namespace,crd,clusterrole,clusterrolebinding,role,rolebinding,serviceaccount,service,deployment,poddisruptionbudget,validatingwebhookconfiguration,secret"
	out, errs, err := run("", "kubectl", "--kubeconfig", servers.Kubeconfig, "get", kinds, "--all-namespaces", "--no-headers", "-o", "custom-columns=KIND:.kind,NAMESPACE:.metadata.namespace,NAME:.metadata.name")
	require.NoError(t, err, errs)
	return strings.Split(strings.TrimSpace(out), "\n")
}

// requireRefused: helm refuses for a reason, and has applied nothing.
func requireRefused(t *testing.T, reason string, args ...string) {
	t.Helper()
	before := everything(t)
	errs, err := helmCall(args...)
	require.Error(t, err)
	require.Contains(t, errs, reason)
	require.ElementsMatch(t, before, everything(t))
}

// deployed returns the Deployment of a release, whose pods no kubelet starts here: start is
// their kubelet.
func deployed(t *testing.T, namespace, name string) appsv1.Deployment {
	t.Helper()
	d, err := servers.Client.AppsV1().Deployments(namespace).Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return *d
}

// noSuch is how a namespace is refused that does not exist.
const noSuch = "namespace no-such of namespaces or secrets.namespaces does not exist: create it first"

// TestKubeHelm installs, upgrades and uninstalls releases, and runs the program of their pods
// under their ServiceAccount. What cannot work is refused before anything is applied: a
// namespace that does not exist, two releases of one name, two that reconcile the same
// objects, and a new name while the CRDs are another release's.
func TestKubeHelm(t *testing.T) {
	_, errs, err := run("", "kubectl", "--kubeconfig", servers.Kubeconfig, "delete", "-k", root+"/kubernetes/config/crd", "--ignore-not-found", "--wait") // of other tests
	require.NoError(t, err, errs)
	none := everything(t)
	green, blue := namespace(t), namespace(t)
	requireRefused(t, noSuch, "install", "nstance-operator", chart, "-n", green, "--set", "namespaces={no-such}")
	requireRefused(t, noSuch, "install", "nstance-operator", chart, "-n", green, "--set", "secrets.namespaces={no-such}")

	errs, err = helmCall("install", "nstance-operator", chart, "-n", green)
	require.NoError(t, err, errs)
	first := start(t, deployed(t, green, "nstance-operator"))
	first.requireWorks(t, green, "nstance-operator")
	requireRefused(t, "reconciles the same objects", "install", "nstance-operator", chart, "-n", blue)
	requireRefused(t, "reconciles the same objects", "install", "blue", chart, "-n", blue, "--set", "crds.install=false,namespaces={"+blue+"}")
	requireRefused(t, noSuch, "upgrade", "nstance-operator", chart, "-n", green, "--set", "namespaces={no-such}")
	first.requireWorks(t, green, "nstance-operator")

	errs, err = helmCall("upgrade", "nstance-operator", chart, "-n", green, "--set", "concurrency=3,namespaces={"+green+"}")
	require.NoError(t, err, errs)
	first.stop()
	upgraded := deployed(t, green, "nstance-operator")
	require.Contains(t, manager(t, upgraded).Args, "--concurrency=3")
	start(t, upgraded).requireWorks(t, green, "nstance-operator")
	requireRefused(t, "cannot be imported into the current release", "install", "nstance-operator", chart, "-n", blue, "--set", "crds.install=false,namespaces={"+blue+"}")
	requireRefused(t, "cannot be imported into the current release", "install", "blue", chart, "-n", blue, "--set", "namespaces={"+blue+"}")
	errs, err = helmCall("install", "blue", chart, "-n", blue, "--set", "crds.install=false,namespaces={"+blue+"}")
	require.NoError(t, err, errs)
	start(t, deployed(t, blue, "blue-nstance-operator")).requireWorksAs(t, blue, "blue-nstance-operator", "blue-nstance-operator")

	for namespace, name := range map[string]string{green: "nstance-operator", blue: "blue"} {
		errs, err = helmCall("uninstall", name, "-n", namespace)
		require.NoError(t, err, errs)
	}
	kept := 0
	for _, line := range everything(t) {
		switch {
		case strings.Contains(line, "infrastructure.cluster.x-k8s.io"):
			kept++
		case strings.Contains(line, "-webhook") && strings.HasPrefix(line, "Secret"), strings.HasPrefix(line, "Namespace"): // what the programs and this test have made
		default:
			require.Contains(t, none, line, "it is left")
		}
	}
	require.Equal(t, 8, kept, "the CRDs stay")

	requireRefused(t, "cannot be imported into the current release", "install", "again", chart, "-n", green)
	errs, err = helmCall("install", "again", chart, "-n", green, "--take-ownership")
	require.NoError(t, err, errs)
	start(t, deployed(t, green, "again-nstance-operator")).requireWorksAs(t, green, "again-nstance-operator", "again-nstance-operator")
	errs, err = helmCall("uninstall", "again", "-n", green)
	require.NoError(t, err, errs)
}
