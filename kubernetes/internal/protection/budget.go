package protection

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// Why a workload is admitted or not.
const (
	ReasonAdmitted    = "Admitted"
	ReasonNoBudget    = "NoBudget"             // no budget covers its pods
	ReasonOverlap     = "OverlappingBudgets"   // more than one does: evictions are refused
	ReasonPartial     = "BudgetMissesPods"     // some of its pods are covered, others are not
	ReasonBlocked     = "BudgetAllowsNone"     // it allows no disruption even when all pods are healthy
	ReasonUnsupported = "BudgetNotComputed"    // the disruption controller cannot compute it
	ReasonSelector    = "SelectorNotSupported" // of the workload
)

// An Admission says whether a workload is protected, and how it can be.
type Admission struct {
	Reason   string
	Message  string
	Budget   *policyv1.PodDisruptionBudget // that covers it; nil: none, or more than one
	Proposal *infrav1.ProposedBudget       // that would admit it; nil: none is known
}

// Admitted reports whether the workload is protected.
func (a Admission) Admitted() bool { return a.Reason == ReasonAdmitted }

// Admit decides by the budgets of a workload's namespace. pods are its own.
func Admit(w *Workload, budgets []policyv1.PodDisruptionBudget, pods []corev1.Pod) Admission {
	if _, err := metav1.LabelSelectorAsSelector(w.Selector); err != nil {
		return Admission{Reason: ReasonSelector, Message: fmt.Sprintf("spec.selector: %v", err)}
	}
	found := covering(budgets, w.Namespace(), w.Template.Labels)
	names := map[string]int{} // how many pods each budget covers
	living, covered := 0, 0
	for i := range pods {
		if !Lives(&pods[i]) {
			continue
		}
		living++
		of := covering(budgets, w.Namespace(), pods[i].Labels)
		covered += min(len(of), 1)
		for _, b := range of {
			names[b.Name]++
		}
	}
	for _, b := range found {
		names[b.Name] += 0
	}
	switch {
	case len(names) == 0:
		return Admission{Reason: ReasonNoBudget, Message: "no PodDisruptionBudget covers its pods: apply proposedBudget", Proposal: proposeBudget(w, budgets)}
	case len(names) > 1:
		return Admission{Reason: ReasonOverlap, Message: fmt.Sprintf(
			"more than one PodDisruptionBudget covers its pods, which the eviction API refuses: keep one of %s", strings.Join(sorted(names), ", "))}
	case len(found) == 0 || covered < living:
		return Admission{Reason: ReasonPartial, Message: fmt.Sprintf(
			"PodDisruptionBudget %s covers %d of %d pods, and new ones: %t. Correct its selector", sorted(names)[0], covered, living, len(found) > 0)}
	}
	return admitWith(w, found[0])
}

// admitWith decides by the only budget that covers a workload.
func admitWith(w *Workload, budget *policyv1.PodDisruptionBudget) Admission {
	a := Admission{Reason: ReasonAdmitted, Budget: budget}
	if c := meta.FindStatusCondition(budget.Status.Conditions, policyv1.DisruptionAllowedCondition); c != nil && c.Reason == policyv1.SyncFailedReason {
		a.Reason, a.Message = ReasonUnsupported, fmt.Sprintf("PodDisruptionBudget %s: %s", budget.Name, c.Message)
		return a
	}
	expected := max(w.Replicas, 1)
	if budget.Status.ObservedGeneration == budget.Generation {
		expected = max(expected, budget.Status.ExpectedPods) // it may cover other workloads too
	}
	allowed, err := AllowedDisruptions(&budget.Spec, int(expected))
	switch {
	case err != nil:
		a.Reason, a.Message = ReasonUnsupported, fmt.Sprintf("PodDisruptionBudget %s: %v", budget.Name, err)
	case allowed < 1:
		a.Reason = ReasonBlocked
		a.Message = fmt.Sprintf("PodDisruptionBudget %s allows no disruption of %d healthy pods: apply proposedBudget, or run more replicas", budget.Name, expected)
		a.Proposal = proposal(w.Namespace(), budget.Name, budget.Spec.Selector, disruptions(w))
	}
	return a
}

// AllowedDisruptions returns how many of so many healthy pods a budget lets be evicted at a
// time. It rounds as the disruption controller does: both percentages up.
func AllowedDisruptions(spec *policyv1.PodDisruptionBudgetSpec, expected int) (int, error) {
	switch {
	case spec.MaxUnavailable != nil:
		n, err := intstr.GetScaledValueFromIntOrPercent(spec.MaxUnavailable, expected, true)
		return min(n, expected), err
	case spec.MinAvailable != nil:
		n, err := intstr.GetScaledValueFromIntOrPercent(spec.MinAvailable, expected, true)
		return max(expected-n, 0), err
	}
	return max(expected-1, 0), nil // the API's default is minAvailable 1
}

// covering returns the budgets that select pods with these labels. An empty selector selects
// all pods of the namespace, an absent one none.
func covering(budgets []policyv1.PodDisruptionBudget, namespace string, of map[string]string) (out []*policyv1.PodDisruptionBudget) {
	for i := range budgets {
		b := &budgets[i]
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err == nil && b.Namespace == namespace && b.DeletionTimestamp == nil && selector.Matches(labels.Set(of)) {
			out = append(out, b)
		}
	}
	return out
}

// proposeBudget returns a budget for a workload without one. Its name is not taken.
func proposeBudget(w *Workload, budgets []policyv1.PodDisruptionBudget) *infrav1.ProposedBudget {
	taken := func(name string) bool {
		return slices.ContainsFunc(budgets, func(b policyv1.PodDisruptionBudget) bool { return b.Namespace == w.Namespace() && b.Name == name })
	}
	name := w.Name()
	if taken(name) {
		name += "-" + strings.ToLower(w.Kind)
	}
	if taken(name) || len(name) > 253 {
		return nil // the user knows names better
	}
	return proposal(w.Namespace(), name, w.Selector, disruptions(w))
}

// disruptions returns what a workload can do without. Members of a StatefulSet are not
// alike, so they go one at a time. Of a Deployment it is a tenth, rounded up: it permits one
// at least, which minAvailable 90% does not permit below ten replicas.
func disruptions(w *Workload) intstr.IntOrString {
	if w.Kind == infrav1.KindStatefulSet || w.Replicas <= 10 {
		return intstr.FromInt32(1)
	}
	return intstr.FromString("10%")
}

func proposal(namespace, name string, selector *metav1.LabelSelector, unavailable intstr.IntOrString) *infrav1.ProposedBudget {
	return &infrav1.ProposedBudget{
		APIVersion: policyv1.SchemeGroupVersion.String(), Kind: "PodDisruptionBudget",
		Metadata: infrav1.ProposedMetadata{Namespace: namespace, Name: name},
		Spec: policyv1.PodDisruptionBudgetSpec{
			Selector: selector.DeepCopy(), MaxUnavailable: &unavailable,
			UnhealthyPodEvictionPolicy: ptr.To(policyv1.AlwaysAllow), // pods that do not work do not hold up a drain
		},
	}
}

func sorted(of map[string]int) (names []string) {
	for name := range of {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
