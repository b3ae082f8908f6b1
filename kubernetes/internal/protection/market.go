package protection

import (
	"encoding/json"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// anyValue is of a label whose presence counts.
const anyValue = "*"

// CapacityType is the label by which Karpenter has spot and on-demand nodes.
const CapacityType = "karpenter.sh/capacity-type"

// spotLabels are those of nodes that their cloud may take back, with the value that says so.
//   - Cluster API's, which the nodes of this project have.
//   - Karpenter, EKS managed node groups, GKE, AKS, and the label of kops' and of node
//     groups of Cluster Autoscaler, by convention.
var spotLabels = map[string]string{
	clusterv1.InterruptibleLabel:            anyValue,
	CapacityType:                            "spot",
	"eks.amazonaws.com/capacityType":        "SPOT",
	"cloud.google.com/gke-spot":             "true",
	"cloud.google.com/gke-preemptible":      "true",
	"cloud.google.com/gke-provisioning":     "spot",
	"kubernetes.azure.com/scalesetpriority": "spot",
	"node.kubernetes.io/lifecycle":          "spot",
}

// spotTaints are those by which clouds and their users keep other pods from such nodes.
var spotTaints = []string{"kubernetes.azure.com/scalesetpriority", "cloud.google.com/gke-spot", "cloud.google.com/gke-preemptible", CapacityType, "node.kubernetes.io/lifecycle", clusterv1.InterruptibleLabel}

// Interruptible reports whether a cloud may take a node back.
func Interruptible(node *corev1.Node) bool {
	for label, spot := range spotLabels {
		if value, ok := node.Labels[label]; ok && (spot == anyValue || value == spot) {
			return true
		}
	}
	return false
}

// ProposePatch returns the strategic merge patch that lets a workload run on interruptible
// nodes, of which those that exist are given; empty: it may. It takes away what excludes
// them from node selector and required node affinity, and tolerates their taints.
func ProposePatch(w *Workload, nodes []*corev1.Node) (string, error) {
	spec := w.Template.Spec.DeepCopy()
	for label, spot := range spotLabels {
		if value, ok := spec.NodeSelector[label]; ok && spot != anyValue && value != spot {
			delete(spec.NodeSelector, label)
		}
	}
	if a := spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		terms := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		for i := range terms {
			terms[i].MatchExpressions = permitting(terms[i].MatchExpressions)
		}
		// A term without expressions selects nothing: it must go, and the affinity with the last one.
		if slices.ContainsFunc(terms, func(t corev1.NodeSelectorTerm) bool { return len(t.MatchExpressions)+len(t.MatchFields) == 0 }) {
			a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = nil
		}
	}
	for _, t := range untolerated(spec.Tolerations, nodes) {
		spec.Tolerations = append(spec.Tolerations, corev1.Toleration{Key: t.Key, Operator: corev1.TolerationOpEqual, Value: t.Value, Effect: t.Effect})
	}
	return patchTo(w, spec)
}

// permitting returns expressions that do not exclude interruptible nodes any more.
func permitting(in []corev1.NodeSelectorRequirement) (out []corev1.NodeSelectorRequirement) {
	for _, r := range in {
		spot, ok := spotLabels[r.Key]
		switch {
		case !ok:
		case r.Operator == corev1.NodeSelectorOpDoesNotExist:
			continue
		case spot == anyValue:
		case r.Operator == corev1.NodeSelectorOpIn && !slices.Contains(r.Values, spot):
			r.Values = append(slices.Clone(r.Values), spot)
		case r.Operator == corev1.NodeSelectorOpNotIn && slices.Contains(r.Values, spot):
			r.Values = slices.DeleteFunc(slices.Clone(r.Values), func(v string) bool { return v == spot })
			if len(r.Values) == 0 {
				continue
			}
		}
		out = append(out, r)
	}
	return out
}

// untolerated returns the taints of interruptible nodes that only say that they are, and that
// no toleration is for. Each is returned once, in the order of keys.
func untolerated(tolerations []corev1.Toleration, nodes []*corev1.Node) (out []corev1.Taint) {
	for _, n := range nodes {
		for _, t := range n.Spec.Taints {
			if !slices.Contains(spotTaints, t.Key) || t.Effect == corev1.TaintEffectPreferNoSchedule || slices.Contains(out, t) {
				continue
			}
			if !slices.ContainsFunc(tolerations, func(have corev1.Toleration) bool { return tolerates(have, t) }) {
				out = append(out, corev1.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect})
			}
		}
	}
	slices.SortFunc(out, func(a, b corev1.Taint) int { return compare(a.ToString(), b.ToString()) })
	return slices.Compact(out)
}

func tolerates(have corev1.Toleration, t corev1.Taint) bool {
	return (have.Effect == "" || have.Effect == t.Effect) && (have.Key == "" || have.Key == t.Key) &&
		(have.Operator == corev1.TolerationOpExists || have.Value == t.Value && have.Key != "")
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// patchTo returns the patch of a workload whose pods shall be as spec; empty: they are.
func patchTo(w *Workload, spec *corev1.PodSpec) (string, error) {
	changed := w.Object.DeepCopyObject()
	var kind any
	switch o := changed.(type) {
	case *appsv1.Deployment:
		o.Spec.Template.Spec, kind = *spec, appsv1.Deployment{}
	case *appsv1.StatefulSet:
		o.Spec.Template.Spec, kind = *spec, appsv1.StatefulSet{}
	}
	before, err := json.Marshal(w.Object)
	if err != nil {
		return "", err
	}
	after, err := json.Marshal(changed)
	if err != nil {
		return "", err
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, kind)
	if err != nil || string(patch) == "{}" {
		return "", err
	}
	return string(patch), nil
}

// ProposeNodePools returns a patch for each NodePool of Karpenter's, if none of them makes
// spot nodes. One without a requirement for the capacity type is given one, so that it does
// not depend on Karpenter's default.
func ProposeNodePools(pools []unstructured.Unstructured) (out []infrav1.NodePoolProposal, err error) {
	for i := range pools {
		requirements, _, err := unstructured.NestedSlice(pools[i].Object, "spec", "template", "spec", "requirements")
		if err != nil {
			return nil, fmt.Errorf("NodePool %s: %w", pools[i].GetName(), err)
		}
		if makesSpot(requirements) {
			return nil, nil
		}
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"requirements": withSpot(requirements)}}}})
		if err != nil {
			return nil, err
		}
		out = append(out, infrav1.NodePoolProposal{Name: pools[i].GetName(), ProposedPatch: string(patch)})
	}
	slices.SortFunc(out, func(a, b infrav1.NodePoolProposal) int { return compare(a.Name, b.Name) })
	return out, nil
}

func makesSpot(requirements []any) bool {
	return slices.ContainsFunc(requirements, func(r any) bool {
		key, operator, values := requirement(r)
		switch {
		case key != CapacityType:
			return false
		case operator == string(corev1.NodeSelectorOpNotIn):
			return !slices.Contains(values, "spot")
		}
		return operator == string(corev1.NodeSelectorOpExists) || slices.Contains(values, "spot")
	})
}

func requirement(r any) (key, operator string, values []string) {
	m, _ := r.(map[string]any)
	key, _, _ = unstructured.NestedString(m, "key")
	operator, _, _ = unstructured.NestedString(m, "operator")
	values, _, _ = unstructured.NestedStringSlice(m, "values")
	return key, operator, values
}

func withSpot(requirements []any) []any {
	out := []any{}
	for _, r := range requirements {
		if key, _, _ := requirement(r); key != CapacityType {
			out = append(out, r)
		}
	}
	return append(out, map[string]any{"key": CapacityType, "operator": string(corev1.NodeSelectorOpIn), "values": []any{"spot", "on-demand"}})
}
