//go:build kube

package operator_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/test/never"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/internal/protection"
	"github.com/nstance-go/nstance/kubernetes/kubetest"
)

// workloads is a cluster with controllers, scheduler and kubelets, which the tests of
// protection share. It is started by the first of them.
var workloads = sync.OnceValues(func() (*kubetest.Cluster, error) {
	c, err := kubetest.Start(kubetest.Options{Controllers: true, Scheduler: true, Kubelets: true})
	if err != nil {
		return nil, err
	}
	stopWorkloads = c.Stop
	var crds []*apiextensionsv1.CustomResourceDefinition
	for kind, plural := range map[string]string{"NodeClaim": "nodeclaims", "NodePool": "nodepools"} {
		crds = append(crds, karpenterKind(kind, plural))
	}
	_, err = envtest.InstallCRDs(c.Config, envtest.CRDInstallOptions{CRDs: crds})
	return c, err
})

// stopWorkloads ends that cluster, if it was started.
var stopWorkloads = func() {}

// karpenterKind is a kind of Karpenter's with any fields.
func karpenterKind(kind, plural string) *apiextensionsv1.CustomResourceDefinition {
	anything := apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + ".karpenter.sh"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "karpenter.sh", Scope: apiextensionsv1.ClusterScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: kind, ListKind: kind + "List", Plural: plural, Singular: plural[:len(plural)-1]},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": anything, "status": anything},
				}},
			}},
		},
	}
}

// A protectedWorld is a world with a stand-in shard, and with a workload cluster in which
// pods run. Its nodes and pods are its own.
type protectedWorld struct {
	*standInShard
	space string // of the workload cluster
}

func newProtectedWorld(t *testing.T) *protectedWorld {
	t.Helper()
	w := newWorkloadWorld(t)
	return &protectedWorld{space: w.workload.Namespace(t), standInShard: w.standInShard()}
}

// newWorkloadWorld is a world with that workload cluster.
func newWorkloadWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	var err error
	w.workload, err = workloads()
	require.NoError(t, err)
	w.nodes, err = client.New(w.workload.Config, client.Options{Scheme: scheme(t)})
	require.NoError(t, err)
	return w
}

func (p *protectedWorld) mine() map[string]string {
	return map[string]string{"test.nstance.dev/world": p.space}
}

// create makes an object in the workload cluster, and deletes it when the test ends.
func (p *protectedWorld) create(obj client.Object) {
	p.Helper()
	require.NoError(p, p.nodes.Create(p.Context(), obj), mustYAML(obj))
	p.Cleanup(func() {
		_ = p.nodes.Delete(context.WithoutCancel(p.Context()), obj, client.GracePeriodSeconds(0))
	})
}

// addNode makes a ready node for this test's pods.
func (p *protectedWorld) addNode(name, providerID string, labels map[string]string) *corev1.Node {
	p.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: p.space + "-" + name, Labels: p.mine()}, Spec: corev1.NodeSpec{ProviderID: providerID}}
	for k, v := range labels {
		n.Labels[k] = v
	}
	p.create(n)
	p.untilNode(n, func(n *corev1.Node) bool {
		return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}) &&
			!slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeNotReady })
	}, "it is ready")
	return n
}

// spotNode makes a ready node that its cloud may take back, and that no shard knows.
func (p *protectedWorld) spotNode(name string) *corev1.Node {
	return p.addNode(name, "aws:///zone/"+p.space+name, map[string]string{"karpenter.sh/capacity-type": "spot"})
}

func (p *protectedWorld) untilNode(n *corev1.Node, wanted func(*corev1.Node) bool, what string) {
	p.Helper()
	p.await(n, func() bool { return wanted(n) }, what)
}

// await waits until an object of the workload cluster, read again and again, is as wanted.
func (p *protectedWorld) await(obj client.Object, wanted func() bool, what string) {
	p.Helper()
	require.Eventually(p, func() bool {
		return p.nodes.Get(p.Context(), client.ObjectKeyFromObject(obj), obj) == nil && wanted()
	}, eventually, poll, "%s: %s", what, lazy(func() string { return mustYAML(obj) + p.protections() }))
}

func (p *protectedWorld) protections() string { return p.listed(&infrav1.SpotProtectionList{}) }

// template is of pods of an app that run on this test's nodes.
func (p *protectedWorld) template(app string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{
			NodeSelector: p.mine(), TerminationGracePeriodSeconds: ptr.To[int64](0), Containers: []corev1.Container{{Name: "c", Image: "none"}},
		},
	}
}

func (p *protectedWorld) deploy(app string, replicas int32, change func(*appsv1.Deployment)) *appsv1.Deployment {
	p.Helper()
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.space, Name: app, Labels: map[string]string{"app": app}, Annotations: map[string]string{}},
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}, Template: p.template(app)},
	}
	if change != nil {
		change(d)
	}
	p.create(d)
	return d
}

func handedOff(d *appsv1.Deployment) { d.Annotations[infrav1.AnnotationHandOff] = "true" }

func (p *protectedWorld) budget(app string, maxUnavailable int32) *policyv1.PodDisruptionBudget {
	p.Helper()
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.space, Name: app},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}, MaxUnavailable: ptr.To(intstr.FromInt32(maxUnavailable))},
	}
	p.create(b)
	return b
}

// untilReady waits until an app has as many ready pods, none that is not, and returns them.
func (p *protectedWorld) untilReady(app string, want int) (pods []corev1.Pod) {
	p.Helper()
	require.Eventually(p, func() bool {
		pods = p.podsOf(app)
		return len(pods) == want && !slices.ContainsFunc(pods, func(pod corev1.Pod) bool { return !protection.Ready(&pod) })
	}, eventually, poll, "%d pods: %s", want, lazy(func() string { return mustYAML(pods) }))
	return pods
}

func (p *protectedWorld) podsOf(app string) []corev1.Pod {
	var list corev1.PodList
	if p.nodes.List(p.Context(), &list, client.InNamespace(p.space), client.MatchingLabels{"app": app}) != nil {
		return nil // a busy server may fail
	}
	return list.Items
}

// on returns how many of an app's pods are on a node.
func (p *protectedWorld) on(app string, node *corev1.Node) (n int) {
	for _, pod := range p.podsOf(app) {
		if pod.Spec.NodeName == node.Name {
			n++
		}
	}
	return n
}

// protect makes a SpotProtection of this test's namespace of the workload cluster.
func (p *protectedWorld) protect(change func(*infrav1.SpotProtectionSpec)) *infrav1.SpotProtection {
	p.Helper()
	sp := &infrav1.SpotProtection{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "p"},
		Spec: infrav1.SpotProtectionSpec{
			ClusterName: "c", Selector: &metav1.LabelSelector{}, Namespaces: []string{p.space}, Standby: infrav1.StandbyReference{Group: "standby"},
		},
	}
	if change != nil {
		change(&sp.Spec)
	}
	require.NoError(p, p.Create(p.Context(), sp))
	return sp
}

// untilWorkload waits until the status has an app as wanted, and returns that.
func (p *protectedWorld) untilWorkload(sp *infrav1.SpotProtection, app string, wanted func(infrav1.ProtectedWorkload) bool) (found infrav1.ProtectedWorkload) {
	p.Helper()
	p.touch(sp)
	until(p.world, sp, func(sp *infrav1.SpotProtection) bool {
		for _, w := range sp.Status.Workloads {
			if w.Name == app && wanted(w) {
				found = w
				return true
			}
		}
		return false
	}, app)
	return found
}

// touch has the operator look at a SpotProtection now, and not only in a while.
func (p *protectedWorld) touch(sp *infrav1.SpotProtection) {
	p.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"touched":"%d"}}}`, time.Now().UnixNano())
	require.NoError(p, p.Patch(p.Context(), sp.DeepCopy(), client.RawPatch(types.MergePatchType, patch)))
}

// untilClaimed waits until the status has so many claims, and what comes next is later than
// all of them. Times of objects are in seconds, and a node of the same second may have been
// there before.
func (p *protectedWorld) untilClaimed(sp *infrav1.SpotProtection, want int) {
	p.Helper()
	until(p.world, sp, func(sp *infrav1.SpotProtection) bool {
		return len(sp.Status.Claims) == want && time.Since(sp.Status.Claims[0].Time.Time) > 2*time.Second
	}, "it is claimed, and later")
}

func because(reason string) func(infrav1.ProtectedWorkload) bool {
	return func(w infrav1.ProtectedWorkload) bool { return w.Reason == reason }
}

// patch patches an object of the workload cluster.
func (p *protectedWorld) patch(obj client.Object, format string, args ...any) {
	p.Helper()
	require.NoError(p, p.nodes.Patch(p.Context(), obj, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, format, args...))))
}

// taint adds a taint to a node.
func (p *protectedWorld) taint(n *corev1.Node, key string) {
	p.Helper()
	p.patch(n, `{"spec":{"taints":[{"key":%q,"effect":"NoSchedule"}]}}`, key)
}

func (p *protectedWorld) karpenter(kind, name string, content map[string]any) *unstructured.Unstructured {
	p.Helper()
	u := &unstructured.Unstructured{Object: content}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: "karpenter.sh", Version: "v1", Kind: kind})
	u.SetName(p.space + "-" + name)
	p.create(u)
	return u
}

// TestKubeSpotProtectionAdmission admits workloads with a budget that covers their pods and
// allows a disruption, and no others. The proposed budget is applied as it is, and admits.
func TestKubeSpotProtectionAdmission(t *testing.T) {
	p := newProtectedWorld(t)
	p.spotNode("n")
	for _, app := range []string{"covered", "bare", "blocked", "overlap"} {
		p.deploy(app, 2, nil)
	}
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.space, Name: "set"},
		Spec:       appsv1.StatefulSetSpec{Replicas: ptr.To[int32](2), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "set"}}, Template: p.template("set")},
	}
	p.create(set)
	p.budget("covered", 1)
	p.budget("blocked", 0)
	p.budget("overlap", 1)
	second := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: p.space, Name: "second"}, Spec: policyv1.PodDisruptionBudgetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "overlap"}}, MinAvailable: ptr.To(intstr.FromInt32(1)),
	}}
	p.create(second)
	for _, app := range []string{"covered", "bare", "blocked", "overlap", "set"} {
		p.untilReady(app, 2)
	}
	sp := p.protect(nil)

	w := p.untilWorkload(sp, "covered", func(w infrav1.ProtectedWorkload) bool { return *w.ProtectedPods == 2 })
	require.True(t, *w.Admitted)
	require.Equal(t, "covered", w.Budget)
	w = p.untilWorkload(sp, "overlap", because(protection.ReasonOverlap))
	require.Nil(t, w.ProposedBudget)
	require.Contains(t, w.Message, "overlap, second")
	require.Zero(t, *w.ProtectedPods)
	p.untilWorkload(sp, "bare", because(protection.ReasonNoBudget))
	p.untilWorkload(sp, "blocked", because(protection.ReasonBlocked))
	until(p.world, sp, func(sp *infrav1.SpotProtection) bool {
		return *sp.Status.SelectedWorkloads == 5 && *sp.Status.AdmittedWorkloads == 1 && *sp.Status.ProtectedPods == 2 &&
			conditions.IsFalse(sp, infrav1.ConditionAdmitted) && conditions.IsTrue(sp, infrav1.ConditionSynced)
	}, "the sums")

	for _, app := range []string{"bare", "blocked", "set"} {
		w := p.untilWorkload(sp, app, func(w infrav1.ProtectedWorkload) bool { return w.ProposedBudget != nil })
		data, err := json.Marshal(w.ProposedBudget)
		require.NoError(t, err)
		u := &unstructured.Unstructured{}
		require.NoError(t, json.Unmarshal(data, &u.Object))
		require.NoError(t, p.nodes.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(u), client.FieldOwner("test"), client.ForceOwnership), string(data))
		p.untilWorkload(sp, app, because(protection.ReasonAdmitted))
	}
	require.NoError(t, p.nodes.Delete(t.Context(), second))
	p.untilWorkload(sp, "overlap", because(protection.ReasonAdmitted))
	until(p.world, sp, func(sp *infrav1.SpotProtection) bool { return conditions.IsTrue(sp, infrav1.ConditionAdmitted) }, "all are")
}

// TestKubeSpotProtectionPatch proposes what lets a workload and Karpenter's NodePools use spot
// nodes, and applies it on request only. What is in a repository is not changed.
func TestKubeSpotProtectionPatch(t *testing.T) {
	p := newProtectedWorld(t)
	onDemand := func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.NodeSelector = map[string]string{"karpenter.sh/capacity-type": "on-demand"}
		d.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Key: "x", Operator: corev1.TolerationOpExists}}
	}
	d := p.deploy("web", 2, onDemand)
	inGit := p.deploy("git", 2, func(d *appsv1.Deployment) {
		onDemand(d)
		d.Labels["kustomize.toolkit.fluxcd.io/name"] = "apps"
	})
	p.budget("web", 1)
	p.budget("git", 1)
	requirements := []any{map[string]any{"key": "karpenter.sh/capacity-type", "operator": "In", "values": []any{"on-demand"}}}
	content := func() map[string]any {
		return map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"requirements": requirements}}}}
	}
	named, other := p.karpenter("NodePool", "named", content()), p.karpenter("NodePool", "other", content())
	sp := p.protect(func(s *infrav1.SpotProtectionSpec) { s.NodePools = []string{named.GetName()} })
	p.untilWorkload(sp, "web", func(w infrav1.ProtectedWorkload) bool { return w.ProposedPatch != "" })
	until(p.world, sp, func(sp *infrav1.SpotProtection) bool { return len(sp.Status.NodePools) == 2 }, "both NodePools")
	require.NoError(t, p.nodes.Get(t.Context(), client.ObjectKeyFromObject(d), d))
	require.NotEmpty(t, d.Spec.Template.Spec.NodeSelector, "nothing is applied without a request")

	require.NoError(t, p.Patch(t.Context(), sp.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"applyPatches":true}}`))))
	p.await(d, func() bool { return len(d.Spec.Template.Spec.NodeSelector) == 0 }, "it may run on spot nodes")
	require.Len(t, d.Spec.Template.Spec.Tolerations, 1)
	p.untilWorkload(sp, "web", func(w infrav1.ProtectedWorkload) bool { return w.ProposedPatch == "" })
	p.await(named, func() bool {
		got, _, _ := unstructured.NestedSlice(named.Object, "spec", "template", "spec", "requirements")
		return len(got) == 1 && slices.Equal(got[0].(map[string]any)["values"].([]any), []any{"spot", "on-demand"})
	}, "the NodePool makes spot nodes")
	w := p.untilWorkload(sp, "git", func(w infrav1.ProtectedWorkload) bool { return w.ProposedPatch != "" })
	require.Contains(t, w.Message, "kustomize.toolkit.fluxcd.io/name")
	require.NoError(t, p.nodes.Get(t.Context(), client.ObjectKeyFromObject(inGit), inGit))
	require.NotEmpty(t, inGit.Spec.Template.Spec.NodeSelector)
	require.NoError(t, p.nodes.Get(t.Context(), client.ObjectKeyFromObject(other), other))
	got, _, _ := unstructured.NestedSlice(other.Object, "spec", "template", "spec", "requirements")
	require.Equal(t, requirements, got, "only those that are named")
}

// TestKubeSpotProtectionClaims claims a stand-by machine for each node of others that is lost
// with protected pods on it, once, and for no other: not for one that Karpenter replaces, nor
// for pods that are not protected, nor when nodes are scaled down that no cloud takes back.
func TestKubeSpotProtectionClaims(t *testing.T) {
	p := newProtectedWorld(t)
	nodes := map[string]*corev1.Node{}
	for _, name := range []string{"karpenter", "autoscaler", "claim", "event", "consolidated", "bare", "lasting"} {
		nodes[name] = p.spotNode(name)
		if name == "lasting" {
			p.patch(nodes[name], `{"metadata":{"labels":{"karpenter.sh/capacity-type":"on-demand"}}}`)
		}
		p.deploy(name, 1, func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.NodeSelector = nil
			d.Spec.Template.Spec.NodeName = nodes[name].Name
		})
		if name != "bare" {
			p.budget(name, 1)
		}
		p.untilReady(name, 1)
	}
	claimOf := func(name string, reason string) *unstructured.Unstructured {
		status := map[string]any{"nodeName": nodes[name].Name}
		if reason != "" {
			status["conditions"] = []any{map[string]any{"type": "DisruptionReason", "status": "True", "reason": reason}}
		}
		u := p.karpenter("NodeClaim", name, map[string]any{"metadata": map[string]any{"finalizers": []any{"karpenter.sh/termination"}}, "status": status})
		p.Cleanup(func() {
			_ = p.nodes.Patch(context.WithoutCancel(p.Context()), u.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
		})
		return u
	}
	deleted, consolidated := claimOf("claim", ""), claimOf("consolidated", "Underutilized")
	sp := p.protect(nil)
	p.untilWorkload(sp, "event", because(protection.ReasonAdmitted))
	require.Empty(t, p.claims())

	p.taint(nodes["consolidated"], "karpenter.sh/disrupted")
	require.NoError(t, p.nodes.Delete(t.Context(), consolidated))
	p.taint(nodes["bare"], "ToBeDeletedByClusterAutoscaler")
	p.taint(nodes["lasting"], "ToBeDeletedByClusterAutoscaler")
	p.taint(nodes["autoscaler"], "ToBeDeletedByClusterAutoscaler")
	p.taint(nodes["karpenter"], "karpenter.sh/disrupted")
	require.NoError(t, p.nodes.Delete(t.Context(), deleted))
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "interrupted-"}, InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: nodes["event"].Name},
		Type: corev1.EventTypeWarning, Reason: "SpotInterrupted", Message: "Spot interruption warning was triggered", LastTimestamp: metav1.Now(),
	}
	p.create(event)

	want := []string{nodes["autoscaler"].Name, nodes["claim"].Name, nodes["event"].Name, nodes["karpenter"].Name}
	require.Eventually(t, func() bool { return len(p.claims()) >= len(want) }, eventually, poll, "%s", lazy(p.protections))
	w := p.untilWorkload(sp, "event", func(w infrav1.ProtectedWorkload) bool { return w.LastInterruption.Node == nodes["event"].Name })
	require.Contains(t, w.LastInterruption.Reason, "SpotInterrupted")
	p.restart()
	p.touch(sp)
	until(p.world, sp, func(sp *infrav1.SpotProtection) bool { return len(sp.Status.Claims) == len(want) }, "the status has them")
	never.True(t, func() bool { return len(p.claims()) > len(want) }, time.Second, 100*time.Millisecond, "each once")
	got := p.claims()
	slices.Sort(got)
	require.Equal(t, want, got)
	for _, c := range p.claimed {
		require.Equal(t, "standby", c.GetGroup())
		require.NotEmpty(t, c.GetEventId())
		require.NotEmpty(t, c.GetReason())
		require.Equal(t, time.Hour, c.GetDuration().AsDuration())
	}
}

// TestKubeSpotProtectionOneClaim claims one machine for a node that the autoscaler removes and its
// cloud then takes back, and another one when the same node is lost again later.
func TestKubeSpotProtectionOneClaim(t *testing.T) {
	p := newProtectedWorld(t)
	n := p.spotNode("lost")
	p.deploy("web", 1, nil)
	p.budget("web", 1)
	p.untilReady("web", 1)
	sp := p.protect(nil)
	p.untilWorkload(sp, "web", because(protection.ReasonAdmitted))
	lostBecauseOf := func(cause protection.Cause) {
		p.untilWorkload(sp, "web", func(w infrav1.ProtectedWorkload) bool {
			return w.LastInterruption.EventID == string(cause)+"/"+string(n.UID)
		})
	}
	p.taint(n, "ToBeDeletedByClusterAutoscaler")
	lostBecauseOf(protection.ScaleDown)
	p.taint(n, "aws-node-termination-handler/spot-itn")
	lostBecauseOf(protection.Reclaim)
	until(p.world, sp, func(sp *infrav1.SpotProtection) bool { return len(sp.Status.Claims) > 0 }, "it is claimed")
	require.Len(t, sp.Status.Claims, 1)
	require.Equal(t, []string{n.Name}, p.claims())

	p.patch(n, `{"spec":{"taints":null}}`)
	p.touch(sp)
	until(p.world, sp, func(sp *infrav1.SpotProtection) bool { return len(sp.Status.Claims) == 0 }, "the node stays")
	require.True(t, p.gaveBack(n.Name), "%v", p.releases())
	p.taint(n, "aws-node-termination-handler/spot-itn")
	until(p.world, sp, func(sp *infrav1.SpotProtection) bool { return len(sp.Status.Claims) == 1 }, "it is claimed again")
}

// TestKubeSpotProtectionRelease releases a claim when the pods are ready on other nodes, when
// its time is over, or when the SpotProtection is deleted.
func TestKubeSpotProtectionRelease(t *testing.T) {
	lost := func(t *testing.T, change func(*infrav1.SpotProtectionSpec)) (*protectedWorld, *infrav1.SpotProtection, *corev1.Node) {
		p := newProtectedWorld(t)
		n := p.spotNode("lost")
		p.deploy("web", 2, nil)
		p.budget("web", 1)
		p.untilReady("web", 2)
		sp := p.protect(change)
		p.untilWorkload(sp, "web", because(protection.ReasonAdmitted))
		p.taint(n, "aws-node-termination-handler/spot-itn")
		require.Eventually(t, func() bool { return len(p.claims()) == 1 }, eventually, poll, "%s", lazy(p.protections))
		return p, sp, n
	}
	t.Run("pods are ready elsewhere", func(t *testing.T) {
		p, sp, n := lost(t, nil)
		p.addNode("lasting", "aws:///zone/lasting", nil)
		require.Empty(t, p.releases(), "they are on the node still")
		for _, pod := range p.podsOf("web") {
			require.NoError(t, p.nodes.Delete(t.Context(), &pod, client.GracePeriodSeconds(0)))
		}
		require.Eventually(t, func() bool { return p.gaveBack(n.Name) }, eventually, poll, "%s", lazy(p.protections))
		until(p.world, sp, func(sp *infrav1.SpotProtection) bool {
			return len(sp.Status.Claims) == 1 && !sp.Status.Claims[0].Released.IsZero() && sp.Status.Claims[0].Message == "its pods are ready on other nodes"
		}, "the status says why")
		require.Len(t, p.claims(), 1)
	})
	bridged := func(t *testing.T, change func(*appsv1.Deployment)) (*protectedWorld, *infrav1.SpotProtection, *appsv1.Deployment, *corev1.Node) {
		p := newProtectedWorld(t)
		n := p.spotNode("lost")
		d := p.deploy("web", 2, change)
		p.budget("web", 1)
		p.untilReady("web", 2)
		sp := p.protect(nil)
		p.untilWorkload(sp, "web", because(protection.ReasonAdmitted))
		p.taint(n, "aws-node-termination-handler/spot-itn")
		require.Eventually(t, func() bool { return len(p.claims()) == 1 }, eventually, poll, "%s", lazy(p.protections))
		bridge, instance := p.machine("bridge", true, 0) // one that was woken long ago would be cordoned before both pods are there
		for _, pod := range p.podsOf("web") {
			require.NoError(t, p.nodes.Delete(t.Context(), &pod, client.GracePeriodSeconds(0)))
		}
		require.Eventually(t, func() bool { return p.on("web", bridge) == 2 }, eventually, poll, "%s", lazy(p.protections))
		p.wakeAgo(instance, settled)
		require.NoError(t, p.nodes.Delete(t.Context(), n))
		return p, sp, d, n
	}
	t.Run("another node is in its place", func(t *testing.T) {
		p, sp, _, n := bridged(t, nil)
		p.touch(sp)
		never.True(t, func() bool { return len(p.releases()) > 0 }, time.Second, 50*time.Millisecond, "the pods are on the bridge")
		p.untilClaimed(sp, 1)
		p.addNode("lasting", "aws:///zone/lasting", nil)
		require.Eventually(t, func() bool { return p.gaveBack(n.Name) }, eventually, poll, "%s", lazy(p.protections))
	})
	t.Run("one node came for two that are lost", func(t *testing.T) {
		p := newProtectedWorld(t)
		lost, apps := map[string]*corev1.Node{}, []string{"one", "two"}
		for _, app := range apps {
			lost[app] = p.spotNode(app)
			p.deploy(app, 1, nil)
			p.budget(app, 1)
			p.untilReady(app, 1)
			p.patch(lost[app], `{"spec":{"unschedulable":true}}`)
		}
		sp := p.protect(nil)
		p.untilWorkload(sp, "two", because(protection.ReasonAdmitted))
		for i, app := range apps {
			p.taint(lost[app], "aws-node-termination-handler/spot-itn")
			p.untilClaimed(sp, i+1)
		}
		bridge, _ := p.machine("bridge", true, settled)
		for _, app := range apps {
			for _, pod := range p.podsOf(app) {
				require.NoError(t, p.nodes.Delete(t.Context(), &pod, client.GracePeriodSeconds(0)))
			}
			p.untilOn(app, bridge, 1)
			require.NoError(t, p.nodes.Delete(t.Context(), lost[app]))
		}
		p.addNode("lasting", "aws:///zone/lasting", nil)
		require.Eventually(t, func() bool { return p.gaveBack(lost["one"].Name) }, eventually, poll, "%s", lazy(p.protections))
		never.True(t, func() bool {
			p.touch(sp)
			return slices.Contains(p.releases(), lost["two"].Name)
		}, 2*time.Second, 200*time.Millisecond, "the node is in the place of the first")
		p.addNode("second", "aws:///zone/second", nil)
		require.Eventually(t, func() bool { return slices.Contains(p.releases(), lost["two"].Name) }, eventually, poll, "%s", lazy(p.protections))
	})
	t.Run("pods are handed off", func(t *testing.T) {
		p, sp, d, n := bridged(t, handedOff)
		p.untilReplicas(d, 4)
		lasting := p.addNode("lasting", "aws:///zone/lasting", nil)
		require.Eventually(t, func() bool { return p.gaveBack(n.Name) }, eventually, poll, "%s", lazy(p.protections))
		require.Equal(t, 2, p.on("web", lasting), "not before")
		p.settledHandOff(d, 2)
		until(p.world, sp, func(sp *infrav1.SpotProtection) bool {
			return len(sp.Status.Claims) == 1 && sp.Status.Claims[0].Message == "its pods are ready on other nodes"
		}, "the status says why")
	})
	t.Run("time is over", func(t *testing.T) {
		p, _, n := lost(t, func(s *infrav1.SpotProtectionSpec) { s.Standby.Duration = &metav1.Duration{Duration: 2 * time.Second} })
		require.Eventually(t, func() bool { return p.gaveBack(n.Name) }, eventually, poll, "%s", lazy(p.protections))
		require.Len(t, p.claims(), 1, "not claimed again for the same event")
	})
	t.Run("another group is to stand by", func(t *testing.T) {
		p, sp, n := lost(t, nil)
		require.NoError(t, p.Patch(t.Context(), sp.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"standby":{"group":"reserve"}}}`))))
		require.Eventually(t, func() bool { return p.gaveBack(n.Name) }, eventually, poll, "%s", lazy(p.protections))
		require.Equal(t, []string{n.Name, n.Name}, p.claims())
		p.mu.Lock()
		defer p.mu.Unlock()
		require.Equal(t, []string{"standby", "reserve", "standby"}, []string{p.claimed[0].GetGroup(), p.claimed[1].GetGroup(), p.released[0].GetGroup()})
	})
	t.Run("SpotProtection is deleted before the claim is answered", func(t *testing.T) {
		p := newProtectedWorld(t)
		p.mu.Lock()
		p.lost = true
		p.mu.Unlock()
		n := p.spotNode("lost")
		p.deploy("web", 2, nil)
		p.budget("web", 1)
		p.untilReady("web", 2)
		sp := p.protect(nil)
		p.untilWorkload(sp, "web", because(protection.ReasonAdmitted))
		p.taint(n, "aws-node-termination-handler/spot-itn")
		require.Eventually(t, func() bool { return len(p.claims()) == 1 }, eventually, poll, "%s", lazy(p.protections))
		require.NoError(t, p.Delete(t.Context(), sp))
		p.untilGone(sp)
		require.True(t, p.gaveBack(n.Name), "%v", p.releases())
	})
	t.Run("SpotProtection is deleted", func(t *testing.T) {
		p, sp, n := lost(t, nil)
		require.NoError(t, p.Delete(t.Context(), sp))
		p.untilGone(sp)
		require.True(t, p.gaveBack(n.Name), "%v", p.releases())
	})
}

// TestKubeSpotProtectionSharedNode keeps the stand-by machine for a node for as long as one of two
// SpotProtections needs it, whichever is done first, and releases it once both are.
func TestKubeSpotProtectionSharedNode(t *testing.T) {
	share := func(t *testing.T) (*protectedWorld, map[string]*infrav1.SpotProtection, *corev1.Node) {
		p := newProtectedWorld(t)
		n, sps := p.spotNode("lost"), map[string]*infrav1.SpotProtection{}
		for _, app := range []string{"one", "two"} {
			p.deploy(app, 1, nil)
			p.budget(app, 1)
			p.untilReady(app, 1)
			sps[app] = &infrav1.SpotProtection{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: app}, Spec: infrav1.SpotProtectionSpec{
				ClusterName: "c", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}, Namespaces: []string{p.space}, Standby: infrav1.StandbyReference{Group: "standby"},
			}}
			require.NoError(t, p.Create(t.Context(), sps[app]))
			p.untilWorkload(sps[app], app, because(protection.ReasonAdmitted))
		}
		p.taint(n, "aws-node-termination-handler/spot-itn")
		for _, sp := range sps {
			until(p.world, sp, func(sp *infrav1.SpotProtection) bool {
				return len(sp.Status.Claims) == 1 && !sp.Status.Claims[0].Until.IsZero()
			}, "it is claimed")
		}
		p.addNode("lasting", "aws:///zone/lasting", nil)
		return p, sps, n
	}
	moved := func(p *protectedWorld, app string) {
		for _, pod := range p.podsOf(app) {
			require.NoError(t, p.nodes.Delete(t.Context(), &pod, client.GracePeriodSeconds(0)))
		}
	}
	ended := func(sp *infrav1.SpotProtection) bool { return !sp.Status.Claims[0].Released.IsZero() }
	waits := func(sp *infrav1.SpotProtection) bool {
		return sp.Status.Claims[0].Message == "not needed any more: waits for SpotProtection one, which has claimed the same stand-by machine"
	}
	for first, c := range map[string]struct {
		second string
		done   func(*infrav1.SpotProtection) bool // of the first
	}{"one": {"two", ended}, "two": {"one", waits}} {
		t.Run(first+" is done first", func(t *testing.T) {
			p, sps, n := share(t)
			moved(p, first)
			until(p.world, sps[first], c.done, "its pods are ready elsewhere")
			require.Empty(t, p.releases(), "pods of the other are on the lost node")
			moved(p, c.second)
			for _, sp := range sps {
				until(p.world, sp, ended, "all pods are ready elsewhere")
			}
			require.True(t, p.gaveBack(n.Name), "%v", p.releases())
		})
	}
	t.Run("one is deleted", func(t *testing.T) {
		p, sps, n := share(t)
		require.NoError(t, p.Delete(t.Context(), sps["one"]))
		p.untilGone(sps["one"])
		require.Empty(t, p.releases(), "the other needs it")
		require.NoError(t, p.Delete(t.Context(), sps["two"]))
		p.untilGone(sps["two"])
		require.True(t, p.gaveBack(n.Name), "%v", p.releases())
	})
}

// TestKubeSpotProtectionMistakes has the status say what is wrong, and what to do.
func TestKubeSpotProtectionMistakes(t *testing.T) {
	p := newProtectedWorld(t)
	n := p.spotNode("n")
	p.deploy("web", 1, nil)
	p.budget("web", 1)
	p.untilReady("web", 1)
	sp := p.protect(func(s *infrav1.SpotProtectionSpec) { s.Standby.Group = "nowhere" })
	p.untilWorkload(sp, "web", because(protection.ReasonAdmitted))
	p.taint(n, "ToBeDeletedByClusterAutoscaler")
	until(p.world, sp, func(sp *infrav1.SpotProtection) bool {
		for _, c := range sp.Status.Conditions {
			if c.Type == infrav1.ConditionSynced && c.Message == "spec.standby.group: no shard of the cluster has group nowhere (name a group with a warm pool, or add it to a shard's configuration)" {
				return true
			}
		}
		return false
	}, "no such group")
}

// TestKubeSpotProtectionShard has a real shard wake a stand-by machine for a node of others.
// The pods run there until there is another node, and the machine goes back.
func TestKubeSpotProtectionShard(t *testing.T) {
	w := newWorkloadWorld(t)
	w.kubeconfig()
	a := w.shards.Start("a", 0)
	w.kubelets(a)
	w.nonce(w.shards.OperatorNonce())
	w.start()
	nc := w.cluster(a)
	until(w, nc, func(nc *infrav1.NstanceCluster) bool {
		return isTrue(nc, infrav1.ConditionShardsConnected) && isTrue(nc, infrav1.ConditionNodesReached)
	}, "shards and nodes are reached")
	sg := w.shardGroup("standby", 0, func(s *infrav1.NstanceShardGroupSpec) { s.Template = "vm" })
	until(w, sg, ready(0), "the group is there")
	a.SetWarmPool("standby", &apiv1.WarmPool{Size: 1, Mode: string(nstance.ParkRunning)})
	p := &protectedWorld{space: w.workload.Namespace(t), standInShard: &standInShard{world: w}}

	require.Eventually(t, func() bool { return len(a.Cloud.Machines()) == 1 }, eventually, poll)
	bridge := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: string(a.Cloud.Machines()[0].ID)}}
	cordoned := func(want bool) func(*corev1.Node) bool {
		return func(n *corev1.Node) bool { return n.Spec.Unschedulable == want }
	}
	p.untilNode(bridge, cordoned(true), "it waits")
	inState := func(state nstance.State) func() bool {
		return func() bool { i := a.Instances(); return len(i) == 1 && i[0].GetState() == string(state) }
	}
	parked := lazy(func() string { return fmt.Sprint(a.Instances()) })
	require.Eventually(t, inState(nstance.Parked), eventually, poll, "it is parked: %s", parked)
	p.patch(bridge, `{"metadata":{"labels":{"test.nstance.dev/world":%q}}}`, p.space)
	lost := p.spotNode("lost")
	p.deploy("web", 2, nil)
	p.budget("web", 1)
	p.untilReady("web", 2)
	require.Equal(t, 2, p.on("web", lost))
	sp := p.protect(nil)
	p.untilWorkload(sp, "web", because(protection.ReasonAdmitted))

	p.taint(lost, "aws-node-termination-handler/spot-itn")
	require.Eventually(t, func() bool {
		i := a.Instances()
		return i[0].GetWokenAt() != nil && i[0].GetState() == string(nstance.Ready)
	}, eventually, poll, "it is woken: %s", parked)
	p.untilNode(bridge, cordoned(false), "it is woken")
	for _, pod := range p.podsOf("web") {
		require.NoError(t, p.nodes.Delete(t.Context(), &pod, client.GracePeriodSeconds(0)))
	}
	p.untilOn("web", bridge, 2)
	require.NoError(t, p.nodes.Delete(t.Context(), lost))
	require.NoError(t, p.Get(t.Context(), client.ObjectKeyFromObject(sp), sp))
	require.Zero(t, sp.Status.Claims[0].Released)
	until(p.world, sp, func(sp *infrav1.SpotProtection) bool {
		return time.Since(sp.Status.Claims[0].Time.Time) > 2*time.Second
	}, "times are in seconds")
	lasting := p.addNode("lasting", "aws:///zone/lasting", nil)
	p.untilOn("web", lasting, 2)
	p.untilNode(bridge, cordoned(true), "it waits again")
	require.Eventually(t, inState(nstance.Parked), eventually, poll, "it is parked: %s", parked)
	until(p.world, sp, func(sp *infrav1.SpotProtection) bool {
		return sp.Status.Claims[0].Message == "there is another node in its place"
	}, "the status says why")
	require.Len(t, a.Cloud.Machines(), 1)
}
