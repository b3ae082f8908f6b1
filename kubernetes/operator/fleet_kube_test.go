//go:build kube

package operator_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/internal/test/shardtest"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// Figures of the fleet.
const (
	fleetSize   = 1000
	podsPerNode = 10
	alone       = 30  // machines that are noticed one after another
	together    = 500 // machines that are noticed at once
)

// BenchmarkKubeCordon has the cloud take back machines of a shard with 1,000, each with a
// Node and ten pods. It reports how long after a notice a node is cordoned by
// nstance-operator, a process: of one alone, and of the last of 500. The floor is as many
// bare patches of nodes.
func BenchmarkKubeCordon(b *testing.B) {
	w := newWorld(b)
	a := w.shards.Start("a", fleetSize)
	operator := w.fleet(a)
	w.within(10*time.Minute, "machines have nodes", func() bool { return len(w.instances(a)) == fleetSize })
	nodes := w.instances(a)
	w.fill(nodes)
	b.ReportMetric(memory(b, operator, "VmRSS"), "idle-MiB")

	cordons := w.watchCordons()
	var single []time.Duration
	for _, node := range nodes[:alone] {
		single = append(single, cordons.reclaim(a, node))
		w.within(time.Minute, "its node is gone", func() bool { return !slices.Contains(w.instances(a), node) })
	}
	slices.Sort(single)
	b.ReportMetric(milliseconds(single[len(single)/2]), "ms-one-p50")
	b.ReportMetric(milliseconds(single[len(single)-1]), "ms-one-max")
	b.ReportMetric(milliseconds(w.barePatches(nodes[alone+together:])), "ms-bare-patches")
	b.ReportMetric(milliseconds(cordons.reclaim(a, nodes[alone:alone+together]...)), "ms-500-last")
	w.within(10*time.Minute, "the nodes are gone", func() bool {
		now := w.instances(a)
		return len(now) == fleetSize && !slices.ContainsFunc(nodes[:alone+together], func(n string) bool { return slices.Contains(now, n) })
	})
	b.ReportMetric(memory(b, operator, "VmHWM"), "peak-MiB")
	b.ReportMetric(0, "ns/op") // one run is no operation
}

// BenchmarkKubePool shows a pool of 1,000 machines through Cluster API, has half of them
// taken back at once, and reports how long each takes, and the memory of nstance-operator.
func BenchmarkKubePool(b *testing.B) {
	w := newWorld(b)
	a := w.shards.Start("a", 0)
	operator := w.fleet(a)
	began := time.Now()
	w.pool(fleetSize, func(p *infrav1.NstanceMachinePoolSpec) { p.Spot = &infrav1.SpotOptions{} })
	w.within(10*time.Minute, "machines are shown", func() bool { return len(w.shown()) == fleetSize })
	b.ReportMetric(time.Since(began).Seconds(), "s-until-shown")
	w.within(20*time.Minute, "machines have nodes", func() bool { return len(w.joined()) == fleetSize })
	b.ReportMetric(memory(b, operator, "VmRSS"), "idle-MiB")

	doomed := w.joined()[:together]
	began = time.Now()
	for _, node := range doomed {
		require.NoError(b, a.Cloud.Reclaim(nstance.InstanceID(node), 2*time.Minute))
	}
	w.within(20*time.Minute, "the pool is whole", func() bool {
		now := w.shown()
		return len(now) == fleetSize && !slices.ContainsFunc(doomed, func(n string) bool { return slices.Contains(now, n) })
	})
	b.ReportMetric(time.Since(began).Seconds(), "s-until-whole")
	b.ReportMetric(memory(b, operator, "VmHWM"), "peak-MiB")
	b.ReportMetric(0, "ns/op") // one run is no operation
}

// fleet runs the program over a shard whose machines have kubelets, and returns its
// process ID.
func (w *world) fleet(s *shardtest.Shard, flags ...string) int {
	w.Helper()
	w.kubeconfig()
	w.kubelets(s)
	w.nonce(w.shards.OperatorNonce())
	pid := w.process(flags...)
	nc := w.cluster(s)
	until(w, nc, func(nc *infrav1.NstanceCluster) bool { return isTrue(nc, infrav1.ConditionNodesReached) }, "nodes are reached")
	return pid
}

// instances returns the shard's instances that have a ready Node.
func (w *world) instances(s *shardtest.Shard) (ids []string) {
	var list corev1.NodeList
	if w.nodes.List(w.Context(), &list) != nil {
		return nil // a busy server may fail
	}
	running := map[string]bool{}
	for _, m := range s.Cloud.Machines() {
		running[string(m.ID)] = m.Status == nstance.StatusRunning
	}
	for _, n := range list.Items {
		if running[n.Name] && len(n.Status.Conditions) > 0 {
			ids = append(ids, n.Name)
		}
	}
	return ids
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// process runs the program as the user, and returns its process ID.
func (w *world) process(flags ...string) int {
	w.Helper()
	program := filepath.Join(w.TempDir(), "nstance-operator")
	build := exec.CommandContext(w.Context(), "go", "build", "-o", program, ".")
	build.Dir = "../../cmd/nstance-operator" // a module of its own
	out, err := build.CombinedOutput()
	require.NoError(w, err, string(out))
	c, err := clientcmd.LoadFromFile(w.management.Kubeconfig)
	require.NoError(w, err)
	for _, u := range c.AuthInfos {
		u.Impersonate = user
	}
	config := filepath.Join(w.TempDir(), "kubeconfig")
	require.NoError(w, clientcmd.WriteToFile(*c, config))
	log, err := os.Create(filepath.Join(w.TempDir(), "log"))
	require.NoError(w, err)
	cmd := exec.Command(program, append([]string{"--kubeconfig", config, "--leader-elect=false", "--webhook-port=0", "--metrics-bind-address=0", "--health-addr=0"}, flags...)...)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(w, cmd.Start())
	w.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		assert.NoError(w, cmd.Wait())
		if text, err := os.ReadFile(log.Name()); err == nil && w.Failed() {
			w.Logf("operator: %s", text[max(0, len(text)-5000):])
		}
		_ = log.Close()
	})
	return cmd.Process.Pid
}

// memory returns a figure of /proc in MiB.
func memory(b *testing.B, pid int, name string) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(b, err)
	found := regexp.MustCompile(name + `:\s+(\d+) kB`).FindSubmatch(text)
	require.NotNil(b, found)
	kib, err := strconv.Atoi(string(found[1]))
	require.NoError(b, err)
	return float64(kib) / 1024
}

func (w *world) within(limit time.Duration, what string, holds func() bool) {
	w.Helper()
	require.Eventually(w, holds, limit, 200*time.Millisecond, what)
}

// joined returns the names of nodes that Machines have, and that stay.
func (w *world) joined() (nodes []string) {
	var list clusterv1.MachineList
	if w.List(w.Context(), &list, client.InNamespace(w.namespace)) != nil {
		return nil // a busy server may fail
	}
	for _, m := range list.Items {
		if m.Status.NodeRef.Name != "" && m.DeletionTimestamp.IsZero() {
			nodes = append(nodes, m.Status.NodeRef.Name)
		}
	}
	return nodes
}

// shown returns the instances that have NstanceMachines which stay.
func (w *world) shown() (ids []string) {
	var list infrav1.NstanceMachineList
	if w.List(w.Context(), &list, client.InNamespace(w.namespace)) != nil {
		return nil // a busy server may fail
	}
	for _, m := range list.Items {
		if m.DeletionTimestamp.IsZero() {
			ids = append(ids, m.Name)
		}
	}
	return ids
}

// fill runs pods on each node, which end at once when they are evicted.
func (w *world) fill(nodes []string) {
	w.Helper()
	w.parallel(nodes, func(ctx context.Context, node string) error {
		for n := range podsPerNode {
			if err := w.nodes.Create(ctx, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: fmt.Sprintf("%s-%d", node, n)},
				Spec: corev1.PodSpec{
					NodeName: node, TerminationGracePeriodSeconds: ptr.To[int64](0), Containers: []corev1.Container{{Name: "c", Image: "none"}},
				},
			}); err != nil {
				return err
			}
		}
		return nil
	})
}

// barePatches cordons nodes by as many requests at a time as there are workers.
func (w *world) barePatches(nodes []string) time.Duration {
	w.Helper()
	began := time.Now()
	w.parallel(nodes, func(ctx context.Context, node string) error {
		return w.nodes.Patch(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`)))
	})
	return time.Since(began)
}

func (w *world) parallel(nodes []string, do func(ctx context.Context, node string) error) {
	w.Helper()
	const workers = 16
	work := make(chan string, len(nodes))
	for _, n := range nodes {
		work <- n
	}
	close(work)
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for node := range work {
				assert.NoError(w, do(w.Context(), node))
			}
		})
	}
	running.Wait()
}

// A cordonWatch says when nodes were seen cordoned.
type cordonWatch struct {
	*world
	mu   sync.Mutex
	seen map[string]time.Time
}

func (w *world) watchCordons() *cordonWatch {
	w.Helper()
	c := &cordonWatch{world: w, seen: map[string]time.Time{}}
	nodes := cache.NewSharedInformer(cache.NewListWatchFromClient(w.workload.Client.CoreV1().RESTClient(), "nodes", "", fields.Everything()), &corev1.Node{}, 0)
	see := func(obj any) {
		if n, ok := obj.(*corev1.Node); ok && closed(n) {
			c.note(n.Name)
		}
	}
	_, err := nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(_, now any) { see(now) }, DeleteFunc: see})
	require.NoError(w, err)
	ctx, cancel := context.WithCancel(w.Context())
	var watching sync.WaitGroup
	watching.Go(func() { nodes.RunWithContext(ctx) })
	w.Cleanup(func() {
		cancel()
		watching.Wait()
	})
	require.True(w, cache.WaitForCacheSync(ctx.Done(), nodes.HasSynced))
	return c
}

// closed reports whether a node takes no more pods: Karpenter says so by a taint.
func closed(n *corev1.Node) bool {
	return n.Spec.Unschedulable || slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "karpenter.sh/disrupted" })
}

func (c *cordonWatch) note(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen[node].IsZero() {
		c.seen[node] = time.Now()
	}
}

// reclaim has the cloud take machines back in two minutes, and returns after how long the
// last of their nodes was cordoned.
func (c *cordonWatch) reclaim(s *shardtest.Shard, nodes ...string) time.Duration {
	c.Helper()
	began := time.Now()
	for _, n := range nodes {
		require.NoError(c, s.Cloud.Reclaim(nstance.InstanceID(n), 2*time.Minute))
	}
	var last time.Time
	for deadline := began.Add(2 * time.Minute); ; {
		var all bool
		if last, all = c.last(nodes); all {
			return last.Sub(began)
		}
		require.True(c, time.Now().Before(deadline) && sleep.For(c.Context(), 10*time.Millisecond), "nodes are cordoned")
	}
}

// last returns when the last of these nodes was cordoned, and whether all were.
func (c *cordonWatch) last(nodes []string) (last time.Time, all bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range nodes {
		if c.seen[n].IsZero() {
			return last, false
		}
		if c.seen[n].After(last) {
			last = c.seen[n]
		}
	}
	return last, true
}
