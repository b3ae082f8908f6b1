//go:build kube

package operator_test

import (
	"cmp"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/test/never"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// documented returns the resources in the YAML blocks of a document.
func documented(t testing.TB, name string) (out []*unstructured.Unstructured) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
	require.NoError(t, err)
	for _, block := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		for docs := yaml.NewYAMLOrJSONDecoder(strings.NewReader(block[1]), 4096); ; {
			obj := &unstructured.Unstructured{}
			err := docs.Decode(&obj.Object)
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err, "%s:\n%s", name, block[1])
			out = append(out, obj)
		}
	}
	return out
}

// TestKubeDocuments has the API server accept every resource in the documents, field by
// field. Their health checks for interrupted machines check what those of the other tests
// check.
func TestKubeDocuments(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.healthCheck(map[string]string{clusterv1.ClusterNameLabel: "c"})
	var tested clusterv1.MachineHealthCheck
	require.NoError(t, w.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "interrupted"}, &tested))
	for name, kinds := range map[string][]string{
		"cluster-api.md": {"NstanceCluster", "NstanceMachinePool", "NstanceMachineTemplate", "MachineDeployment", "MachineHealthCheck", "ClusterClass"},
		"kubernetes.md":  {"Secret", "NstanceCluster", "Cluster", "NstanceMachinePool", "MachinePool", "SpotProtection", "PodDisruptionBudget"},
	} {
		t.Run(name, func(t *testing.T) {
			found := map[string]bool{}
			for _, obj := range documented(t, name) {
				found[obj.GetKind()] = true
				obj.SetNamespace(w.namespace)
				require.NoError(t, w.Create(t.Context(), obj.DeepCopy(), client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict)), mustYAML(obj))
				if obj.GetKind() == "MachineHealthCheck" {
					var check clusterv1.MachineHealthCheck
					require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &check))
					requireTested(t, &check, &tested)
				}
			}
			for _, kind := range kinds {
				require.True(t, found[kind], kind)
			}
		})
	}
}

// requireTested: a health check remediates all machines that it finds unhealthy, and checks
// conditions of ours, if it does, as one that is tested.
func requireTested(t *testing.T, check, tested *clusterv1.MachineHealthCheck) {
	t.Helper()
	require.Zero(t, check.Spec.Remediation, check.Name)
	if conditions := check.Spec.Checks.UnhealthyMachineConditions; len(conditions) > 0 {
		require.Equal(t, tested.Spec.Checks.UnhealthyMachineConditions, conditions, check.Name)
	}
}

// adapted is a value of the documents with other names, and without configurations of a
// provider of bootstrap data.
func adapted(value any, names map[string]string) any {
	switch v := value.(type) {
	case map[string]any:
		for key := range v {
			v[key] = adapted(v[key], names)
		}
		if bootstrap, _ := v["bootstrap"].(map[string]any); bootstrap["configRef"] != nil {
			v["bootstrap"] = map[string]any{"dataSecretName": ""}
		}
	case []any:
		for i := range v {
			v[i] = adapted(v[i], names)
		}
	case string:
		return cmp.Or(names[v], v)
	}
	return value
}

// TestKubeDocumentedWorkers has what the document has of pool, deployment and health checks
// work, with the defaults that it leaves out: it is made, scaled, repaired and deleted.
func TestKubeDocumentedWorkers(t *testing.T) {
	t.Parallel()
	w, a, b := provisioned(t)
	names := map[string]string{"prod": "c", "eu1a": "a", "eu1b": "b", "node": "vm", "nodes": "web", "m7i.large": "small"}
	for _, obj := range documented(t, "cluster-api.md") {
		switch obj.GetKind() {
		case "NstanceMachinePool", "MachinePool", "NstanceMachineTemplate", "MachineDeployment", "MachineHealthCheck":
			adapted(obj.Object, names)
			obj.SetNamespace(w.namespace)
			require.NoError(t, w.Create(t.Context(), obj), mustYAML(obj))
		}
	}
	w.untilRunning(3)
	mp := &clusterv1.MachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "batch"}}
	require.NoError(t, w.Get(t.Context(), client.ObjectKeyFromObject(mp), mp))
	require.Zero(t, *mp.Spec.Replicas, "the least that the autoscaler may keep")
	w.scale(mp, 3)
	w.untilRunning(6)
	w.scale(mp, 1)
	w.untilRunning(4)

	var doomed *clusterv1.Machine
	for _, m := range w.machines() {
		if metav1.HasLabel(m.ObjectMeta, clusterv1.MachineDeploymentNameLabel) {
			doomed = &m
		}
	}
	require.NoError(t, a.Cloud.Reclaim(nstance.InstanceID(doomed.Status.NodeRef.Name), time.Minute))
	w.untilGone(doomed)
	w.untilRunning(4)

	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c"}}
	require.NoError(t, w.Delete(t.Context(), cluster))
	w.untilGone(cluster)
	require.Empty(t, append(a.Cloud.Machines(), b.Cloud.Machines()...))
}

// TestKubeDocumentedScale: the capacity in the document's pool is where an autoscaler looks
// for that of machines of which there is none.
func TestKubeDocumentedScale(t *testing.T) {
	t.Parallel()
	w, _, _ := provisioned(t)
	var documentedPool infrav1.NstanceMachinePool
	for _, obj := range documented(t, "cluster-api.md") {
		if obj.GetKind() == "NstanceMachinePool" {
			require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &documentedPool))
		}
	}
	scale := documentedPool.Spec.Scale
	require.Contains(t, scale.Capacity, corev1.ResourceCPU)
	require.Contains(t, scale.Capacity, corev1.ResourceMemory)
	w.pool(0, func(s *infrav1.NstanceMachinePoolSpec) { s.Scale = scale })
	p := &infrav1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "pool"}}
	until(w, p, func(p *infrav1.NstanceMachinePool) bool { return len(p.Status.Capacity) > 0 }, "the status has it")
	require.Equal(t, scale.NodeInfo, p.Status.NodeInfo)
	for name, want := range scale.Capacity {
		got := p.Status.Capacity[name]
		require.Zero(t, want.Cmp(got), name)
	}
}

// TestKubeMachineOnDemand buys machines without spot options on demand, although the
// template of their group is for spot.
func TestKubeMachineOnDemand(t *testing.T) {
	t.Parallel()
	w, a, _ := provisioned(t)
	w.deployment(1, func(s *infrav1.NstanceMachineSpec) { s.Spot = nil })
	machine := w.untilRunning(1)[0]
	require.Equal(t, nstance.OnDemand, a.Cloud.Machines()[0].Market)
	m := &infrav1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: machine.Spec.InfrastructureRef.Name}}
	until(w, m, func(m *infrav1.NstanceMachine) bool { return m.Status.Interruptible != nil }, "it says so")
	require.False(t, *m.Status.Interruptible)
}

// TestKubeMachineNeverCreated has a MachineHealthCheck replace a machine that cannot be
// created.
func TestKubeMachineNeverCreated(t *testing.T) {
	t.Parallel()
	w, a, _ := provisioned(t)
	require.NoError(t, w.Create(t.Context(), &clusterv1.MachineHealthCheck{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "failed", Labels: map[string]string{clusterv1.ClusterNameLabel: "c"}},
		Spec: clusterv1.MachineHealthCheckSpec{
			ClusterName: "c", Selector: metav1.LabelSelector{MatchLabels: map[string]string{clusterv1.MachineDeploymentNameLabel: "web"}},
			Checks: clusterv1.MachineHealthCheckChecks{
				NodeStartupTimeoutSeconds: ptr.To[int32](600),
				UnhealthyMachineConditions: []clusterv1.UnhealthyMachineCondition{
					{Type: infrav1.ConditionCreateFailed, Status: metav1.ConditionTrue, TimeoutSeconds: ptr.To[int32](0)},
				},
			},
		},
	}))
	a.Cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Code: nstance.Invalid, Times: 1})
	w.deployment(1, nil)
	var first clusterv1.Machine
	require.Eventually(t, func() bool {
		for _, m := range w.machines() {
			first = m
		}
		return first.Name != ""
	}, eventually, poll, "it is made")
	w.untilGone(&first)
	w.untilRunning(1)
	require.Len(t, a.Cloud.Machines(), 1)
}

// TestKubeMachineNotReplaced leaves a machine that the cloud has taken back to those who
// made its Machine: without a MachineHealthCheck there is none in its place.
func TestKubeMachineNotReplaced(t *testing.T) {
	t.Parallel()
	w, a, _ := provisioned(t)
	w.deployment(1, nil)
	machine := &w.untilRunning(1)[0]
	require.NoError(t, a.Cloud.Reclaim(a.Cloud.Machines()[0].ID, time.Minute))
	m := &infrav1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: machine.Spec.InfrastructureRef.Name}}
	until(w, m, func(m *infrav1.NstanceMachine) bool { return m.Status.State == string(nstance.Deleted) }, "it is gone")
	require.Empty(t, a.Cloud.Machines())
	until(w, machine, func(m *clusterv1.Machine) bool {
		return meta.IsStatusConditionTrue(m.Status.Conditions, infrav1.ConditionInterrupted)
	}, "its Machine says why")
	require.True(t, machine.DeletionTimestamp.IsZero())
}

// TestKubeDrainRules has a MachineDrainRule keep a pod from being drained.
func TestKubeDrainRules(t *testing.T) {
	t.Parallel()
	w, a, _ := provisioned(t)
	require.NoError(t, w.Create(t.Context(), &clusterv1.MachineDrainRule{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "stays"},
		Spec: clusterv1.MachineDrainRuleSpec{
			Drain:    clusterv1.MachineDrainRuleDrainConfig{Behavior: clusterv1.MachineDrainRuleDrainBehaviorSkip},
			Machines: []clusterv1.MachineDrainRuleMachineSelector{{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{clusterv1.ClusterNameLabel: "c"}}}},
			Pods: []clusterv1.MachineDrainRulePodSelector{{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: w.namespace}},
			}},
		},
	}))
	mp := w.pool(1, func(s *infrav1.NstanceMachinePoolSpec) { s.Spot = &infrav1.SpotOptions{} })
	w.untilMachines(mp, 1)
	doomed := &w.machines()[0]
	pod := w.slowPod(doomed.Status.NodeRef.Name)
	require.NoError(t, a.Cloud.Reclaim(nstance.InstanceID(doomed.Name), time.Hour))
	w.untilGone(doomed)
	reasons := func(namespace, name string) (out []string) {
		var events corev1.EventList
		require.NoError(t, w.List(t.Context(), &events, client.InNamespace(namespace)))
		for _, e := range events.Items {
			if e.InvolvedObject.Name == name {
				out = append(out, e.Reason)
			}
		}
		return out
	}
	require.Eventually(t, func() bool { return slices.Contains(reasons("default", doomed.Name), "Drained") }, eventually, poll, "without waiting for it")
	require.NotContains(t, reasons(w.namespace, pod.Name), "EvictedByDrain")
}

// TestKubeDrainOrder evicts pods in the order of MachineDrainRules, of which the first by
// name holds for a pod.
func TestKubeDrainOrder(t *testing.T) {
	t.Parallel()
	w, a, _ := provisioned(t)
	rule := func(name string, order int32, pods ...clusterv1.MachineDrainRulePodSelector) {
		require.NoError(t, w.Create(t.Context(), &clusterv1.MachineDrainRule{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
			Spec: clusterv1.MachineDrainRuleSpec{
				Drain: clusterv1.MachineDrainRuleDrainConfig{Behavior: clusterv1.MachineDrainRuleDrainBehaviorDrain, Order: &order}, Pods: pods,
			},
		}))
	}
	labelled := func(tier string) clusterv1.MachineDrainRulePodSelector {
		return clusterv1.MachineDrainRulePodSelector{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": tier}}}
	}
	rule("a-last", 20, labelled("last"))
	rule("b-middle", 10, labelled("middle"))
	rule("c-first", -10, labelled("last"), labelled("middle"), labelled("first"))
	mp := w.pool(1, func(s *infrav1.NstanceMachinePoolSpec) { s.Spot = &infrav1.SpotOptions{} })
	w.untilMachines(mp, 1)
	doomed := &w.machines()[0]
	tiers := []string{"first", "middle", "last"}
	pods := map[string]*corev1.Pod{}
	for _, tier := range tiers {
		pods[tier] = w.podOn(doomed.Status.NodeRef.Name, tier, map[string]string{"tier": tier})
	}
	evicted := func() (out []string) {
		for _, tier := range tiers {
			var pod corev1.Pod
			if w.Get(t.Context(), client.ObjectKeyFromObject(pods[tier]), &pod) == nil && !pod.DeletionTimestamp.IsZero() {
				out = append(out, tier)
			}
		}
		return out
	}
	require.NoError(t, a.Cloud.Reclaim(nstance.InstanceID(doomed.Name), time.Hour))
	for _, tier := range tiers {
		require.Eventually(t, func() bool { return slices.Equal(evicted(), []string{tier}) }, eventually, poll)
		never.True(t, func() bool { return !slices.Equal(evicted(), []string{tier}) }, 500*time.Millisecond, 50*time.Millisecond, "the others wait")
		require.NoError(t, w.Delete(t.Context(), pods[tier], client.GracePeriodSeconds(0)))
	}
	w.untilGone(doomed)
}
