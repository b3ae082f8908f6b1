//go:build kube

package program

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance/internal/test/freeport"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/kubetest"
)

const (
	eventually = 3 * time.Minute // the deadline of conditions that normally hold within seconds
	interval   = 20 * time.Millisecond

	// asProgram in the environment makes this program nstance-operator.
	asProgram = "NSTANCE_TEST_AS_OPERATOR"

	// user is who the program is in the tests: it may do what the generated roles say,
	// and no more.
	user = "system:serviceaccount:nstance-system:nstance-operator"

	system = "nstance-system"
)

var (
	servers *kubetest.Cluster
	api     client.Client
)

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		code := Main(ctx, os.Args[1:], os.Stdout, os.Stderr)
		stop()
		os.Exit(code)
	}
	ctrl.SetLogger(logr.Discard())
	os.Exit(kubetest.Main(m, kubetest.Options{}, func(c *kubetest.Cluster) {
		servers = c
		if err := prepare(); err != nil {
			panic(err)
		}
	}))
}

func prepare() error {
	if err := servers.InstallCRDs("../../../../kubernetes/config/crd", filepath.Join(os.Getenv(kubetest.Assets), "crds")); err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clusterv1.AddToScheme, infrav1.AddToScheme, admissionv1.AddToScheme, corev1.AddToScheme, rbacv1.AddToScheme, coordinationv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	var err error
	if api, err = client.New(servers.Config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	if err := api.Create(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: system}}); err != nil {
		return err
	}
	for _, path := range []string{"../../../../kubernetes/config/rbac/role.yaml", "../../../../kubernetes/config/secrets/role.yaml", "../../../../kubernetes/config/manager/role.yaml"} {
		if err := permit(path); err != nil {
			return err
		}
	}
	return nil
}

// permit creates the roles of a file, and gives them to the user.
func permit(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}}
	for docs := yaml.NewYAMLOrJSONDecoder(file, 4096); ; {
		var role rbacv1.ClusterRole // a Role has the same fields
		err := docs.Decode(&role)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for i, rule := range role.Rules {
			if slices.Contains(rule.ResourceNames, "nstance-operator-webhook") { // NAME-webhook, of the names that tests give
				role.Rules[i].ResourceNames = []string{"rotation-webhook", "dashboard-webhook", "own-webhook"}
			}
		}
		ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: role.Kind, Name: role.Name}
		objects := []client.Object{&role, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: role.Name}, RoleRef: ref, Subjects: subjects}}
		if role.Kind == "Role" {
			meta := metav1.ObjectMeta{Namespace: role.Namespace, Name: role.Name}
			objects = []client.Object{&rbacv1.Role{ObjectMeta: meta, Rules: role.Rules}, &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: subjects}}
		}
		for _, obj := range objects {
			if err := api.Create(context.Background(), obj); err != nil {
				return err
			}
		}
	}
}

// A replica is the program in a process of its own.
type replica struct {
	*testing.T
	cmd             *exec.Cmd
	log             buffer
	health, metrics string
	ended           chan struct{}
	webhook         string
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

// configFile returns a kubeconfig with which the program is the user. Empty server: the
// API server itself.
func configFile(t *testing.T, server string) string {
	c, err := clientcmd.LoadFromFile(servers.Kubeconfig)
	require.NoError(t, err)
	if server != "" {
		c.Clusters["test"].Server = server
	}
	c.AuthInfos["test"].Impersonate = user
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(*c, path))
	return path
}

// start starts a replica, which is killed when the test ends.
func start(t *testing.T, args ...string) *replica {
	t.Helper()
	r := &replica{T: t, health: freeAddress(t), metrics: freeAddress(t), ended: make(chan struct{})}
	_, port, err := net.SplitHostPort(freeAddress(t))
	require.NoError(t, err)
	r.webhook = port
	self, err := os.Executable()
	require.NoError(t, err)
	r.cmd = exec.Command(self, append([]string{
		"--kubeconfig", configFile(t, ""), "--own-namespace", system, "--lease-duration", "3s",
		"--health-addr", r.health, "--metrics-bind-address", r.metrics, "--webhook-port", port,
	}, args...)...)
	r.cmd.Env = append(os.Environ(), asProgram+"=1")
	r.cmd.Stdout, r.cmd.Stderr = &r.log, &r.log
	require.NoError(t, r.cmd.Start())
	go func() {
		defer close(r.ended)
		_ = r.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		<-r.ended
		if t.Failed() {
			t.Log(r.log.String())
		}
	})
	return r
}

func (r *replica) get(path string) int {
	resp, err := http.Get("http://" + r.health + path)
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// requireAlive: the process that was started runs, and says that it is healthy.
func (r *replica) requireAlive() {
	r.Helper()
	select {
	case <-r.ended:
		require.Fail(r, "the process has ended")
	default:
	}
	require.Equal(r, http.StatusOK, r.get("/healthz"))
}

// identity returns the name of the replica in the Lease.
func (r *replica) identity() string {
	_, after, _ := strings.Cut(r.log.String(), "identity=")
	id, _, _ := strings.Cut(after, "\n")
	return id
}

// terms returns how many terms have begun and ended.
func (r *replica) terms() (begun, ended int) {
	text := r.log.String()
	return strings.Count(text, `"term starts"`), strings.Count(text, `"term ended"`)
}

func holder(t *testing.T, name string) string {
	var lease coordinationv1.Lease
	if api.Get(t.Context(), client.ObjectKey{Namespace: system, Name: name}, &lease) != nil || lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// leader waits until one of some replicas leads.
func leader(t *testing.T, name string, among ...*replica) *replica {
	t.Helper()
	var found *replica
	require.Eventually(t, func() bool {
		h := holder(t, name)
		for _, r := range among {
			if begun, ended := r.terms(); h != "" && h == r.identity() && begun == ended+1 {
				found = r
			}
		}
		return found != nil
	}, eventually, interval)
	return found
}

// requireReconciled: a new object is reconciled by the leader.
func requireReconciled(t *testing.T) {
	t.Helper()
	namespace := servers.Namespace(t)
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "c"}, Spec: clusterv1.ClusterSpec{
		InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: "NstanceCluster", Name: "c"},
	}}
	require.NoError(t, api.Create(t.Context(), cluster))
	nc := &infrav1.NstanceCluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "c", OwnerReferences: []metav1.OwnerReference{{
		APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: "c", UID: cluster.UID,
	}}}, Spec: infrav1.NstanceClusterSpec{
		Shards:       []infrav1.Shard{{Name: "a", Address: "127.0.0.1:1", RegistrationAddress: "127.0.0.1:1"}},
		Registration: infrav1.RegistrationReference{SecretName: "nstance"},
	}}
	require.NoError(t, api.Create(t.Context(), nc))
	require.Eventually(t, func() bool {
		return api.Get(t.Context(), client.ObjectKeyFromObject(nc), nc) == nil && len(nc.Finalizers) == 1
	}, eventually, interval)
}

// steal gives the Lease to another holder, for a time.
func steal(t *testing.T, name string, duration time.Duration) {
	t.Helper()
	thief, seconds, now := "thief", int32(duration/time.Second), metav1.NowMicro()
	require.Eventually(t, func() bool {
		var lease coordinationv1.Lease
		if api.Get(t.Context(), client.ObjectKey{Namespace: system, Name: name}, &lease) != nil {
			return false
		}
		lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds, lease.Spec.RenewTime = &thief, &seconds, &now
		return api.Update(t.Context(), &lease) == nil
	}, eventually, time.Millisecond)
}

// TestKubeLeadership: one of two replicas leads. A Lease that is taken or deleted ends
// the term and not the process, which campaigns again. A replica that is told to stop
// releases the Lease, and ends with 0.
func TestKubeLeadership(t *testing.T) {
	const name = "leadership"
	args := []string{"--name", name, "--webhook-port=0"}
	a, b := start(t, args...), start(t, args...)
	first := leader(t, name, a, b)
	standby := map[*replica]*replica{a: b, b: a}[first]
	requireReconciled(t)
	begun, _ := standby.terms()
	require.Zero(t, begun, "only the leader has controllers")
	require.Eventually(t, func() bool { return standby.get("/readyz") == http.StatusOK }, eventually, interval, "a standby is ready")

	_, ended := first.terms()
	steal(t, name, 4*time.Second)
	require.Eventually(t, func() bool { _, now := first.terms(); return now == ended+1 }, eventually, interval, "the term ends")
	require.Equal(t, "thief", holder(t, name), "within the other's time")
	first.requireAlive()
	leader(t, name, a, b)
	requireReconciled(t)

	require.NoError(t, api.Delete(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name}}))
	second := leader(t, name, a, b)
	a.requireAlive()
	b.requireAlive()
	requireReconciled(t)

	other := map[*replica]*replica{a: b, b: a}[second]
	require.NoError(t, second.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-second.ended:
	case <-time.After(time.Minute):
		require.Fail(t, "it does not end")
	}
	require.Zero(t, second.cmd.ProcessState.ExitCode())
	require.Same(t, other, leader(t, name, other))
	requireReconciled(t)

	// The same process leads again, after it has lost the Lease.
	begun, _ = other.terms()
	steal(t, name, 2*time.Second)
	require.Eventually(t, func() bool { now, _ := other.terms(); return now == begun+1 }, eventually, interval, "another term begins")
	leader(t, name, other)
	other.requireAlive()
	requireReconciled(t)
}

// TestKubeReleased: the next leader need not wait until the Lease expires.
func TestKubeReleased(t *testing.T) {
	name := "released-" + servers.Namespace(t)
	args := []string{"--name", name, "--webhook-port=0", "--lease-duration=60s"}
	first := start(t, args...)
	leader(t, name, first)
	require.NoError(t, first.cmd.Process.Signal(syscall.SIGTERM))
	<-first.ended
	require.Zero(t, first.cmd.ProcessState.ExitCode())
	require.Empty(t, holder(t, name))
	leader(t, name, start(t, args...))
}

// TestKubeTaken: a leader stops its controllers when it reads that another replica has the
// Lease, long before its own limit for renewals.
func TestKubeTaken(t *testing.T) {
	name := "taken-" + servers.Namespace(t)
	r := start(t, "--name", name, "--webhook-port=0", "--lease-duration=150s") // renewed every 20 s, for at most 100 s
	leader(t, name, r)
	steal(t, name, time.Hour)
	require.Eventually(t, func() bool { _, ended := r.terms(); return ended == 1 }, eventually, interval)
	r.requireAlive()
	require.Equal(t, "thief", holder(t, name))
}

// TestKubeNamespaces: a program for one namespace leaves the others alone.
func TestKubeNamespaces(t *testing.T) {
	r := start(t, "--name=namespaces", "--webhook-port=0", "--leader-elect=false", "--namespace", servers.Namespace(t))
	require.Eventually(t, func() bool { begun, _ := r.terms(); return begun == 1 }, eventually, interval)
	require.Empty(t, holder(t, "namespaces"), "it needs no Lease")
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGTERM))
	<-r.ended
	require.Zero(t, r.cmd.ProcessState.ExitCode())
}

// TestKubeMetrics: metrics are for clients that Kubernetes permits to read them.
func TestKubeMetrics(t *testing.T) {
	r := start(t, "--name=metrics", "--webhook-port=0")
	web := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	read := func(token string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+r.metrics+"/metrics", nil)
		require.NoError(t, err)
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := web.Do(req)
		if err != nil {
			return 0, ""
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(text)
	}
	leader(t, "metrics", r)
	requireReconciled(t)
	require.Eventually(t, func() bool { code, _ := read(servers.Config.BearerToken); return code == http.StatusOK }, eventually, interval)
	_, text := read(servers.Config.BearerToken)
	require.Contains(t, text, `controller_runtime_reconcile_total{controller="nstancecluster"`)
	require.Contains(t, text, `leader_election_master_status{name="metrics"} 1`)
	code, _ := read("")
	require.Equal(t, http.StatusUnauthorized, code)
	code, _ = read("guessed")
	require.Equal(t, http.StatusUnauthorized, code)

	namespace := servers.Namespace(t)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "reader"}}
	require.NoError(t, api.Create(t.Context(), account))
	token, err := servers.Client.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), "reader", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(t, err)
	code, text = read(token.Status.Token)
	require.Equal(t, http.StatusForbidden, code, text)
	may := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: namespace}, Rules: []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}}}
	require.NoError(t, api.Create(t.Context(), may))
	require.NoError(t, api.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: namespace}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: may.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "reader"}},
	}))
	require.Eventually(t, func() bool { code, _ := read(token.Status.Token); return code == http.StatusOK }, eventually, time.Second)
}

// TestKubeRole has what the program does not need refused. What it needs is shown by
// the other tests, which run under the same roles.
func TestKubeRole(t *testing.T) {
	for name, r := range map[string]authorizationv1.ResourceAttributes{
		"list nodes":                       {Verb: "list", Resource: "nodes"},
		"list secrets":                     {Verb: "list", Resource: "secrets"},
		"delete secrets":                   {Verb: "delete", Resource: "secrets"},
		"delete its own Lease":             {Verb: "delete", Group: "coordination.k8s.io", Resource: "leases", Namespace: system},
		"Leases of other namespaces":       {Verb: "update", Group: "coordination.k8s.io", Resource: "leases", Namespace: "kube-system"},
		"webhooks of others":               {Verb: "patch", Group: "admissionregistration.k8s.io", Resource: "validatingwebhookconfigurations", Name: "others"},
		"more webhooks":                    {Verb: "create", Group: "admissionregistration.k8s.io", Resource: "validatingwebhookconfigurations"},
		"mutating webhooks":                {Verb: "patch", Group: "admissionregistration.k8s.io", Resource: "mutatingwebhookconfigurations", Name: "nstance-operator"},
		"change clusters":                  {Verb: "patch", Group: "cluster.x-k8s.io", Resource: "clusters"},
		"change what it may":               {Verb: "update", Group: "rbac.authorization.k8s.io", Resource: "clusterroles"},
		"run commands in pods":             {Verb: "create", Resource: "pods", Subresource: "exec"},
		"tokens of other service accounts": {Verb: "create", Resource: "serviceaccounts", Subresource: "token"},
	} {
		t.Run(name, func(t *testing.T) {
			answer, err := servers.Client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
				Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &r},
			}, metav1.CreateOptions{})
			require.NoError(t, err)
			require.False(t, answer.Status.Allowed)
		})
	}
}

// configuration returns the generated configuration of the webhooks, under which the
// API server calls them at a port of this host.
func configuration(t *testing.T, name, port string) *admissionv1.ValidatingWebhookConfiguration {
	t.Helper()
	data, err := os.ReadFile("../../../../kubernetes/config/webhook/manifests.yaml")
	require.NoError(t, err)
	var c admissionv1.ValidatingWebhookConfiguration
	require.NoError(t, yaml.Unmarshal(data, &c))
	c.Name = name
	for i := range c.Webhooks {
		hook := &c.Webhooks[i]
		url := "https://127.0.0.1:" + port + *hook.ClientConfig.Service.Path
		hook.ClientConfig = admissionv1.WebhookClientConfig{URL: &url}
	}
	return &c
}

// TestKubeOwnCertificate: the program makes the certificate, and the API server trusts
// it.
func TestKubeOwnCertificate(t *testing.T) {
	r := start(t, "--name=own")
	c := configuration(t, "nstance-operator", r.webhook)
	require.NoError(t, api.Create(t.Context(), c))
	t.Cleanup(func() { require.NoError(t, api.Delete(context.Background(), c)) })
	require.Eventually(t, func() bool { return r.get("/readyz") == http.StatusOK }, eventually, interval)
	namespace := servers.Namespace(t)
	good := &infrav1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "good"}}
	require.Eventually(t, func() bool { return api.Create(t.Context(), good.DeepCopy(), client.DryRunAll) == nil }, eventually, interval)
	bad := good.DeepCopy()
	bad.Spec.Spot = &infrav1.SpotOptions{}
	err := api.Create(t.Context(), bad)
	require.True(t, apierrors.IsInvalid(err), "%v", err)
	require.ErrorContains(t, err, "spec.spot")

	// A configuration that is applied anew loses its authority, and gets it again.
	require.NoError(t, api.Get(t.Context(), client.ObjectKeyFromObject(c), c))
	for i := range c.Webhooks {
		require.NotEmpty(t, c.Webhooks[i].ClientConfig.CABundle)
		c.Webhooks[i].ClientConfig.CABundle = nil
	}
	require.NoError(t, api.Update(t.Context(), c))
	require.Eventually(t, func() bool { return apierrors.IsInvalid(api.Create(t.Context(), bad.DeepCopy())) }, eventually, interval)
}
