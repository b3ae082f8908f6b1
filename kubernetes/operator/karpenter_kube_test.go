//go:build kube

package operator_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/nstance-go/nstance/kubernetes/kubetest"
)

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
	n := &neighbour{world: w, name: "karpenter", programs: []program{{pid: cmd.Process.Pid, metrics: "http://" + metrics + "/metrics"}}, selects: func(spec *corev1.PodSpec) {
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
