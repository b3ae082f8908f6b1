//go:build kube

package operator_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/internal/test/freeport"
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
	programs []program
}

// A program is a controller that works on the nodes.
type program struct {
	pid     int
	metrics string // URL
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
	report(n.memory(b, "VmRSS"), "idle-MiB")
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
	report(n.memory(b, "VmHWM"), "peak-MiB")
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

// memory adds up a figure of its programs, in MiB.
func (n *neighbour) memory(b *testing.B, figure string) (sum float64) {
	b.Helper()
	for _, p := range n.programs {
		sum += memory(b, p.pid, figure)
	}
	return sum
}

// calls returns how many requests to API servers its programs have sent.
func (n *neighbour) calls() (sum float64) {
	n.Helper()
	for _, p := range n.programs {
		sum += n.callsOf(p)
	}
	return sum
}

func (n *neighbour) callsOf(p program) (sum float64) {
	n.Helper()
	r, err := http.NewRequestWithContext(n.Context(), http.MethodGet, p.metrics, nil)
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
	n := &neighbour{world: w, name: "nstance", grow: func() { w.shardGroup("web", besideSize, nil) }, selects: func(spec *corev1.PodSpec) {
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
	n.programs = []program{{pid: w.fleet(a, "--metrics-bind-address="+address), metrics: "https://" + address + "/metrics"}}
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

func freePort(t testing.TB) string {
	address, err := freeport.Address()
	require.NoError(t, err)
	return address
}
