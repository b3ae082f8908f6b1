//go:build kube

package nodedrain_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/internal/sleep"
	cluster "github.com/nstance-go/nstance/kubernetes/kubetest"
	"github.com/nstance-go/nstance/kubernetes/nodedrain"
)

var servers *cluster.Cluster

func TestMain(m *testing.M) {
	os.Exit(cluster.Main(m, cluster.Options{Controllers: true, Scheduler: true, Kubelets: true}, func(c *cluster.Cluster) { servers = c }))
}

// A rig is a coordinator, nodes and pods of one test.
type rig struct {
	*testing.T
	drains    *drain.Coordinator
	namespace string
	requests  *requests
	watched   nstance.DrainCoordinator                  // by the Drainer; nil: drains
	wrap      func(http.RoundTripper) http.RoundTripper // of the Drainer's requests; nil: none
}

func newRig(t *testing.T) *rig {
	t.Parallel()
	return newSerialRig(t)
}

// newSerialRig is for a test that is not parallel to others.
func newSerialRig(t *testing.T) *rig {
	return &rig{T: t, drains: drain.New(nil), namespace: servers.Namespace(t), requests: &requests{}}
}

// run starts a Drainer, and returns what stops it.
func (r *rig) run(opts *nodedrain.Options) (d *nodedrain.Drainer, stop func()) {
	r.Helper()
	var o nodedrain.Options
	if opts != nil {
		o = *opts
	}
	if os.Getenv("DRAIN_LOG") != "" {
		o.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("test", r.Name())
	}
	cfg := rest.CopyConfig(servers.Config)
	cfg.Wrap(r.requests.wrap)
	if r.wrap != nil {
		cfg.Wrap(r.wrap)
	}
	watched := nstance.DrainCoordinator(r.drains)
	if r.watched != nil {
		watched = r.watched
	}
	d, err := nodedrain.New(cfg, watched, &o)
	require.NoError(r, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(r, <-ended)
	})
	r.Cleanup(stop)
	return d, stop
}

// node makes a ready node, whose provider ID ends in i-NAME.
func (r *rig) node(name string) string {
	r.Helper()
	name = r.namespace + "-" + name
	r.makeNode(name)
	r.eventually(func() bool { return ready(r.get(name)) }, "node %s is not ready", name)
	return name
}

func (r *rig) makeNode(name string) {
	r.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"test": r.namespace, corev1.LabelHostname: name}}, Spec: corev1.NodeSpec{ProviderID: "aws:///zone-a/i-" + name}}
	_, err := servers.Client.CoreV1().Nodes().Create(r.Context(), node, metav1.CreateOptions{})
	require.NoError(r, err)
	r.Cleanup(func() {
		_ = servers.Client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{})
	})
}

func (r *rig) get(name string) *corev1.Node {
	r.Helper()
	node, err := servers.Client.CoreV1().Nodes().Get(r.Context(), name, metav1.GetOptions{})
	require.NoError(r, err)
	return node
}

func (r *rig) patch(name, patch string) {
	r.Helper()
	_, err := servers.Client.CoreV1().Nodes().Patch(r.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(r, err)
}

func ready(node *corev1.Node) bool {
	untainted := !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeNotReady })
	return untainted && slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// pod starts a pod on a node.
func (r *rig) pod(name, node string, change func(*corev1.Pod)) {
	r.Helper()
	r.makePod(name, node, change)
	r.eventually(func() bool { return podReady(r.getPod(name)) }, "pod %s is not ready", name)
}

func (r *rig) makePod(name, node string, change func(*corev1.Pod)) {
	r.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: r.namespace, Labels: map[string]string{"app": "web"}}, Spec: podSpec()}
	p.Spec.NodeName = node
	if change != nil {
		change(p)
	}
	_, err := servers.Client.CoreV1().Pods(r.namespace).Create(r.Context(), p, metav1.CreateOptions{})
	require.NoError(r, err)
}

// killPod removes a pod at once.
func (r *rig) killPod(name string) {
	r.Helper()
	zero := int64(0)
	require.NoError(r, servers.Client.CoreV1().Pods(r.namespace).Delete(background, name, metav1.DeleteOptions{GracePeriodSeconds: &zero}))
}

// getPod returns nil for a pod that does not exist.
func (r *rig) getPod(name string) *corev1.Pod {
	r.Helper()
	list, err := servers.Client.CoreV1().Pods(r.namespace).List(background, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	require.NoError(r, err)
	if len(list.Items) == 0 {
		return nil
	}
	return &list.Items[0]
}

func podSpec() corev1.PodSpec {
	one := int64(1)
	return corev1.PodSpec{TerminationGracePeriodSeconds: &one, Containers: []corev1.Container{{Name: "c", Image: "none"}}}
}

func slow(grace int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Labels["test.nstance.dev/stop"] = "slow"
		p.Spec.TerminationGracePeriodSeconds = &grace
	}
}

func podReady(p *corev1.Pod) bool {
	return p != nil && p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// deployment runs replicas on the test's nodes.
func (r *rig) deployment(replicas int32, change func(*corev1.PodSpec)) {
	r.Helper()
	labels := map[string]string{"app": "web"}
	spec := podSpec()
	spec.NodeSelector = map[string]string{"test": r.namespace}
	if change != nil {
		change(&spec)
	}
	_, err := servers.Client.AppsV1().Deployments(r.namespace).Create(r.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
		},
	}, metav1.CreateOptions{})
	require.NoError(r, err)
	r.eventually(func() bool { return len(r.readyPods()) == int(replicas) }, "deployment is not ready")
}

func (r *rig) readyPods() (nodes []string) {
	r.Helper()
	list, err := servers.Client.CoreV1().Pods(r.namespace).List(context.Background(), metav1.ListOptions{LabelSelector: "app=web"})
	require.NoError(r, err)
	for i := range list.Items {
		if podReady(&list.Items[i]) {
			nodes = append(nodes, list.Items[i].Spec.NodeName)
		}
	}
	return nodes
}

// countReady counts ready pods until stop is called, which returns the fewest.
func (r *rig) countReady(all int) (stop func() int) {
	ctx, cancel := context.WithCancel(background)
	fewest := make(chan int, 1)
	go func() {
		n := all
		for ctx.Err() == nil {
			n = min(n, len(r.readyPods()))
		}
		fewest <- n
	}()
	return func() int {
		cancel()
		return <-fewest
	}
}

// budget lets so many pods be unavailable, and waits until the budget is computed.
func (r *rig) budget(maxUnavailable int) {
	r.Helper()
	most := intstr.FromInt(maxUnavailable)
	budgets := servers.Client.PolicyV1().PodDisruptionBudgets(r.namespace)
	_, err := budgets.Create(r.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &most, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
	}, metav1.CreateOptions{})
	require.NoError(r, err)
	r.eventually(func() bool {
		b, err := budgets.Get(r.Context(), "web", metav1.GetOptions{})
		return err == nil && b.Status.ObservedGeneration == b.Generation
	}, "budget is not computed")
}

func (r *rig) deleteBudget() {
	r.Helper()
	require.NoError(r, servers.Client.PolicyV1().PodDisruptionBudgets(r.namespace).Delete(r.Context(), "web", metav1.DeleteOptions{}))
}

// drain starts the drain of a node.
func (r *rig) drain(node string, left time.Duration, change func(*nstance.Drain)) nstance.Drain {
	r.Helper()
	d := nstance.Drain{
		Instance: nstance.InstanceID("web-" + node), ProviderID: "i-" + node, Generation: 1, Deadline: time.Now().Add(left), Executor: nstance.ExecutorOperator,
		Causes: []nstance.Cause{{Kind: nstance.CauseNotice, EventID: "event-1", Message: "spot interruption"}},
	}
	if change != nil {
		change(&d)
	}
	require.NoError(r, r.drains.Start(r.Context(), d))
	return d
}

func voluntary(d *nstance.Drain) { d.Voluntary = true }

// unlimited drains have no deadline.
func unlimited(d *nstance.Drain) {
	d.Voluntary, d.StartedAt = true, time.Now()
	d.Deadline = d.StartedAt.Add(nstance.UnlimitedDrain)
}

// ack waits for the acknowledgement of a drain's end.
func (r *rig) ack(d nstance.Drain) nstance.Ack {
	r.Helper()
	return r.nextAck(d, func(a nstance.Ack) bool { return a.Outcome != nstance.OutcomeBlocked })
}

func (r *rig) nextAck(d nstance.Drain, want func(nstance.Ack) bool) nstance.Ack {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
	defer cancel()
	for e, err := range r.drains.Watch(ctx, "", 0) {
		require.NoError(r, err, "no acknowledgement of %s", d.Instance)
		if e.Drain.Instance == d.Instance && e.Ack != nil && want(*e.Ack) {
			return *e.Ack
		}
	}
	require.Fail(r, "no acknowledgement", "of %s", d.Instance)
	return nstance.Ack{}
}

// eventsOf returns the events about an object of a name, by reason.
func (r *rig) eventsOf(namespace, name, reason string) (messages []string) {
	r.Helper()
	list, err := servers.Client.CoreV1().Events(namespace).List(context.Background(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + name + ",reason=" + reason})
	require.NoError(r, err)
	for _, e := range list.Items {
		messages = append(messages, e.Message)
	}
	return messages
}

// await is eventually for other goroutines than the test's.
func (r *rig) await(ok func() bool, message string) {
	for deadline := time.Now().Add(30 * time.Second); !ok(); {
		if !sleep.For(background, 20*time.Millisecond) || time.Now().After(deadline) {
			r.Error(message)
			return
		}
	}
}

// event waits for the only event about an object of a name and for a reason.
func (r *rig) event(namespace, name, reason string) string {
	r.Helper()
	r.eventually(func() bool { return len(r.eventsOf(namespace, name, reason)) > 0 }, "no event %s on %s", reason, name)
	messages := r.eventsOf(namespace, name, reason)
	require.Len(r, messages, 1)
	return messages[0]
}

func (r *rig) eventually(ok func() bool, message string, args ...any) {
	r.Helper()
	require.Eventually(r, ok, time.Minute, 20*time.Millisecond, append([]any{message}, args...)...)
}

// A request is one that a Drainer sent.
type request struct {
	at     time.Time // when its answer came
	method string
	path   string
	query  string
	body   string // of a patch
	status int
}

type requests struct {
	mu     sync.Mutex
	sent   []request
	before func(request) // called before each request; nil: not
	after  func(request) // called after each answer; nil: not
}

func (q *requests) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		sent := request{method: r.Method, path: r.URL.Path, query: r.URL.RawQuery}
		if r.Method == http.MethodPatch {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return nil, err
			}
			sent.body, r.Body = string(body), io.NopCloser(bytes.NewReader(body))
		}
		if q.before != nil {
			q.before(sent)
		}
		answer, err := next.RoundTrip(r)
		if sent.at = time.Now(); answer != nil {
			sent.status = answer.StatusCode
		}
		if q.after != nil {
			q.after(sent)
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		q.sent = append(q.sent, sent)
		return answer, err
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (q *requests) clear() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sent = nil
}

// matching returns the requests that a filter selects, without those of the index of nodes.
func (q *requests) matching(keep func(request) bool) (some []request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range q.sent {
		if (r.method != http.MethodGet || r.path != "/api/v1/nodes") && keep(r) {
			some = append(some, r)
		}
	}
	return some
}

func (r request) String() string {
	return fmt.Sprintf("%s %s?%s %d", r.method, r.path, r.query, r.status)
}

func evictions(r request) bool { return strings.HasSuffix(r.path, "/eviction") }
