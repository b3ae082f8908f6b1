package protection_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/internal/protection"
)

var web = map[string]string{"app": "web"}

// deployment is a Deployment of pods with the label app=web.
func deployment(replicas int32, change ...func(*appsv1.Deployment)) *protection.Workload {
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", Annotations: map[string]string{}, Labels: map[string]string{}},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: web},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web", "tier": "front"}}},
		},
	}
	for _, f := range change {
		f(d)
	}
	w := protection.DeploymentWorkload(d)
	return &w
}

func statefulSet(replicas int32) *protection.Workload {
	w := protection.StatefulSetWorkload(&appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: web},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: web}},
		},
	})
	return &w
}

func budget(name string, selector *metav1.LabelSelector, minAvailable, maxUnavailable string) policyv1.PodDisruptionBudget {
	b := policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: selector}}
	if minAvailable != "" {
		b.Spec.MinAvailable = ptr.To(intstr.Parse(minAvailable))
	}
	if maxUnavailable != "" {
		b.Spec.MaxUnavailable = ptr.To(intstr.Parse(maxUnavailable))
	}
	return b
}

func labelled(kv ...string) *metav1.LabelSelector {
	s := &metav1.LabelSelector{MatchLabels: map[string]string{}}
	for i := 0; i < len(kv); i += 2 {
		s.MatchLabels[kv[i]] = kv[i+1]
	}
	return s
}

func pods(labels ...map[string]string) (out []corev1.Pod) {
	for _, l := range labels {
		out = append(out, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Labels: l}})
	}
	return out
}

func TestAdmit(t *testing.T) {
	front, old := map[string]string{"app": "web", "tier": "front"}, map[string]string{"app": "web"}
	elsewhere := budget("b", labelled("app", "web"), "", "1")
	elsewhere.Namespace = "other"
	uncomputed := budget("b", labelled("app", "web"), "", "1")
	uncomputed.Status.Conditions = []metav1.Condition{{Type: policyv1.DisruptionAllowedCondition, Reason: policyv1.SyncFailedReason, Message: "no scale"}}
	wide := budget("b", &metav1.LabelSelector{}, "2", "")
	wide.Status.ExpectedPods = 5
	changed := *wide.DeepCopy()
	changed.Generation, changed.Status.ObservedGeneration = 2, 1
	deleted := budget("b", labelled("app", "web"), "", "1")
	deleted.DeletionTimestamp = &metav1.Time{Time: now}
	ended := pods(front, old)
	ended[1].Status.Phase = corev1.PodFailed
	terminating := pods(front, old)
	terminating[1].DeletionTimestamp = &metav1.Time{Time: now}
	for name, c := range map[string]struct {
		w       *protection.Workload
		budgets []policyv1.PodDisruptionBudget
		pods    []corev1.Pod
		want    string
	}{
		"a budget that allows one":                {deployment(2), []policyv1.PodDisruptionBudget{budget("b", labelled("app", "web"), "1", "")}, pods(front, front), protection.ReasonAdmitted},
		"no budget":                               {deployment(2), nil, nil, protection.ReasonNoBudget},
		"one for other pods":                      {deployment(2), []policyv1.PodDisruptionBudget{budget("b", labelled("app", "db"), "", "1")}, pods(front), protection.ReasonNoBudget},
		"one of another namespace":                {deployment(2), []policyv1.PodDisruptionBudget{elsewhere}, pods(front), protection.ReasonNoBudget},
		"one without selector selects nothing":    {deployment(2), []policyv1.PodDisruptionBudget{budget("b", nil, "", "1")}, pods(front), protection.ReasonNoBudget},
		"an empty selector selects all":           {deployment(2), []policyv1.PodDisruptionBudget{budget("b", &metav1.LabelSelector{}, "", "1")}, pods(front), protection.ReasonAdmitted},
		"two budgets":                             {deployment(2), []policyv1.PodDisruptionBudget{budget("a", labelled("app", "web"), "", "1"), budget("b", labelled("tier", "front"), "", "1")}, pods(front), protection.ReasonOverlap},
		"two budgets, for some pods each":         {deployment(2), []policyv1.PodDisruptionBudget{budget("a", labelled("tier", "front"), "", "1"), budget("b", labelled("tier", "old"), "", "1")}, pods(front, map[string]string{"app": "web", "tier": "old"}), protection.ReasonOverlap},
		"one that misses older pods":              {deployment(2), []policyv1.PodDisruptionBudget{budget("b", labelled("tier", "front"), "", "1")}, pods(front, old), protection.ReasonPartial},
		"one that misses newer pods":              {deployment(2), []policyv1.PodDisruptionBudget{budget("b", labelled("tier", "old"), "", "1")}, pods(map[string]string{"app": "web", "tier": "old"}), protection.ReasonPartial},
		"maxUnavailable 0":                        {deployment(2), []policyv1.PodDisruptionBudget{budget("b", labelled("app", "web"), "", "0")}, pods(front), protection.ReasonBlocked},
		"minAvailable as many as replicas":        {deployment(2), []policyv1.PodDisruptionBudget{budget("b", labelled("app", "web"), "2", "")}, pods(front), protection.ReasonBlocked},
		"minAvailable 90% of three":               {deployment(3), []policyv1.PodDisruptionBudget{budget("b", labelled("app", "web"), "90%", "")}, pods(front), protection.ReasonBlocked},
		"minAvailable 90% of ten":                 {deployment(10), []policyv1.PodDisruptionBudget{budget("b", labelled("app", "web"), "90%", "")}, pods(front), protection.ReasonAdmitted},
		"maxUnavailable 10% of three":             {deployment(3), []policyv1.PodDisruptionBudget{budget("b", labelled("app", "web"), "", "10%")}, pods(front), protection.ReasonAdmitted},
		"neither: one must be available":          {deployment(1), []policyv1.PodDisruptionBudget{budget("b", labelled("app", "web"), "", "")}, pods(front), protection.ReasonBlocked},
		"a single replica that may be missing":    {deployment(1), []policyv1.PodDisruptionBudget{budget("b", labelled("app", "web"), "", "1")}, pods(front), protection.ReasonAdmitted},
		"one for several workloads":               {deployment(1), []policyv1.PodDisruptionBudget{wide}, pods(front), protection.ReasonAdmitted},
		"one that counted for an earlier spec":    {deployment(1), []policyv1.PodDisruptionBudget{changed}, pods(front), protection.ReasonBlocked},
		"one that is being deleted":               {deployment(2), []policyv1.PodDisruptionBudget{deleted}, pods(front), protection.ReasonNoBudget},
		"one that misses a pod that has failed":   {deployment(2), []policyv1.PodDisruptionBudget{budget("b", labelled("tier", "front"), "", "1")}, ended, protection.ReasonAdmitted},
		"one that misses a pod that is going":     {deployment(2), []policyv1.PodDisruptionBudget{budget("b", labelled("tier", "front"), "", "1")}, terminating, protection.ReasonAdmitted},
		"one that is not computed":                {deployment(2), []policyv1.PodDisruptionBudget{uncomputed}, pods(front), protection.ReasonUnsupported},
		"a StatefulSet":                           {statefulSet(3), []policyv1.PodDisruptionBudget{budget("b", labelled("app", "web"), "2", "")}, pods(old), protection.ReasonAdmitted},
		"an unhealthy moment does not end it":     {deployment(2), []policyv1.PodDisruptionBudget{budget("b", labelled("app", "web"), "1", "")}, pods(front), protection.ReasonAdmitted},
		"no replicas and one that may be missing": {deployment(0), []policyv1.PodDisruptionBudget{budget("b", labelled("app", "web"), "", "1")}, nil, protection.ReasonAdmitted},
	} {
		t.Run(name, func(t *testing.T) {
			a := protection.Admit(c.w, c.budgets, c.pods)
			require.Equal(t, c.want, a.Reason, a.Message)
			require.Equal(t, c.want == protection.ReasonAdmitted, a.Admitted())
			require.Equal(t, c.want == protection.ReasonAdmitted, a.Message == "", "else it says what to do")
			if a.Proposal != nil {
				requireAdmits(t, c.w, c.budgets, c.pods, a.Proposal)
			}
			require.Equal(t, c.want == protection.ReasonNoBudget || c.want == protection.ReasonBlocked, a.Proposal != nil)
		})
	}
}

// requireAdmits: applied, a proposal admits the workload.
func requireAdmits(t *testing.T, w *protection.Workload, budgets []policyv1.PodDisruptionBudget, pods []corev1.Pod, p *infrav1.ProposedBudget) {
	t.Helper()
	applied := []policyv1.PodDisruptionBudget{{ObjectMeta: metav1.ObjectMeta{Namespace: p.Metadata.Namespace, Name: p.Metadata.Name}, Spec: p.Spec}}
	for _, b := range budgets {
		if b.Name != p.Metadata.Name || b.Namespace != p.Metadata.Namespace {
			applied = append(applied, b)
		}
	}
	require.True(t, protection.Admit(w, applied, pods).Admitted())
	for _, unavailable := range []int{1, 2, 3, 9, 10, 11, 100} {
		n, err := protection.AllowedDisruptions(&p.Spec, unavailable)
		require.NoError(t, err)
		require.Positive(t, n, "of %d pods", unavailable)
	}
}

func TestProposedName(t *testing.T) {
	taken := budget("web", labelled("app", "db"), "", "1")
	a := protection.Admit(deployment(2), []policyv1.PodDisruptionBudget{taken}, nil)
	require.Equal(t, "web-deployment", a.Proposal.Metadata.Name)
	too := taken
	too.Name = "web-deployment"
	a = protection.Admit(deployment(2), []policyv1.PodDisruptionBudget{taken, too}, nil)
	require.Nil(t, a.Proposal)

	elsewhere := taken
	elsewhere.Namespace = "other"
	a = protection.Admit(deployment(2), []policyv1.PodDisruptionBudget{elsewhere}, nil)
	require.Equal(t, "web", a.Proposal.Metadata.Name, "names are of a namespace")
	taken.Name = strings.Repeat("w", 250)
	long := deployment(2, func(d *appsv1.Deployment) { d.Name = taken.Name })
	require.Nil(t, protection.Admit(long, []policyv1.PodDisruptionBudget{taken}, nil).Proposal, "longer than a name can be")
}

// TestProposedDisruptions: members of a StatefulSet go one at a time, however many there are.
func TestProposedDisruptions(t *testing.T) {
	require.Equal(t, "1", protection.Admit(statefulSet(100), nil, nil).Proposal.Spec.MaxUnavailable.String())
	require.Equal(t, "1", protection.Admit(deployment(10), nil, nil).Proposal.Spec.MaxUnavailable.String())
	require.Equal(t, "10%", protection.Admit(deployment(11), nil, nil).Proposal.Spec.MaxUnavailable.String())
}

// TestSettled: a Deployment whose pods are not all of its present template is in a rollout, as is
// one that is paused in the middle of it.
func TestSettled(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*appsv1.Deployment)
		want   bool
	}{
		"no rollout":             {func(*appsv1.Deployment) {}, true},
		"not observed":           {func(d *appsv1.Deployment) { d.Generation = 3 }, false},
		"some pods are older":    {func(d *appsv1.Deployment) { d.Status.UpdatedReplicas = 1 }, false},
		"paused":                 {func(d *appsv1.Deployment) { d.Spec.Paused = true }, false},
		"pods that do not start": {func(d *appsv1.Deployment) { d.Status.AvailableReplicas = 0 }, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := deployment(2, func(d *appsv1.Deployment) {
				d.Generation = 2
				d.Status = appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 2, UpdatedReplicas: 2, AvailableReplicas: 2}
				c.change(d)
			})
			require.Equal(t, c.want, w.Settled)
		})
	}
}

func TestOwner(t *testing.T) {
	pod := func(kind, name string, labels map[string]string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Labels: labels, OwnerReferences: []metav1.OwnerReference{{Kind: kind, Name: name, Controller: ptr.To(true)}}}}
	}
	w := deployment(1)
	require.True(t, w.Owns(pod("ReplicaSet", "web-5d", map[string]string{"app": "web", "pod-template-hash": "5d"})))
	require.False(t, w.Owns(pod("ReplicaSet", "web-5d", map[string]string{"pod-template-hash": "5d"})), "of another label")
	require.False(t, w.Owns(pod("ReplicaSet", "other-5d", map[string]string{"app": "web", "pod-template-hash": "5d"})))
	require.False(t, w.Owns(pod("Job", "web", map[string]string{"app": "web"})))
	require.True(t, statefulSet(1).Owns(pod("StatefulSet", "db", web)))
	require.False(t, w.Owns(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Labels: web}}))
}
