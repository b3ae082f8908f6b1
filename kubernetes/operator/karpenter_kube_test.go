//go:build kube

package operator_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/internal/test/freeport"
	"github.com/nstance-go/nstance/kubernetes/kubetest"
)

// Figures of the comparison.
const (
	besideSize   = 1000 // nodes, each with one pod
	besideLost   = 500  // of them, at once
	besideBudget = 125  // pods that may be unavailable
	besideNotice = 2 * time.Minute
)

// A neighbour makes nodes for pods, and loses some.
type neighbour struct {
	*world
	name     string
	space    string // of the pods
	selects  func(*corev1.PodSpec)
	grow     func() // has machines made; nil: its pods have
	lose     func(nodes []string)
	replaced func() int // nodes that were asked for since the loss
	pid      int
	metrics  string // URL
}

// BenchmarkKubeBesideKarpenter has Karpenter with its kwok provider, and nstance-operator over a
// shard, work on one API server. First the one and then the other brings up 1,000 nodes with a
// pod each, and loses 500 at once with two minutes each while a disruption budget permits 125 pods to
// be away. Karpenter has no notices without a cloud: its NodeClaims are deleted, with as much time.
func BenchmarkKubeBesideKarpenter(b *testing.B) {
	c, err := kubetest.Start(kubetest.Options{Controllers: true, Scheduler: true, Kubelets: true})
	require.NoError(b, err)
	b.Cleanup(c.Stop)
	stop, err := manage(c)
	require.NoError(b, err)
	b.Cleanup(stop)
	w := newWorldIn(b, c)
	theirs, own := karpenter(w), ours(w)
	theirs.measure(b)
	own.measure(b)
	require.Len(b, theirs.pods(), besideSize, "the nodes of the neighbour stay")
	b.ReportMetric(0, "ns/op") // one run is no operation
}

func (n *neighbour) measure(b *testing.B) {
	b.Helper()
	report := func(figure float64, unit string) { b.ReportMetric(figure, n.name+"-"+unit) }
	n.space = n.workload.Namespace(b)
	began := time.Now()
	if n.grow != nil {
		n.grow()
	}
	n.deploy()
	n.within(20*time.Minute, "pods are ready", func() bool { return len(n.pods()) == besideSize })
	report(time.Since(began).Seconds(), "s-up")
	report(memory(b, n.pid, "VmRSS"), "idle-MiB")
	n.budget()

	doomed := n.pods()[:besideLost]
	cordons, calls := n.watchCordons(), n.calls()
	stop := n.countBelow()
	began = time.Now()
	n.lose(doomed)
	var cordoned, asked time.Duration
	n.within(20*time.Minute, "the pods are elsewhere", func() bool {
		if last, all := cordons.last(doomed); all && cordoned == 0 {
			cordoned = last.Sub(began)
		}
		if asked == 0 && n.replaced() >= besideLost {
			asked = time.Since(began)
		}
		now := n.pods()
		return cordoned > 0 && asked > 0 && len(now) == besideSize && !slices.ContainsFunc(doomed, func(node string) bool { return slices.Contains(now, node) })
	})
	report(cordoned.Seconds(), "s-last-cordon")
	report(asked.Seconds(), "s-last-asked")
	report(time.Since(began).Seconds(), "s-whole")
	report(stop(), "pod-s-below")
	report(n.calls()-calls, "calls")
	report(memory(b, n.pid, "VmHWM"), "peak-MiB")
}

// deploy runs one pod on each node.
func (n *neighbour) deploy() {
	n.Helper()
	labels := map[string]string{"app": "web"}
	spec := corev1.PodSpec{
		TerminationGracePeriodSeconds: ptr.To[int64](1),
		Containers: []corev1.Container{{Name: "c", Image: "none", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("20")},
		}}},
	}
	n.selects(&spec)
	require.NoError(n, n.nodes.Create(n.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.space, Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](besideSize), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
		},
	}))
}

func (n *neighbour) budget() {
	n.Helper()
	require.NoError(n, n.nodes.Create(n.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.space, Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromInt32(besideBudget)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
	}))
	var b policyv1.PodDisruptionBudget
	n.within(time.Minute, "the budget is computed", func() bool {
		return n.nodes.Get(n.Context(), client.ObjectKey{Namespace: n.space, Name: "web"}, &b) == nil && b.Status.ObservedGeneration == b.Generation && b.Status.DisruptionsAllowed == besideBudget
	})
}

// pods returns the nodes of the ready pods.
func (n *neighbour) pods() (nodes []string) {
	var list corev1.PodList
	if n.nodes.List(n.Context(), &list, client.InNamespace(n.space)) != nil {
		return nil // a busy server may fail
	}
	for i := range list.Items {
		p := &list.Items[i]
		if p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue }) {
			nodes = append(nodes, p.Spec.NodeName)
		}
	}
	return nodes
}

// countBelow adds up pods below the budget times seconds, until stop is called.
func (n *neighbour) countBelow() (stop func() float64) {
	ctx, cancel := context.WithCancel(n.Context())
	var counting sync.WaitGroup
	sum := 0.0
	counting.Go(func() {
		for last := time.Now(); sleep.For(ctx, 100*time.Millisecond); {
			missing, now := besideSize-besideBudget-len(n.pods()), time.Now()
			sum += float64(max(missing, 0)) * now.Sub(last).Seconds()
			last = now
		}
	})
	return func() float64 {
		cancel()
		counting.Wait()
		return sum
	}
}

// calls returns how many requests to API servers the program has sent.
func (n *neighbour) calls() (sum float64) {
	n.Helper()
	r, err := http.NewRequestWithContext(n.Context(), http.MethodGet, n.metrics, nil)
	require.NoError(n, err)
	r.Header.Set("Authorization", "Bearer "+n.management.Config.BearerToken)
	web := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // a certificate of its own, on this machine
	defer web.CloseIdleConnections()
	resp, err := web.Do(r)
	require.NoError(n, err)
	defer resp.Body.Close()
	require.Equal(n, http.StatusOK, resp.StatusCode)
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if line := lines.Text(); strings.HasPrefix(line, "rest_client_requests_total{") || strings.HasPrefix(line, "client_go_request_total{") {
			v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
			require.NoError(n, err)
			sum += v
		}
	}
	return sum
}

// ours is a shard with nstance-operator.
func ours(w *world) *neighbour {
	a := w.shards.Start("a", 0)
	address := freePort(w.TB)
	n := &neighbour{world: w, name: "nstance", metrics: "https://" + address + "/metrics", selects: func(spec *corev1.PodSpec) {
		spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: nodesOfKarpenter, Operator: corev1.NodeSelectorOpDoesNotExist}}}},
		}}}
	}}
	_, err := w.management.Client.RbacV1().ClusterRoleBindings().Create(w.Context(), &rbacv1.ClusterRoleBinding{ // for its metrics
		ObjectMeta: metav1.ObjectMeta{Name: w.namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:auth-delegator"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}, metav1.CreateOptions{})
	require.NoError(w, err)
	n.pid = w.fleet(a, "--metrics-bind-address="+address)
	n.grow = func() { w.shardGroup("web", besideSize, nil) }
	var before []nstance.Machine
	n.replaced = func() int {
		return len(slices.DeleteFunc(a.Cloud.Machines(), func(m nstance.Machine) bool {
			return slices.ContainsFunc(before, func(o nstance.Machine) bool { return o.ID == m.ID })
		}))
	}
	n.lose = func(nodes []string) {
		before = a.Cloud.Machines()
		for _, node := range nodes {
			require.NoError(w, a.Cloud.Reclaim(nstance.InstanceID(node), besideNotice))
		}
	}
	return n
}

// nodesOfKarpenter is a label of nodes that Karpenter makes.
const nodesOfKarpenter = "karpenter.sh/nodepool"

// Kinds of Karpenter.
var (
	nodeClaims = schema.GroupVersionKind{Group: "karpenter.sh", Version: "v1", Kind: "NodeClaim"}
	nodePools  = schema.GroupVersionKind{Group: "karpenter.sh", Version: "v1", Kind: "NodePool"}
	kwokClass  = schema.GroupVersionKind{Group: "karpenter.kwok.sh", Version: "v1alpha1", Kind: "KWOKNodeClass"}
)

func object(kind schema.GroupVersionKind, spec map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	u.SetGroupVersionKind(kind)
	u.SetName("default")
	return u
}

// karpenter is Karpenter, with nodes that have no cloud.
func karpenter(w *world) *neighbour {
	assets := os.Getenv(kubetest.Assets)
	require.NoError(w, w.workload.InstallCRDs(filepath.Join(assets, "karpenter-crds")))
	metrics, health := freePort(w.TB), freePort(w.TB)
	port := func(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }
	log, err := os.Create(filepath.Join(w.TempDir(), "karpenter.log"))
	require.NoError(w, err)
	cmd := exec.Command(filepath.Join(assets, "karpenter"), "--disable-leader-election", "--metrics-port", port(metrics), "--health-probe-port", port(health))
	cmd.Env = append(os.Environ(), "KUBECONFIG="+w.workload.Kubeconfig, "SYSTEM_NAMESPACE=default")
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(w, cmd.Start())
	w.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // it ends with 1
		if text, err := os.ReadFile(log.Name()); err == nil && w.Failed() {
			w.Logf("karpenter: %s", text[max(0, len(text)-5000):])
		}
		_ = log.Close()
	})
	require.NoError(w, w.nodes.Create(w.Context(), object(kwokClass, map[string]any{})))
	requirement := func(key string, value string) any {
		return map[string]any{"key": key, "operator": "In", "values": []any{value}}
	}
	require.NoError(w, w.nodes.Create(w.Context(), object(nodePools, map[string]any{
		"template": map[string]any{"spec": map[string]any{
			"nodeClassRef":           map[string]any{"group": kwokClass.Group, "kind": kwokClass.Kind, "name": "default"},
			"terminationGracePeriod": besideNotice.String(),
			"expireAfter":            "Never",
			"requirements": []any{
				requirement(corev1.LabelInstanceTypeStable, "c-64x-amd64-linux"), requirement("karpenter.sh/capacity-type", "spot"),
				requirement(corev1.LabelArchStable, "amd64"), requirement(corev1.LabelOSStable, "linux"),
			},
		}},
		"disruption": map[string]any{"consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never"},
	})))
	claims := func() (out []unstructured.Unstructured) {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(nodeClaims.GroupVersion().WithKind("NodeClaimList"))
		if w.nodes.List(w.Context(), list) != nil {
			return nil // a busy server may fail
		}
		return list.Items
	}
	var before []unstructured.Unstructured
	n := &neighbour{world: w, name: "karpenter", pid: cmd.Process.Pid, metrics: "http://" + metrics + "/metrics", selects: func(spec *corev1.PodSpec) {
		spec.NodeSelector = map[string]string{nodesOfKarpenter: "default"}
		spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("40") // kwok gives each node 64
	}}
	n.replaced = func() int {
		return len(slices.DeleteFunc(claims(), func(c unstructured.Unstructured) bool {
			return slices.ContainsFunc(before, func(o unstructured.Unstructured) bool { return o.GetUID() == c.GetUID() })
		}))
	}
	n.lose = func(nodes []string) {
		before = claims()
		var names []string
		for i := range before {
			if node, _, _ := unstructured.NestedString(before[i].Object, "status", "nodeName"); slices.Contains(nodes, node) {
				names = append(names, before[i].GetName())
			}
		}
		require.Len(w, names, len(nodes))
		w.parallel(names, func(ctx context.Context, name string) error {
			c := object(nodeClaims, nil)
			c.SetName(name)
			return w.nodes.Delete(ctx, c)
		})
	}
	return n
}

func freePort(t testing.TB) string {
	address, err := freeport.Address()
	require.NoError(t, err)
	return address
}
