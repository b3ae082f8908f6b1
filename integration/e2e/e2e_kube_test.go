//go:build kube

package e2e_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/integration/realserver"
	"github.com/nstance-go/nstance/internal/sleep"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/kubetest"
	"github.com/nstance-go/nstance/provider/local"
)

// eventually is the deadline of conditions that normally hold within seconds.
const eventually = 3 * time.Minute

// clusterID of the servers.
const clusterID = "e2e"

// userData boots the agent of a machine.
const userData = `{
	"env": {
		"NSTANCE_INSTANCE_ID": "{{.Instance.ID}}", "NSTANCE_SPOT_POLL_INTERVAL": "POLL",
		"NSTANCE_SERVER_REGISTRATION_ADDR": "{{.Server.RegistrationAddr}}", "NSTANCE_SERVER_AGENT_ADDR": "{{.Server.AgentAddr}}"
	},
	"files": {"identity/nonce.jwt": {{json .Nonce}}, "identity/ca.crt": {{json .Cluster.CACert}}}
}`

// A zone is a shard: its server, and the cloud that its machines are in.
type zone struct {
	name                   string
	operator, registration string // addresses
	cloud                  *local.Cloud
	server                 *process
}

// A world is everything that runs.
type world struct {
	testing.TB
	client.Client
	options
	namespace string
	storage   string // URL
	zones     []*zone
	operator  *process
}

// options say what a world has.
type options struct {
	zones   []string       // names
	groups  map[string]any // of each shard's configuration
	network string         // folder; empty: kwok runs pods
	poll    string         // interval of the agents; empty: a second
}

func newWorld(t testing.TB, o options) *world {
	t.Helper()
	w := &world{TB: t, options: o, namespace: servers.Namespace(t)}
	t.Cleanup(w.show)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, clusterv1.AddToScheme, infrav1.AddToScheme} {
		require.NoError(t, add(scheme))
	}
	var err error
	w.Client, err = client.New(servers.Config, client.Options{Scheme: scheme})
	require.NoError(t, err)

	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	t.Setenv("NSTANCE_SECRET_KEY", base64.StdEncoding.EncodeToString(key))
	s3 := realserver.NewS3(t)
	w.storage = realserver.URL(s3.Bucket(t), s3.Endpoint) + "&region=us-east-1"
	w.admin("cluster", "init", "--storage", w.storage, "--cluster", clusterID, "--shard", strings.Join(o.zones, ","))
	for i, name := range o.zones {
		w.zones = append(w.zones, w.newZone(name, firstPort+i*portsPerZone))
	}
	w.register()
	w.install()
	return w
}

// Ports of servers are below those that systems give out by themselves: they are the same
// after a restart.
const (
	firstPort    = 19_000
	portsPerZone = 10
)

func (w *world) admin(args ...string) {
	w.Helper()
	tool(w.TB, filepath.Join(os.Getenv(envPrograms), "nstance-admin"), args...)
}

// newZone starts a cloud, and a server over it.
func (w *world) newZone(name string, port int) *zone {
	w.Helper()
	self, err := os.Executable()
	require.NoError(w, err)
	log, err := os.Create(filepath.Join(w.TempDir(), "machines"))
	require.NoError(w, err)
	z := &zone{name: name}
	z.cloud, err = local.New(&local.Options{
		Command: []string{self}, Dir: w.TempDir(), Stderr: log,
		Env: []string{envKubeconfig + "=" + servers.Kubeconfig, envPrograms + "=" + os.Getenv(envPrograms), envNetwork + "=" + w.network},
	})
	require.NoError(w, err)
	socket := filepath.Join(w.TempDir(), "cloud")
	listener, err := local.Listen(w.Context(), socket)
	require.NoError(w, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.Context()))
	var serving sync.WaitGroup
	serving.Go(func() { _ = local.Serve(ctx, listener, z.cloud) }) // until ctx ends
	w.Cleanup(func() {
		cancel()
		serving.Wait()
		require.NoError(w, z.cloud.Close())
		if data, err := os.ReadFile(log.Name()); w.Failed() && err == nil {
			w.Logf("machines of %s:\n%s", name, data[max(0, len(data)-5000):])
		}
		_ = log.Close()
	})
	address := func(n int) string { return "127.0.0.1:" + strconv.Itoa(port+n) }
	z.operator, z.registration = address(0), address(1)
	type object = map[string]any
	shard := object{
		"cluster": object{"id": clusterID},
		"shard": object{
			"id": name, "provider": object{"kind": "local", "options": object{"endpoint": socket}},
			"bind":     object{"operator": z.operator, "registration": z.registration, "agent": address(2), "http": address(3), "peer": address(4)},
			"election": object{"ttl": "4s"}, "health_interval": "2s", "create_rate": object{"per_second": 1000, "burst": 1000},
		},
		"templates": object{"node": object{
			"kind": "nde", "arch": "amd64", "userdata": object{"content": strings.Replace(userData, "POLL", cmp.Or(w.poll, "1s"), 1)}, "registration_timeout": "2m", "launch_timeout": "3m",
		}},
	}
	if len(w.groups) > 0 {
		shard["groups"] = object{string(nstance.DefaultTenant): w.groups}
	}
	config, err := json.Marshal(shard)
	require.NoError(w, err)
	path := filepath.Join(w.TempDir(), "shard.jsonc")
	require.NoError(w, os.WriteFile(path, config, 0o600))
	z.server = newProcess(w.TB, "nstance-server", "run", "--config", path, "--storage", w.storage, "--data", w.TempDir(), "--print-events")
	return z
}

// register makes the Secrets that the operator needs.
func (w *world) register() {
	w.Helper()
	dir := w.TempDir()
	nonce, ca := filepath.Join(dir, "nonce"), filepath.Join(dir, "ca.crt")
	w.admin("cluster", "nonce", "--storage", w.storage, "--cluster", clusterID, "--output", nonce, "--ca-output", ca)
	secrets := map[string]map[string]string{"nstance": {"nonce": nonce, "ca.crt": ca}, "c-kubeconfig": {"value": servers.Kubeconfig}}
	for name, files := range secrets {
		s := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name, Labels: map[string]string{clusterv1.ClusterNameLabel: "c"}},
			Data:       map[string][]byte{},
		}
		for key, path := range files {
			data, err := os.ReadFile(path)
			require.NoError(w, err)
			s.Data[key] = data
		}
		if name == "c-kubeconfig" {
			s.Type = clusterv1.ClusterSecretType
		}
		require.NoError(w, w.Create(w.Context(), s))
	}
}

// install applies the chart, and runs the operator with the rights of its ServiceAccount.
func (w *world) install() {
	w.Helper()
	bin := filepath.Join(os.Getenv(kubetest.Assets), "..")
	text := tool(w.TB, filepath.Join(bin, "helm"), "template", "nstance-operator", root+"/kubernetes/charts/nstance-operator", "--namespace", w.namespace,
		"--set", "webhooks.enabled=false", "--set", "crds.install=false", "--set", "replicas=1", "--kube-version", "v1.36.3")
	apply := exec.CommandContext(w.Context(), filepath.Join(os.Getenv(kubetest.Assets), "kubectl"), "--kubeconfig", servers.Kubeconfig, "apply", "--server-side", "-f", "-")
	apply.Stdin = strings.NewReader(text)
	out, err := apply.CombinedOutput()
	require.NoError(w, err, string(out))
	// Its pod would only be shown as running: the program is this one.
	require.NoError(w, w.Delete(w.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "nstance-operator"}}))

	c, err := clientcmd.LoadFromFile(servers.Kubeconfig)
	require.NoError(w, err)
	for _, user := range c.AuthInfos {
		user.Impersonate = fmt.Sprintf("system:serviceaccount:%s:nstance-operator", w.namespace)
	}
	config := filepath.Join(w.TempDir(), "kubeconfig")
	require.NoError(w, clientcmd.WriteToFile(*c, config))
	w.operator = newProcess(w.TB, "nstance-operator", "--kubeconfig", config, "--own-namespace", w.namespace, "--lease-duration", "4s",
		"--webhook-port", "0", "--metrics-bind-address", "0", "--health-addr", "127.0.0.1:"+strconv.Itoa(firstPort+90))
}

// cluster makes a Cluster over the zones.
func (w *world) cluster() {
	w.Helper()
	nc := &infrav1.NstanceCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c"},
		Spec: infrav1.NstanceClusterSpec{
			ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "127.0.0.1", Port: 6443}, Registration: infrav1.RegistrationReference{SecretName: "nstance"},
		},
	}
	for _, z := range w.zones {
		nc.Spec.Shards = append(nc.Spec.Shards, infrav1.Shard{Name: z.name, Address: z.operator, RegistrationAddress: z.registration})
	}
	for _, obj := range []client.Object{nc, kubetest.NewControlPlane(w.namespace, "c"), &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c"},
		Spec: clusterv1.ClusterSpec{
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: "NstanceCluster", Name: "c"},
			ControlPlaneRef:   clusterv1.ContractVersionedObjectReference{APIGroup: kubetest.ControlPlane.Group, Kind: kubetest.ControlPlane.Kind, Name: "c"},
		},
	}} {
		require.NoError(w, w.Create(w.Context(), obj))
	}
	w.until("shards and nodes are reached", func() bool {
		return w.Get(w.Context(), client.ObjectKeyFromObject(nc), nc) == nil &&
			meta.IsStatusConditionTrue(nc.Status.Conditions, infrav1.ConditionShardsConnected) && meta.IsStatusConditionTrue(nc.Status.Conditions, infrav1.ConditionNodesReached)
	})
}

// spotNodes is a pool of spot machines whose group is in no configuration.
func spotNodes() infrav1.NstanceMachinePoolSpec {
	return infrav1.NstanceMachinePoolSpec{
		Template: "node", DrainTimeout: &metav1.Duration{Duration: noticePeriod}, Shape: infrav1.Shape{Spot: &infrav1.SpotOptions{}},
	}
}

// pool makes a MachinePool.
func (w *world) pool(name string, replicas int32, spec infrav1.NstanceMachinePoolSpec) *clusterv1.MachinePool {
	w.Helper()
	labels := map[string]string{clusterv1.ClusterNameLabel: "c"}
	require.NoError(w, w.Create(w.Context(), &infrav1.NstanceMachinePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name, Labels: labels}, Spec: spec,
	}))
	mp := &clusterv1.MachinePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name, Labels: labels},
		Spec: clusterv1.MachinePoolSpec{ClusterName: "c", Replicas: &replicas, Template: clusterv1.MachineTemplateSpec{Spec: clusterv1.MachineSpec{
			ClusterName: "c", Bootstrap: clusterv1.Bootstrap{DataSecretName: ptr.To("")},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: "NstanceMachinePool", Name: name},
		}}},
	}
	require.NoError(w, w.Create(w.Context(), mp))
	return mp
}

func (w *world) scale(mp *clusterv1.MachinePool, replicas int32) {
	w.Helper()
	base := mp.DeepCopy()
	mp.Spec.Replicas = &replicas
	require.NoError(w, w.Patch(w.Context(), mp, client.MergeFrom(base)))
}

// until waits for a condition.
func (w *world) until(what string, holds func() bool) {
	w.Helper()
	require.Eventually(w, holds, eventually, 100*time.Millisecond, what)
}

// show logs what there is when the test has failed.
func (w *world) show() {
	if !w.Failed() {
		return
	}
	kubectl := exec.Command(filepath.Join(os.Getenv(kubetest.Assets), "kubectl"), "--kubeconfig", servers.Kubeconfig, "--namespace", w.namespace,
		"get", "nodes,machines,pods,poddisruptionbudgets,events", "--output", "wide")
	out, err := kubectl.CombinedOutput()
	w.Logf("%s%v", regexp.MustCompile(" {2,}").ReplaceAll(out, []byte("  ")), err) // a few pages, of which logs may be all that is kept
}

// machines returns the Machines, and whether all of them have a node and stay.
func (w *world) machines() (names []string, settled bool) {
	w.Helper()
	var list clusterv1.MachineList
	require.NoError(w, w.List(w.Context(), &list, client.InNamespace(w.namespace)))
	settled = true
	for _, m := range list.Items {
		names = append(names, m.Name)
		settled = settled && m.Status.NodeRef.Name != "" && m.DeletionTimestamp.IsZero()
	}
	return names, settled
}

// nodes returns the names of the machines' nodes.
func (w *world) nodes() (names []string) {
	w.Helper()
	var list corev1.NodeList
	require.NoError(w, w.List(w.Context(), &list, client.HasLabels{"e2e"}))
	for _, n := range list.Items {
		names = append(names, n.Name)
	}
	return names
}

// whole waits until there are so many Machines, each with its node, and no other nodes.
func (w *world) whole(n int) (machines []string) {
	w.Helper()
	w.until(fmt.Sprintf("%d machines", n), func() bool {
		var settled bool
		machines, settled = w.machines()
		nodes := w.nodes()
		slices.Sort(machines)
		slices.Sort(nodes)
		return settled && len(machines) == n && slices.Equal(machines, nodes)
	})
	return machines
}

// sizes returns what the pool asks of its shards.
func (w *world) sizes() map[string]int32 {
	w.Helper()
	var list infrav1.NstanceShardGroupList
	require.NoError(w, w.List(w.Context(), &list, client.InNamespace(w.namespace)))
	out := map[string]int32{}
	for _, g := range list.Items {
		out[g.Spec.Shard] = *g.Spec.Size
	}
	return out
}

// deploy runs a Deployment with a disruption budget on the nodes.
func (w *world) deploy(replicas int32, unavailable int) {
	w.deployPatient(replicas, unavailable, time.Second)
}

// deployPatient runs one whose pods use their whole grace period, if that is longer than a
// second.
func (w *world) deployPatient(replicas int32, unavailable int, grace time.Duration) {
	w.Helper()
	pods := map[string]string{"app": "web"}
	if grace > time.Second {
		pods["test.nstance.dev/stop"] = "slow"
	}
	labels := map[string]string{"app": "web"}
	most := intstr.FromInt(unavailable)
	require.NoError(w, w.Create(w.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &most, Selector: &metav1.LabelSelector{MatchLabels: labels}},
	}))
	require.NoError(w, w.Create(w.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pods}, Spec: corev1.PodSpec{
				NodeSelector: map[string]string{"e2e": "true"}, TerminationGracePeriodSeconds: ptr.To(int64(grace / time.Second)),
				Containers: []corev1.Container{{Name: "c", Image: "none"}},
			}},
		},
	}))
	w.until("pods are ready", func() bool { return w.readyPods(w.Context()) == int(replicas) })
}

// readyPods returns how many pods are ready; -1: it is not known.
func (w *world) readyPods(ctx context.Context) (ready int) {
	var list corev1.PodList
	if w.List(ctx, &list, client.InNamespace(w.namespace), client.MatchingLabels{"app": "web"}) != nil {
		return -1
	}
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}) {
			ready++
		}
	}
	return ready
}

// fewest watches how many pods are ready until the function it returns is called.
func (w *world) fewest() func() int {
	ctx, cancel := context.WithCancel(w.Context())
	least := atomic.Int64{}
	least.Store(1 << 30)
	var watching sync.WaitGroup
	watching.Go(func() {
		for sleep.For(ctx, 50*time.Millisecond) {
			if n := w.readyPods(ctx); n >= 0 {
				least.Store(min(least.Load(), int64(n)))
			}
		}
	})
	return func() int {
		cancel()
		watching.Wait()
		return int(least.Load())
	}
}

// events returns what the servers have printed about an instance.
func (w *world) events(id string) (types []nstance.EventType) {
	w.Helper()
	for _, z := range w.zones {
		for line := range strings.Lines(z.server.printed("stdout")) {
			var e nstance.Event
			if json.Unmarshal([]byte(line), &e) == nil && string(e.Instance) == id {
				types = append(types, e.Type)
			}
		}
	}
	return types
}

// How long the clouds give. An eviction that the API server has granted, and not carried out
// when its client was killed or had waited too long, counts against the disruption budget for
// two minutes: where budgets must hold there is more.
const (
	noticePeriod = 4 * time.Minute
	shortNotice  = 30 * time.Second // Google Cloud's and Azure's
)

// interrupt has the clouds take machines back.
func (w *world) interrupt(machines []string, notice time.Duration) {
	w.Helper()
	for _, name := range machines {
		var err error
		for _, z := range w.zones {
			if err = z.cloud.Interrupt(nstance.InstanceID(name), "terminate", notice); err == nil {
				break
			}
		}
		require.NoError(w, err)
	}
}

// TestEndToEnd scales a pool over two shards, and has three of its machines taken back at
// once while a Deployment with a disruption budget runs: with everything alive, and with one
// server and the operator killed in the middle of it. The end is the same: the budget was
// never passed, every node was drained before its deadline, the pool is whole. With notices
// and grace periods of 30 seconds the budget has half of the time.
func TestEndToEnd(t *testing.T) {
	w := newWorld(t, options{zones: []string{"a", "b"}})
	w.cluster()
	mp := w.pool("pool", 5, spotNodes())
	w.whole(5)
	require.Equal(t, map[string]int32{"a": 3, "b": 2}, w.sizes())
	w.scale(mp, 9)
	w.whole(9)
	require.Equal(t, map[string]int32{"a": 5, "b": 4}, w.sizes())
	w.scale(mp, 5)
	w.whole(5)
	require.Equal(t, map[string]int32{"a": 3, "b": 2}, w.sizes())

	const replicas, unavailable = 10, 2
	w.deploy(replicas, unavailable)
	w.reclaim(replicas-unavailable, noticePeriod, func() {})
	w.reclaim(replicas-unavailable, noticePeriod, func() {
		w.operator.end(syscall.SIGKILL)
		w.zones[0].server.end(syscall.SIGKILL)
		w.operator.start()
		w.zones[0].server.start()
	})
	w.undeploy()
	w.deployPatient(replicas, unavailable, shortNotice)
	w.reclaimShortly(replicas - unavailable)
	w.undeploy()
	require.NoError(t, w.Delete(t.Context(), mp))
	w.whole(0)
}

// undeploy removes the Deployment and its budget.
func (w *world) undeploy() {
	w.Helper()
	web := metav1.ObjectMeta{Namespace: w.namespace, Name: "web"}
	require.NoError(w, w.Delete(w.Context(), &appsv1.Deployment{ObjectMeta: web}))
	require.NoError(w, w.Delete(w.Context(), &policyv1.PodDisruptionBudget{ObjectMeta: web}))
	require.NoError(w, w.DeleteAllOf(w.Context(), &corev1.Pod{}, client.InNamespace(w.namespace), client.MatchingLabels{"app": "web"}, client.GracePeriodSeconds(0)))
	w.until("its pods are gone", func() bool { return w.readyPods(w.Context()) == 0 })
}

// reclaimShortly has three machines taken back with a short notice, whose pods would need all
// of it to end. The budget is not passed for a third of the time at least, and every pod is
// asked to end before its machine does.
func (w *world) reclaimShortly(budget int) {
	w.Helper()
	doomed := w.whole(5)[:3]
	var pods corev1.PodList
	require.NoError(w, w.List(w.Context(), &pods, client.InNamespace(w.namespace), client.MatchingLabels{"app": "web"}))
	pods.Items = slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return !slices.Contains(doomed, p.Spec.NodeName) })
	require.NotEmpty(w, pods.Items)
	asked := map[types.UID]bool{}
	began, below := time.Now(), time.Duration(0)
	w.interrupt(doomed, shortNotice)
	require.Eventually(w, func() bool {
		if n := w.readyPods(w.Context()); n >= 0 && n < budget && below == 0 {
			below = time.Since(began)
		}
		for i := range pods.Items {
			var p corev1.Pod
			err := w.Get(w.Context(), client.ObjectKeyFromObject(&pods.Items[i]), &p)
			if err == nil && p.UID == pods.Items[i].UID && p.DeletionTimestamp != nil && *p.DeletionGracePeriodSeconds > 0 {
				asked[p.UID] = true
			}
		}
		now, _ := w.machines()
		return !slices.ContainsFunc(doomed, func(id string) bool { return slices.Contains(now, id) })
	}, 3*shortNotice, 100*time.Millisecond, "the machines are replaced")
	w.Logf("with %s the budget was passed after %s (0: never)", shortNotice, below.Round(time.Millisecond))
	require.True(w, below == 0 || below > shortNotice/3, "passed after %s", below)
	require.Len(w, asked, len(pods.Items), "pods with a SIGTERM before the end of their machines")
	w.whole(5)
}

// reclaim has three machines taken back, does something once the first of them is being
// drained, and waits until the pool is whole.
func (w *world) reclaim(budget int, notice time.Duration, middle func()) {
	w.Helper()
	before := w.whole(5)
	doomed := before[:3]
	least := w.fewest()
	began := time.Now()
	w.interrupt(doomed, notice)
	w.until("a node is cordoned", func() bool {
		var node corev1.Node
		return w.Get(w.Context(), client.ObjectKey{Name: doomed[0]}, &node) != nil || node.Spec.Unschedulable
	})
	middle()
	var now []string
	require.Eventually(w, func() bool {
		now, _ = w.machines()
		return !slices.ContainsFunc(doomed, func(id string) bool { return slices.Contains(now, id) })
	}, notice*3/4, 100*time.Millisecond, "the machines are replaced before disruption budgets are passed")
	w.Logf("replaced %s after the notices", time.Since(began).Round(time.Millisecond))
	w.whole(5)
	require.GreaterOrEqual(w, least(), budget, "ready pods")
	for _, id := range doomed {
		types := w.events(id)
		require.Contains(w, types, nstance.EventDrainAcknowledged, "%s: %v", id, types)
		require.NotContains(w, types, nstance.EventDrainCutShort, "%s: %v", id, types)
	}
}
