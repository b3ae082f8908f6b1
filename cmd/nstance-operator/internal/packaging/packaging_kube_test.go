//go:build kube

package packaging_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance/cmd/nstance-operator/internal/program"
	"github.com/nstance-go/nstance/internal/test/freeport"
	"github.com/nstance-go/nstance/kubernetes/kubetest"
)

const (
	eventually = 3 * time.Minute
	interval   = 50 * time.Millisecond
	root       = "../../../.."
	chart      = root + "/kubernetes/charts/nstance-operator"
)

var (
	servers *kubetest.Cluster
	api     client.Client
)

// asProgram in the environment makes this program nstance-operator.
const asProgram = "NSTANCE_TEST_AS_OPERATOR"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		code := program.Main(ctx, os.Args[1:], os.Stdout, os.Stderr)
		stop()
		os.Exit(code)
	}
	os.Exit(kubetest.Main(m, kubetest.Options{}, func(c *kubetest.Cluster) {
		servers = c
		if err := prepare(); err != nil {
			panic(err)
		}
	}))
}

// prepare installs what the components of others bring: Cluster API's resources, and
// those of cert-manager and Prometheus that the chart can use.
func prepare() error {
	if err := servers.InstallCRDs(filepath.Join(os.Getenv(kubetest.Assets), "crds"), "testdata"); err != nil {
		return err
	}
	var err error
	api, err = client.New(servers.Config, client.Options{})
	return err
}

// run runs a tool that make has built, by its path from the folder of the servers.
func run(stdin, name string, args ...string) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	cmd := exec.Command(filepath.Join(os.Getenv(kubetest.Assets), name), args...)
	cmd.Env = append(os.Environ(), "CLUSTERCTL_DISABLE_VERSIONCHECK=true")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// helm renders the chart.
func helm(namespace string, args ...string) (stdout, stderr string, err error) {
	return run("", "../helm", append([]string{"template", "nstance-operator", chart, "--namespace", namespace, "--kube-version", "v1.36.3"}, args...)...)
}

// objects are what a tool has rendered.
type objects []*unstructured.Unstructured

func parse(t *testing.T, text string) (out objects) {
	t.Helper()
	for docs := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096); ; {
		obj := &unstructured.Unstructured{}
		err := docs.Decode(&obj.Object)
		if errors.Is(err, io.EOF) {
			return out
		}
		require.NoError(t, err)
		if len(obj.Object) > 0 {
			out = append(out, obj)
		}
	}
}

// of returns the objects of a kind.
func of[T any](t *testing.T, all objects, kind string) (out []T) {
	t.Helper()
	for _, obj := range all {
		if obj.GetKind() == kind {
			var typed T
			require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(obj.Object, &typed, true))
			out = append(out, typed)
		}
	}
	return out
}

// apply has the API server accept every object, field by field. Those that others do
// not need are removed when the test ends.
func (o objects) apply(t *testing.T) {
	t.Helper()
	var text bytes.Buffer
	for _, obj := range o {
		data, err := obj.MarshalJSON()
		require.NoError(t, err)
		text.Write(data)
		if kind := obj.GetKind(); kind != "Namespace" && kind != "CustomResourceDefinition" {
			t.Cleanup(func() { require.NoError(t, client.IgnoreNotFound(api.Delete(context.Background(), obj.DeepCopy()))) })
		}
	}
	_, errs, err := run(text.String(), "kubectl", "--kubeconfig", servers.Kubeconfig, "apply", "--server-side", "--force-conflicts", "--validate=strict", "-f", "-")
	require.NoError(t, err, errs)
	require.NotContains(t, errs, "Warning")
}

// namespace makes a namespace in which pods are restricted.
func namespace(t *testing.T) string {
	t.Helper()
	name := servers.Namespace(t)
	_, err := servers.Client.CoreV1().Namespaces().Patch(t.Context(), name, "application/merge-patch+json",
		[]byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	return name
}

// requireRestricted: the pods of a Deployment are accepted where pods are restricted.
func requireRestricted(t *testing.T, d appsv1.Deployment) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: d.Spec.Template.ObjectMeta, Spec: d.Spec.Template.Spec}
	pod.Name = "p"
	_, err := servers.Client.CoreV1().Pods(d.Namespace).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	require.NoError(t, err)
	root := pod.DeepCopy()
	root.Spec.SecurityContext.RunAsNonRoot, root.Spec.SecurityContext.RunAsUser = nil, new(int64)
	_, err = servers.Client.CoreV1().Pods(d.Namespace).Create(t.Context(), root, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	require.True(t, apierrors.IsForbidden(err), "the namespace restricts nothing")
}

// manager returns the container that clusterctl and others look for.
func manager(t *testing.T, d appsv1.Deployment) corev1.Container {
	t.Helper()
	require.Len(t, d.Spec.Template.Spec.Containers, 1)
	require.Equal(t, "manager", d.Spec.Template.Spec.Containers[0].Name)
	require.True(t, *d.Spec.Template.Spec.Containers[0].SecurityContext.ReadOnlyRootFilesystem)
	return d.Spec.Template.Spec.Containers[0]
}

// generated returns the roles that are generated from the code.
func generated(t *testing.T, path string) objects {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "kubernetes/config", path))
	require.NoError(t, err)
	return parse(t, string(text))
}

// requireRules: roles have the rules that are generated from the code, and no others.
func requireRules(t *testing.T, all objects, webhooks string) {
	t.Helper()
	var want, got []rbacv1.PolicyRule
	for _, path := range []string{"rbac/role.yaml", "secrets/role.yaml", "manager/role.yaml"} {
		for _, role := range append(of[rbacv1.ClusterRole](t, generated(t, path), "ClusterRole"), of[rbacv1.ClusterRole](t, generated(t, path), "Role")...) {
			want = append(want, role.Rules...)
		}
	}
	for i := range want {
		for j, name := range want[i].ResourceNames {
			want[i].ResourceNames[j] = strings.Replace(name, "nstance-operator", webhooks, 1)
		}
	}
	for _, role := range append(of[rbacv1.ClusterRole](t, all, "ClusterRole"), of[rbacv1.ClusterRole](t, all, "Role")...) {
		if !strings.HasSuffix(role.Name, "-metrics-reader") {
			got = append(got, role.Rules...)
		}
	}
	require.ElementsMatch(t, want, got)
}

// A running operator is the program, with the arguments and the rights that a
// Deployment gives it.
type running struct {
	health string
	log    buffer
	stop   func()
}

// A buffer is a log that is safe for concurrent use.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func freeAddress(t *testing.T) string {
	address, err := freeport.Address()
	require.NoError(t, err)
	return address
}

// start runs the operator of a Deployment until the test ends.
func start(t *testing.T, d appsv1.Deployment, further ...string) *running {
	t.Helper()
	c, err := clientcmd.LoadFromFile(servers.Kubeconfig)
	require.NoError(t, err)
	token, err := servers.Client.CoreV1().ServiceAccounts(d.Namespace).CreateToken(t.Context(), d.Spec.Template.Spec.ServiceAccountName, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.AuthInfos["test"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	config := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(*c, config))
	r := &running{health: freeAddress(t)}
	_, port, err := net.SplitHostPort(freeAddress(t))
	require.NoError(t, err)
	args := append([]string{}, manager(t, d).Args...)
	args = append(args, "--kubeconfig", config, "--health-addr", r.health, "--metrics-bind-address", freeAddress(t), "--webhook-port", port)
	cmd := startable(t, append(args, further...)...)
	cmd.Stderr = &r.log
	require.NoError(t, cmd.Start())
	r.stop = sync.OnceFunc(func() {
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Log(r.log.String())
			require.NoError(t, err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

// startable is nstance-operator, in a process of its own.
func startable(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return cmd
}

// requireWorks: the operator leads, reconciles and answers webhooks with these rights.
func (r *running) requireWorks(t *testing.T, namespace, webhooks string) {
	t.Helper()
	r.requireWorksAs(t, namespace, "nstance-operator", webhooks)
}

// requireWorksAs is that of an operator with another name.
func (r *running) requireWorksAs(t *testing.T, namespace, name, webhooks string) {
	t.Helper()
	require.Eventually(t, func() bool {
		lease, err := servers.Client.CoordinationV1().Leases(namespace).Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != ""
	}, eventually, interval)
	require.Eventually(t, func() bool {
		c, err := servers.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), webhooks, metav1.GetOptions{})
		return err == nil && len(c.Webhooks[0].ClientConfig.CABundle) > 0
	}, eventually, interval)
	require.Eventually(t, func() bool {
		resp, err := http.Get("http://" + r.health + "/readyz")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}, eventually, interval)
	require.Eventually(t, func() bool { return strings.Count(r.log.String(), `"Starting workers"`) >= 2 }, eventually, interval, "its caches are filled")
	require.NotContains(t, r.log.String(), "forbidden")
}

// TestKubeChart: what the chart renders is accepted field by field, restricted, and
// enough for the program.
func TestKubeChart(t *testing.T) {
	for name, tt := range map[string]struct {
		values string
		kinds  map[string]int // that differ from those of the default values
		args   []string
	}{
		"default": {
			`{}`, map[string]int{"CustomResourceDefinition": 8, "ServiceMonitor": 0, "Certificate": 0, "Issuer": 0, "PodDisruptionBudget": 1, "ClusterRoleBinding": 2, "RoleBinding": 2, "Service": 2},
			[]string{"--leader-elect=true", "--webhook-configuration=nstance-operator", "--metrics-bind-address=:8443"},
		},
		"others' certificates and monitoring": {
			`{"webhooks": {"certManager": {"enabled": true}}, "metrics": {"serviceMonitor": {"enabled": true, "labels": {"release": "prometheus"}}}}`,
			map[string]int{"ServiceMonitor": 1, "Certificate": 1, "Issuer": 1}, []string{"--webhook-cert-dir=/etc/webhooks"},
		},
		"an issuer that exists": {
			`{"webhooks": {"certManager": {"enabled": true, "issuerRef": {"kind": "ClusterIssuer", "name": "ca"}}}}`, map[string]int{"Certificate": 1, "Issuer": 0}, nil,
		},
		"two namespaces": {
			`{"namespaces": ["default", "kube-public"], "watchFilter": "green", "concurrency": 3}`, map[string]int{"ClusterRoleBinding": 1, "RoleBinding": 5},
			[]string{"--namespace=default,kube-public", "--watch-filter=green", "--concurrency=3"},
		},
		"secrets of two namespaces": {`{"secrets": {"namespaces": ["default", "kube-public"]}}`, map[string]int{"ClusterRoleBinding": 2, "RoleBinding": 3}, nil},
		"secrets of all namespaces": {`{"secrets": {"clusterWide": true}}`, map[string]int{"ClusterRoleBinding": 3, "RoleBinding": 1}, nil},
		"little": {
			`{"replicas": 1, "leaderElection": {"enabled": false}, "webhooks": {"enabled": false}, "metrics": {"enabled": false}, "crds": {"install": false}, "serviceAccount": {"create": false, "name": "mine"}}`,
			map[string]int{"CustomResourceDefinition": 0, "PodDisruptionBudget": 0, "Service": 0, "ValidatingWebhookConfiguration": 0, "ServiceAccount": 0},
			[]string{"--leader-elect=false", "--webhook-port=0", "--metrics-bind-address=0"},
		},
		"everything said": {
			`{"fullnameOverride": "operator", "image": {"repository": "registry.example.com:5000/nstance", "digest": "sha256:` + strings.Repeat("a", 64) + `", "pullPolicy": "Always"},
			"imagePullSecrets": [{"name": "registry"}], "priorityClassName": "system-cluster-critical", "nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}],
			"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}}},
			"topologySpreadConstraints": [{"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"a": "b"}}}],
			"podAnnotations": {"a": "b"}, "podLabels": {"c": "d"}, "serviceAccount": {"annotations": {"e": "f"}}, "crds": {"keep": false}, "extraArgs": ["--lease-duration=20s"], "log": {"level": "debug", "format": "text"}}`,
			nil, []string{"--name=operator", "--lease-duration=20s", "--log-level=debug"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			ns := namespace(t)
			values := filepath.Join(t.TempDir(), "values.json")
			require.NoError(t, os.WriteFile(values, []byte(tt.values), 0o600))
			text, errs, err := helm(ns, "--values", values)
			require.NoError(t, err, errs)
			all := parse(t, text)
			all.apply(t)
			for kind, n := range tt.kinds {
				require.Len(t, of[metav1.PartialObjectMetadata](t, all.metadata(), kind), n, kind)
			}
			deployments := of[appsv1.Deployment](t, all, "Deployment")
			require.Len(t, deployments, 1)
			requireRestricted(t, deployments[0])
			require.Subset(t, manager(t, deployments[0]).Args, tt.args)
			requireKnown(t, manager(t, deployments[0]).Args)
			requireRules(t, all, deployments[0].Name)
		})
	}
}

// metadata returns the objects without what they specify.
func (o objects) metadata() (out objects) {
	for _, obj := range o {
		m := &unstructured.Unstructured{Object: map[string]any{"apiVersion": obj.GetAPIVersion(), "kind": obj.GetKind(), "metadata": map[string]any{"name": obj.GetName()}}}
		out = append(out, m)
	}
	return out
}

// requireKnown: the program understands the arguments, and only has no cluster.
func requireKnown(t *testing.T, args []string) {
	t.Helper()
	cmd := startable(t, append(append([]string{}, args...), "--own-namespace=x", "--kubeconfig=/no/such/file")...)
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Equal(t, 2, cmd.ProcessState.ExitCode())
	require.True(t, strings.HasPrefix(string(out), "--kubeconfig: "), string(out))
}

// TestKubeChartRuns: the program works with the arguments and the rights of the chart.
func TestKubeChartRuns(t *testing.T) {
	for name, values := range map[string]string{
		"default":        `{}`,
		"two namespaces": `{"namespaces": ["default", "kube-public"]}`,
	} {
		t.Run(name, func(t *testing.T) {
			ns := namespace(t)
			file := filepath.Join(t.TempDir(), "values.json")
			require.NoError(t, os.WriteFile(file, []byte(values), 0o600))
			text, errs, err := helm(ns, "--values", file)
			require.NoError(t, err, errs)
			all := parse(t, text)
			all.apply(t)
			start(t, of[appsv1.Deployment](t, all, "Deployment")[0]).requireWorks(t, ns, "nstance-operator")
		})
	}
}

// TestKubeChartSecrets: the right on Secrets ends at the namespaces that are named.
func TestKubeChartSecrets(t *testing.T) {
	other, third := namespace(t), namespace(t)
	for name, tt := range map[string]struct {
		values                string
		own, ofOther, ofThird bool
	}{
		"default":      {`{}`, true, false, false},
		"namespaces":   {fmt.Sprintf(`{"namespaces": [%q]}`, other), false, true, false},
		"secrets":      {fmt.Sprintf(`{"namespaces": [%q, %q], "secrets": {"namespaces": [%q]}}`, other, third, other), false, true, false},
		"cluster-wide": {`{"secrets": {"clusterWide": true}}`, true, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			ns := namespace(t)
			file := filepath.Join(t.TempDir(), "values.json")
			require.NoError(t, os.WriteFile(file, []byte(tt.values), 0o600))
			text, errs, err := helm(ns, "--values", file)
			require.NoError(t, err, errs)
			parse(t, text).apply(t)
			may := func(verb, namespace, name string) func() bool {
				return func() bool {
					answer, err := servers.Client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
						Spec: authorizationv1.SubjectAccessReviewSpec{
							User:               fmt.Sprintf("system:serviceaccount:%s:nstance-operator", ns),
							ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Resource: "secrets", Namespace: namespace, Name: name},
						},
					}, metav1.CreateOptions{})
					require.NoError(t, err)
					return answer.Status.Allowed
				}
			}
			// The authorizer hears of new roles a little later: what is permitted is awaited first.
			require.Eventually(t, may("get", ns, "nstance-operator-webhook"), eventually, interval)
			for namespace, want := range map[string]bool{ns: tt.own, other: tt.ofOther, third: tt.ofThird} {
				if want {
					require.Eventually(t, may("get", namespace, "c-kubeconfig"), eventually, interval, namespace)
				} else {
					require.False(t, may("get", namespace, "c-kubeconfig")(), namespace)
				}
				require.False(t, may("list", namespace, "")(), namespace)
			}
		})
	}
}

// TestKubeChartRefuses: values that make no sense are refused by the schema.
func TestKubeChartRefuses(t *testing.T) {
	for value, key := range map[string]string{
		`{"replicas": -1}`:    "replicas",
		`{"replicas": "two"}`: "replicas",
		`{"replica": 2}`:      "replica",
		`{"replicas": 2, "leaderElection": {"enabled": false}}`:  "replicas",
		`{"image": {"repository": ""}}`:                          "repository",
		`{"image": {"digest": "sha256:beef"}}`:                   "digest",
		`{"image": {"pullPolicy": "Sometimes"}}`:                 "pullPolicy",
		`{"webhooks": {"port": 0}}`:                              "port",
		`{"webhooks": {"failurePolicy": "Maybe"}}`:               "failurePolicy",
		`{"metrics": {"port": 65536}}`:                           "port",
		`{"metrics": {"serviceMonitor": {"interval": "often"}}}`: "interval",
		`{"log": {"level": "loud"}}`:                             "level",
		`{"namespaces": ["Default"]}`:                            "namespaces",
		`{"namespaces": "default"}`:                              "namespaces",
		`{"secrets": {"namespaces": ["Default"]}}`:               "namespaces",
		`{"secrets": {"clusterWide": "yes"}}`:                    "clusterWide",
		`{"leaderElection": {"leaseDuration": "soon"}}`:          "leaseDuration",
		`{"concurrency": 0}`:                                     "concurrency",
		`{"extraArgs": ["leader-elect"]}`:                        "extraArgs",
	} {
		t.Run(strings.ReplaceAll(value, ",", ""), func(t *testing.T) { // a comma would divide the name of the file
			require.True(t, json.Valid([]byte(value)))
			file := filepath.Join(t.TempDir(), "values.json")
			require.NoError(t, os.WriteFile(file, []byte(value), 0o600))
			_, errs, err := helm("x", "--values", file)
			require.Error(t, err)
			require.Contains(t, errs, "values don't meet the specifications of the schema")
			require.Contains(t, errs, key)
		})
	}
}

// TestKubeComponents: what the kustomization renders is accepted, keeps the rules of
// clusterctl, which takes it, and is enough for the program.
func TestKubeComponents(t *testing.T) {
	text, errs, err := run("", "../kustomize", "build", root+"/kubernetes/config/default")
	require.NoError(t, err, errs)
	version := installable(t, text)
	target := namespace(t)
	config := filepath.Join(t.TempDir(), "clusterctl.yaml")
	for name, args := range map[string]struct{ namespace, text string }{
		"kustomize":  {"nstance-system", text},
		"clusterctl": {target, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if args.text == "" {
				require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, "providers:\n- {name: nstance, type: InfrastructureProvider, url: %s}\n", version.components), 0o600))
				out := filepath.Join(t.TempDir(), "out.yaml")
				_, errs, err := run("", "../clusterctl", "generate", "provider", "--infrastructure", "nstance:"+version.tag, "--config", config, "--target-namespace", target, "--write-to", out)
				require.NoError(t, err, errs)
				data, err := os.ReadFile(out)
				require.NoError(t, err)
				args.text = string(data)
			}
			all := parse(t, args.text)
			require.Len(t, of[metav1.PartialObjectMetadata](t, all.metadata(), "Namespace"), 1)
			require.Len(t, of[metav1.PartialObjectMetadata](t, all.metadata(), "CustomResourceDefinition"), 8)
			for _, obj := range all {
				require.Equal(t, "infrastructure-nstance", obj.GetLabels()["cluster.x-k8s.io/provider"], "%s %s", obj.GetKind(), obj.GetName())
				if obj.GetNamespace() != "" {
					require.Equal(t, args.namespace, obj.GetNamespace(), "%s %s", obj.GetKind(), obj.GetName())
				}
			}
			all.apply(t)
			deployments := of[appsv1.Deployment](t, all, "Deployment")
			require.Len(t, deployments, 1)
			requireRestricted(t, deployments[0])
			requireKnown(t, manager(t, deployments[0]).Args)
			requireRules(t, all, "nstance-operator")
			for _, hook := range of[admissionv1.ValidatingWebhookConfiguration](t, all, "ValidatingWebhookConfiguration")[0].Webhooks {
				require.Equal(t, args.namespace, hook.ClientConfig.Service.Namespace)
				require.Equal(t, of[corev1.Service](t, all, "Service")[0].Name, hook.ClientConfig.Service.Name)
			}
			start(t, deployments[0], "--own-namespace", args.namespace).requireWorks(t, args.namespace, "nstance-operator")
		})
	}
}

// A release is what clusterctl installs from.
type release struct{ tag, components string }

// installable writes a release as a repository of clusterctl.
func installable(t *testing.T, components string) release {
	t.Helper()
	_, after, found := strings.Cut(components, "image: ghcr.io/nstance-go/nstance-operator:")
	require.True(t, found)
	tag, _, _ := strings.Cut(after, "\n")
	dir := filepath.Join(t.TempDir(), "infrastructure-nstance", tag)
	require.NoError(t, os.MkdirAll(dir, 0o700))
	r := release{tag: tag, components: filepath.Join(dir, "infrastructure-components.yaml")}
	require.NoError(t, os.WriteFile(r.components, []byte(components), 0o600))
	metadata, err := os.ReadFile(root + "/kubernetes/config/metadata.yaml")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "metadata.yaml"), metadata, 0o600))
	return r
}
