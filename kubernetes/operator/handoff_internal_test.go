package operator

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/internal/protection"
)

// A oneDeployment is a cluster with one Deployment, its pods and some Nodes, and a namespace
// with SpotProtections.
type oneDeployment struct {
	client.Client
	deployment  *appsv1.Deployment // nil: it is deleted
	pods        []corev1.Pod
	nodes       []corev1.Node
	protections []infrav1.SpotProtection
	refuse      error // of each patch; nil: it is accepted
}

func (o *oneDeployment) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	if o.deployment == nil {
		return apierrors.NewNotFound(schema.GroupResource{Group: "apps", Resource: "deployments"}, "web")
	}
	o.deployment.DeepCopyInto(obj.(*appsv1.Deployment))
	return nil
}

func (o *oneDeployment) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	switch l := list.(type) {
	case *corev1.PodList:
		for i := range o.pods {
			l.Items = append(l.Items, *o.pods[i].DeepCopy())
		}
	case *appsv1.DeploymentList:
		if o.deployment != nil && o.deployment.Labels[labelSurge] != "" {
			l.Items = []appsv1.Deployment{*o.deployment}
		}
	case *corev1.NodeList:
		l.Items = o.nodes
	case *infrav1.SpotProtectionList:
		l.Items = o.protections
	}
	return nil
}

func (o *oneDeployment) Patch(_ context.Context, obj client.Object, _ client.Patch, _ ...client.PatchOption) error {
	switch changed := obj.(type) {
	case *appsv1.Deployment:
		if o.refuse == nil {
			o.deployment = changed
		}
	case *corev1.Node:
		for i := range o.nodes {
			if o.refuse == nil && o.nodes[i].Name == changed.Name {
				o.nodes[i] = *changed
			}
		}
	case *corev1.Pod:
		if o.refuse == nil {
			o.pods = []corev1.Pod{*changed}
		}
	}
	return o.refuse
}

// surged is a Deployment in the middle of a surge from 2 to 4 replicas, whose one pod is to
// leave, and a SpotProtection that does not select it any more.
func surged() (*oneDeployment, *infrav1.SpotProtection) {
	web := map[string]string{"app": "web", appsv1.DefaultDeploymentUniqueLabelKey: "1"}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", Annotations: map[string]string{
		protection.AnnotationSurge: `{"added":2,"replicas":4,"since":"2026-01-02T03:04:05Z"}`,
	}}}
	d.Spec.Replicas, d.Spec.Selector = ptr.To[int32](4), &metav1.LabelSelector{MatchLabels: web}
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-1-a", Labels: web, Annotations: map[string]string{corev1.PodDeletionCost: protection.DeletionCost}}}
	pod.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web-1", Controller: ptr.To(true)}}
	sp := &infrav1.SpotProtection{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: infrav1.SpotProtectionSpec{ClusterName: "c"}}
	sp.Status.Workloads = []infrav1.ProtectedWorkload{{
		Kind: infrav1.KindDeployment, Namespace: "ns", Name: "web", HandOff: infrav1.HandOffSurge, Admitted: ptr.To(true),
	}}
	return &oneDeployment{deployment: d, pods: []corev1.Pod{pod}}, sp
}

// oneNode is a cluster with one Node, and without evictions.
type oneNode struct {
	client.Client
	uid types.UID
}

func (o oneNode) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	obj.SetName(key.Name)
	obj.SetUID(o.uid)
	return nil
}

// TestEvictReusedName: pods of a node whose name another one has by now are not evicted.
func TestEvictReusedName(t *testing.T) {
	known := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "ip-10-0-0-4", UID: "old"}}
	pods := []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.PodSpec{NodeName: known.Name}}, {ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: corev1.PodSpec{NodeName: known.Name}}}
	s := &survey{objects: oneNode{uid: "new"}, nodes: map[string]*surveyedNode{known.Name: {Node: known}}}
	require.NoError(t, s.evict(t.Context(), pods))
	s.objects = oneNode{uid: "old"}
	require.Panics(t, func() { _ = s.evict(t.Context(), pods) }, "those of the same node are")
	s.objects = &oneDeployment{} // which has no Node
	require.NoError(t, s.evict(t.Context(), pods), "nor those of one that is gone")
}

// evictedNode is a node whose pods are asked to leave. Each eviction is answered by the pod's name.
type evictedNode struct {
	oneNode
	answers map[string]error
	asked   []string
}

func (e *evictedNode) SubResource(string) client.SubResourceClient { return evictions{of: e} }

type evictions struct {
	client.SubResourceClient
	of *evictedNode
}

func (e evictions) Create(_ context.Context, pod, eviction client.Object, _ ...client.SubResourceCreateOption) error {
	if o := eviction.(*policyv1.Eviction).DeleteOptions; o == nil || o.Preconditions == nil || *o.Preconditions.UID != pod.GetUID() {
		return errors.New("another pod may have its name by now")
	}
	e.of.asked = append(e.of.asked, pod.GetName())
	return e.of.answers[pod.GetName()]
}

// TestEvictPastFailures: a pod that cannot be evicted keeps no other from it, unless it is its budget
// that refuses, which the others have too.
func TestEvictPastFailures(t *testing.T) {
	known := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "n"}}
	var pods []corev1.Pod
	for _, name := range []string{"a", "b", "c"} {
		pods = append(pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{NodeName: known.Name}})
	}
	refused := apierrors.NewForbidden(corev1.Resource("pods"), "a", nil)
	e := &evictedNode{oneNode: oneNode{uid: "n"}, answers: map[string]error{"a": refused}}
	s := &survey{objects: e, nodes: map[string]*surveyedNode{known.Name: {Node: known}}}
	require.ErrorIs(t, s.evict(t.Context(), pods), refused)
	require.Equal(t, []string{"a", "b", "c"}, e.asked)

	e.asked, e.answers["b"] = nil, apierrors.NewTooManyRequests("its budget", 0)
	require.ErrorIs(t, s.evict(t.Context(), pods), refused)
	require.Equal(t, []string{"a", "b"}, e.asked)
}

// TestSurgeWaitsForCordon: new pods of a surge would go to the node that the others leave, for as
// long as that is open.
func TestSurgeWaitsForCordon(t *testing.T) {
	cluster, _ := surged()
	d, pod := cluster.deployment, &cluster.pods[0]
	d.Annotations, d.Spec.Replicas, d.Status.Replicas = map[string]string{infrav1.AnnotationHandOff: "true"}, ptr.To[int32](1), 1
	pod.Spec.NodeName, pod.Status.Phase = "bridge", corev1.PodRunning
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "bridge"}}
	woken := &apiv1.Instance{Standby: true, WokenAt: timestamppb.New(time.Now().Add(-2 * protection.Interval))}
	pass := func() {
		n := &surveyedNode{Node: node, instance: woken}
		s := &survey{objects: cluster, now: time.Now(), nodes: map[string]*surveyedNode{"bridge": n}}
		w := &surveyedWorkload{Workload: protection.DeploymentWorkload(cluster.deployment), pods: cluster.pods}
		w.Settled = true
		require.NoError(t, s.handOffWorkload(t.Context(), w))
		require.True(t, s.busy)
		node = n.Node
	}
	cluster.refuse = apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, "bridge", nil)
	pass()
	cluster.refuse = nil
	pass()
	require.EqualValues(t, 1, *cluster.deployment.Spec.Replicas)
	require.True(t, node.Spec.Unschedulable, "by this pass")
	pass()
	require.EqualValues(t, 2, *cluster.deployment.Spec.Replicas)
}

// TestEndUnselected tries to end the hand-off of a workload that is not selected any more until
// nothing of it is left.
func TestEndUnselected(t *testing.T) {
	pass := func(cluster *oneDeployment, sp *infrav1.SpotProtection) error {
		s := &survey{sp: sp, objects: cluster, now: time.Now()}
		err := (&protectionController{uncached: cluster}).endUnselected(t.Context(), s)
		s.show()
		require.Equal(t, len(sp.Status.Workloads) > 0, s.busy, "another pass comes soon")
		return err
	}
	deployments := schema.GroupResource{Group: "apps", Resource: "deployments"}
	for name, refusal := range map[string]error{
		"others have changed it":  apierrors.NewConflict(deployments, "web", nil),
		"the server is not there": apierrors.NewServiceUnavailable("try again"),
	} {
		t.Run(name, func(t *testing.T) {
			cluster, sp := surged()
			cluster.refuse = refusal
			require.Equal(t, !apierrors.IsConflict(refusal), pass(cluster, sp) != nil)
			require.EqualValues(t, 4, *cluster.deployment.Spec.Replicas)
			require.Len(t, sp.Status.Workloads, 1, "the next pass knows of it")
			require.False(t, *sp.Status.Workloads[0].Admitted)
			require.Zero(t, *sp.Status.SelectedWorkloads)

			cluster.refuse = nil
			require.NoError(t, pass(cluster, sp))
			require.EqualValues(t, 2, *cluster.deployment.Spec.Replicas)
			require.NotContains(t, cluster.deployment.Annotations, protection.AnnotationSurge)
			require.NotContains(t, cluster.pods[0].Annotations, corev1.PodDeletionCost)
			require.NoError(t, pass(cluster, sp))
			require.Empty(t, sp.Status.Workloads, "nothing is left")
		})
	}
	for name, c := range map[string]struct {
		change func(*oneDeployment)
		ended  bool // at the first pass
	}{
		"only the record is left":    {func(o *oneDeployment) { o.pods = nil }, false},
		"only the costs of pods are": {func(o *oneDeployment) { o.deployment.Annotations = nil }, false},
		"nothing is left":            {func(o *oneDeployment) { o.deployment.Annotations, o.pods = nil, nil }, true},
		"the Deployment is deleted":  {func(o *oneDeployment) { o.deployment, o.pods = nil, nil }, true},
	} {
		t.Run(name, func(t *testing.T) {
			cluster, sp := surged()
			c.change(cluster)
			require.NoError(t, pass(cluster, sp))
			require.Equal(t, c.ended, len(sp.Status.Workloads) == 0)
			require.NoError(t, pass(cluster, sp))
			require.Empty(t, sp.Status.Workloads)
			for _, pod := range cluster.pods {
				require.NotContains(t, pod.Annotations, corev1.PodDeletionCost)
			}
		})
	}
	for name, change := range map[string]func(*infrav1.ProtectedWorkload){
		"a StatefulSet of its name": func(w *infrav1.ProtectedWorkload) {
			w.Kind, w.HandOff = infrav1.KindStatefulSet, infrav1.HandOffEviction
		},
		"it was not handed off": func(w *infrav1.ProtectedWorkload) { w.HandOff = "" }, // a drain surges it
	} {
		t.Run(name, func(t *testing.T) {
			cluster, sp := surged()
			change(&sp.Status.Workloads[0])
			require.NoError(t, pass(cluster, sp))
			require.EqualValues(t, 4, *cluster.deployment.Spec.Replicas)
			require.Empty(t, sp.Status.Workloads)
		})
	}
	t.Run("another SpotProtection hands it off now", func(t *testing.T) {
		cluster, sp := surged()
		other := sp.DeepCopy()
		other.Name = "q"
		cluster.protections = []infrav1.SpotProtection{*sp, *other}
		require.NoError(t, pass(cluster, sp))
		require.EqualValues(t, 4, *cluster.deployment.Spec.Replicas)
		require.Empty(t, sp.Status.Workloads)
	})
	t.Run("a full status", func(t *testing.T) {
		_, sp := surged()
		s := &survey{sp: sp, ending: sp.Status.Workloads}
		for range maxWorkloads {
			s.workloads = append(s.workloads, &surveyedWorkload{status: infrav1.ProtectedWorkload{Admitted: ptr.To(true), ProtectedPods: ptr.To[int32](0)}})
		}
		s.show()
		require.Len(t, sp.Status.Workloads, maxWorkloads)
		require.Equal(t, "web", sp.Status.Workloads[maxWorkloads-1].Name)
	})
}

// TestHandsOff: pods are handed off in the first half of a drain that has time enough, and for a
// while in one without a deadline.
func TestHandsOff(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		whole, passed time.Duration
		involuntary   bool
		want          bool
	}{
		{whole: handOffTime - 1},
		{whole: handOffTime, want: true},
		{whole: handOffTime, passed: handOffTime/2 - 1, want: true},
		{whole: handOffTime, passed: handOffTime / 2},
		{whole: handOffTime, involuntary: true},
		{whole: nstance.UnlimitedDrain, passed: handOffTime - 1, want: true},
		{whole: nstance.UnlimitedDrain, passed: handOffTime},
	} {
		d := nstance.Drain{StartedAt: now.Add(-c.passed), Deadline: now.Add(c.whole - c.passed), Voluntary: !c.involuntary}
		require.Equal(t, c.want, handsOff(d, now), "%+v", c)
	}
}

// TestHandOffEnds: what a surge did is taken back when the workload is not protected any more, does not
// ask to be handed off, or has its pods evicted. A StatefulSet's pods have no use of deletion costs.
func TestHandOffEnds(t *testing.T) {
	for name, c := range map[string]struct {
		change   func(*appsv1.Deployment, *surveyedWorkload)
		replicas int32
		method   infrav1.HandOffMethod
	}{
		"it goes on":                 {func(*appsv1.Deployment, *surveyedWorkload) {}, 4, infrav1.HandOffSurge},
		"not admitted":               {func(_ *appsv1.Deployment, w *surveyedWorkload) { w.admission = protection.Admission{} }, 2, ""},
		"not asked for":              {func(d *appsv1.Deployment, _ *surveyedWorkload) { delete(d.Annotations, infrav1.AnnotationHandOff) }, 2, ""},
		"a GitOps controller has it": {func(d *appsv1.Deployment, _ *surveyedWorkload) { d.Annotations["argocd.argoproj.io/tracking-id"] = "x" }, 2, infrav1.HandOffEviction},
	} {
		t.Run(name, func(t *testing.T) {
			s, cluster := leavingSurvey()
			cluster.deployment.Annotations[infrav1.AnnotationHandOff] = "true"
			w := &surveyedWorkload{Workload: protection.DeploymentWorkload(cluster.deployment), pods: cluster.pods, admission: protection.Admission{Reason: protection.ReasonAdmitted}}
			s.workloads = []*surveyedWorkload{w}
			c.change(cluster.deployment, w)
			require.NoError(t, (&protectionController{uncached: cluster}).handOff(t.Context(), s))
			require.Equal(t, c.replicas, *cluster.deployment.Spec.Replicas)
			require.Equal(t, c.method, w.status.HandOff)
			require.Equal(t, c.replicas == 4, w.status.Surged != nil)
		})
	}
	s, cluster := leavingSurvey()
	cluster.pods[0].Annotations = nil
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", Annotations: map[string]string{infrav1.AnnotationHandOff: "true"}}}
	w := &surveyedWorkload{Workload: protection.StatefulSetWorkload(set), pods: cluster.pods, admission: protection.Admission{Reason: protection.ReasonAdmitted}}
	s.workloads = []*surveyedWorkload{w}
	require.NoError(t, (&protectionController{uncached: cluster}).handOff(t.Context(), s))
	require.Equal(t, infrav1.HandOffEviction, w.status.HandOff)
	require.Empty(t, cluster.pods[0].Annotations)
}

// leavingSurvey is of a surged Deployment, whose one pod is on a node that is drained with time enough.
func leavingSurvey() (*survey, *oneDeployment) {
	cluster, sp := surged()
	sp.Status.Workloads = nil
	cluster.pods[0].Spec.NodeName = "n"
	s := &survey{sp: sp, objects: cluster, now: time.Now(), nodes: map[string]*surveyedNode{}}
	s.with("n", &apiv1.Instance{Drain: &apiv1.Drain{
		Voluntary: true, Executor: string(nstance.ExecutorOperator), StartedAt: timestamppb.New(s.now), Deadline: timestamppb.New(s.now.Add(time.Hour)),
	}}).Spec.Unschedulable = true
	return s, cluster
}

// TestScalerOfWorkload: an autoscaler of a namespace is a workload's by kind and name.
func TestScalerOfWorkload(t *testing.T) {
	w := &surveyedWorkload{Workload: protection.DeploymentWorkload(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}})}
	for _, target := range []autoscalingv2.CrossVersionObjectReference{{Kind: "StatefulSet", Name: "web"}, {Kind: "Deployment", Name: "api"}, {Kind: "Deployment", Name: "web"}} {
		require.Nil(t, w.scaler())
		w.scalers = append(w.scalers, autoscalingv2.HorizontalPodAutoscaler{Spec: autoscalingv2.HorizontalPodAutoscalerSpec{ScaleTargetRef: target}})
	}
	require.Same(t, &w.scalers[2], w.scaler())
}

// TestCordonsOpenBridges: a node that others have cordoned gets no mark: its next waking would undo that.
func TestCordonsOpenBridges(t *testing.T) {
	for _, cordoned := range []bool{false, true} {
		s := claiming()
		s.objects = &recorder{}
		n := s.bridgeSince("b", time.Minute)
		n.Spec.Unschedulable = cordoned
		require.NoError(t, s.cordonBridges(t.Context(), workloadProgress{evictable: []corev1.Pod{on("b", true, nil)}}))
		require.True(t, n.Spec.Unschedulable)
		require.Equal(t, cordoned, n.Annotations[annotationBridgeCordon] == "")
	}
}

// TestEndsAllCordons: the end of a SpotProtection uncordons what a hand-off has cordoned, as the API
// server has it. Cordons of others stay, and one of a drain that has not begun at its node.
func TestEndsAllCordons(t *testing.T) {
	s, cluster := leavingSurvey()
	for _, name := range []string{"ours", "drained", "others"} {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "7", Annotations: map[string]string{annotationBridgeCordon: "w"}}}
		n.Spec.Unschedulable = true
		cluster.nodes = append(cluster.nodes, n)
	}
	delete(cluster.nodes[2].Annotations, annotationBridgeCordon)
	s.with("drained", &apiv1.Instance{Drain: &apiv1.Drain{Executor: string(nstance.ExecutorOperator)}})
	require.NoError(t, (&protectionController{uncached: cluster}).endHandOffs(t.Context(), s))
	var cordoned []string
	for _, n := range cluster.nodes {
		if n.Spec.Unschedulable {
			cordoned = append(cordoned, n.Name)
		}
	}
	require.Equal(t, []string{"drained", "others"}, cordoned)
}
