//go:build kube

package operator_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/yaml"

	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/internal/test/parallel"
	"github.com/nstance-go/nstance/internal/test/shardtest"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/kubetest"
	"github.com/nstance-go/nstance/kubernetes/operator"
	"github.com/nstance-go/nstance/kubernetes/webhooks"
)

// eventually is the deadline of conditions that normally hold within a second.
const eventually = 3 * time.Minute

// poll is how often conditions are looked at: the API server has many tests to answer.
const poll = 100 * time.Millisecond

// servers is the cluster that the tests of the package share.
var servers *kubetest.Cluster

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	parallel.Permit(4) // they wait for servers
	stop := func() {}
	code := kubetest.Main(m, kubetest.Options{}, func(c *kubetest.Cluster) {
		servers = c
		var err error
		// Without the limit by which it looks at an object once in a while only.
		if stop, err = manage(c, "--feature-gates=ReconcilerRateLimiting=false,ClusterTopology=true"); err != nil {
			panic(err)
		}
	})
	stop()
	stopWorkloads()
	os.Exit(code)
}

// manage makes a cluster one that Cluster API and the operator can work in, with the
// webhooks of both.
func manage(c *kubetest.Cluster, flags ...string) (stop func(), err error) {
	for _, do := range []func() error{
		func() error { return c.StartClusterAPI(flags...) },
		func() error { return c.InstallCRDs("../config/crd") },
		c.InstallStandIns,
		func() error { return permit(c) },
	} {
		if err := do(); err != nil {
			return nil, err
		}
	}
	return serveWebhooks(c)
}

// serveWebhooks has the operator's webhooks answer until they are stopped.
func serveWebhooks(c *kubetest.Cluster) (stop func(), err error) {
	hooks, err := c.PrepareWebhooks("../config/webhook/manifests.yaml")
	if err != nil {
		return nil, err
	}
	s := runtime.NewScheme()
	if err := infrav1.AddToScheme(s); err != nil {
		return nil, err
	}
	answers := webhook.NewServer(webhook.Options{Host: hooks.LocalServingHost, Port: hooks.LocalServingPort, CertDir: hooks.LocalServingCertDir})
	mgr, err := ctrl.NewManager(c.Config, ctrl.Options{Scheme: s, Metrics: server.Options{BindAddress: "0"}, WebhookServer: answers})
	if err != nil {
		return nil, err
	}
	if err := webhooks.Add(mgr); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := mgr.Start(ctx); err != nil {
			panic(err)
		}
	})
	stop = func() {
		cancel()
		running.Wait()
	}
	return stop, errors.Join(hooks.Install(c.Config), untilRefused(c))
}

// untilRefused waits until the operator's webhooks are asked.
func untilRefused(c *kubetest.Cluster) error {
	api, err := client.New(c.Config, client.Options{})
	if err != nil {
		return err
	}
	wrong := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"group": "web", "shard": "a--b", "size": int64(1)}}}
	wrong.SetGroupVersionKind(infrav1.GroupVersion.WithKind("NstanceShardGroup"))
	wrong.SetNamespace(metav1.NamespaceDefault)
	wrong.SetName("wrong")
	ctx, cancel := context.WithTimeout(context.Background(), eventually)
	defer cancel()
	for {
		if err = api.Create(ctx, wrong.DeepCopy(), client.DryRunAll); apierrors.IsInvalid(err) {
			return nil
		}
		if !sleep.For(ctx, 20*time.Millisecond) {
			return fmt.Errorf("the operator's webhooks do not answer: %w", err)
		}
	}
}

func scheme(t testing.TB) *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, clusterv1.AddToScheme, infrav1.AddToScheme} {
		require.NoError(t, add(s))
	}
	return s
}

// user is who the operator is in the tests: it may do what the generated role says,
// and no more.
const user = "nstance-operator"

// permit gives the user the generated roles, that on Secrets in every namespace.
func permit(c *kubetest.Cluster) error {
	for _, path := range []string{"../config/rbac/role.yaml", "../config/secrets/role.yaml"} {
		if err := permitRole(c, path); err != nil {
			return err
		}
	}
	return nil
}

func permitRole(c *kubetest.Cluster, path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var role rbacv1.ClusterRole
	if err := yaml.UnmarshalStrict(data, &role); err != nil {
		return err
	}
	ctx, roles := context.Background(), c.Client.RbacV1()
	if _, err := roles.ClusterRoles().Create(ctx, &role, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err = roles.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}, metav1.CreateOptions{})
	return err
}

// A world is a namespace with an operator of its own, and shards.
type world struct {
	testing.TB
	client.Client
	namespace  string
	management *kubetest.Cluster // where the operator works
	workload   *kubetest.Cluster // whose nodes the machines are
	nodes      client.Client     // of workload
	shards     *shardtest.Cluster
	stop       func()               // the operator
	newClient  client.NewClientFunc // of the operator; nil: as usual
	options    *operator.Options    // of the operator; nil: the defaults

	wrap func(http.RoundTripper) http.RoundTripper // of the operator's requests; nil: none
}

func newWorld(t testing.TB) *world {
	t.Helper()
	return newWorldIn(t, servers)
}

func newWorldIn(t testing.TB, c *kubetest.Cluster) *world {
	t.Helper()
	w := &world{TB: t, namespace: c.Namespace(t), management: c, workload: c, shards: shardtest.New(t)}
	var err error
	w.Client, err = client.New(c.Config, client.Options{Scheme: scheme(t)})
	require.NoError(t, err)
	w.nodes = w.Client
	return w
}

// start runs the operator until the test ends.
func (w *world) start() {
	w.Helper()
	own := rest.CopyConfig(w.management.Config)
	own.Impersonate.UserName = user
	if w.wrap != nil {
		own.Wrap(w.wrap)
	}
	mgr, err := ctrl.NewManager(own, ctrl.Options{
		Scheme: scheme(w.TB), Metrics: server.Options{BindAddress: "0"}, Cache: onlyNamespace(w.namespace),
		Controller: config.Controller{SkipNameValidation: ptr.To(true)}, NewClient: w.newClient,
	})
	require.NoError(w, err)
	require.NoError(w, operator.Add(mgr, w.options))
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		if err := mgr.Start(ctx); err != nil {
			w.Errorf("the manager ended: %v", err)
		}
	})
	w.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	w.Cleanup(w.stop)
}

// restart replaces the operator by one that knows nothing.
func (w *world) restart() {
	w.Helper()
	w.stop()
	w.start()
}

// nonce makes the Secret that a cluster registers with.
func (w *world) nonce(nonce string) { w.nonceIn("nstance", nonce) }

func (w *world) nonceIn(secret, nonce string) {
	w.Helper()
	require.NoError(w, w.Create(w.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: secret},
		Data:       map[string][]byte{"nonce": []byte(nonce), "ca.crt": w.shards.Keys().Identity.CertPEM()},
	}))
}

// cluster makes a Cluster whose infrastructure is these shards.
func (w *world) cluster(shards ...*shardtest.Shard) *infrav1.NstanceCluster {
	w.Helper()
	var at []infrav1.Shard
	for _, s := range shards {
		at = append(at, infrav1.Shard{Name: string(s.Name()), Address: s.Operator(), RegistrationAddress: s.Registration()})
	}
	return w.clusterAt(at...)
}

func (w *world) clusterAt(shards ...infrav1.Shard) *infrav1.NstanceCluster {
	w.Helper()
	nc := &infrav1.NstanceCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c"},
		Spec: infrav1.NstanceClusterSpec{
			ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "127.0.0.1", Port: 6443}, Shards: shards,
			Registration: infrav1.RegistrationReference{SecretName: "nstance"},
		},
	}
	require.NoError(w, w.Create(w.Context(), nc))
	require.NoError(w, w.Create(w.Context(), kubetest.NewControlPlane(w.namespace, "c")))
	require.NoError(w, w.Create(w.Context(), &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c"},
		Spec: clusterv1.ClusterSpec{
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: "NstanceCluster", Name: "c"},
			ControlPlaneRef:   clusterv1.ContractVersionedObjectReference{APIGroup: kubetest.ControlPlane.Group, Kind: kubetest.ControlPlane.Kind, Name: "c"},
		},
	}))
	return nc
}

// until waits until an object, read again and again, is as wanted.
func until[T client.Object](w *world, obj T, wanted func(T) bool, what string) {
	w.Helper()
	require.Eventually(w, func() bool {
		return w.Get(w.Context(), client.ObjectKeyFromObject(obj), obj) == nil && wanted(obj)
	}, eventually, poll, "%s: %s", what, lazy(func() string { return fmt.Sprintf("%+v", obj) }))
}

// lazy is formatted when a test has failed.
type lazy func() string

func (l lazy) String() string { return l() }

func mustYAML(obj any) string {
	data, err := yaml.Marshal(obj)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// slowPod makes a pod that stays on its node until it is deleted: a drain waits for it.
func (w *world) slowPod(node string) *corev1.Pod {
	w.Helper()
	return w.podOn(node, "slow", nil)
}

func (w *world) podOn(node, name string, labels map[string]string) *corev1.Pod {
	w.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name, Labels: labels},
		Spec: corev1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: ptr.To[int64](30), Containers: []corev1.Container{{Name: "c", Image: "none"}},
		},
	}
	require.NoError(w, w.Create(w.Context(), p))
	return p
}
