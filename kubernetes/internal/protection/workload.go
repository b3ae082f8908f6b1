// Package protection decides what becomes of workloads on nodes that a cloud may take back:
// whether a disruption budget really covers them, what keeps them from such nodes, what a
// node's taints, conditions and events announce, and how pods are handed off.
//
// It decides by what it is given: it reads no clock, and calls nothing.
package protection

import (
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// A Workload is a Deployment or StatefulSet.
type Workload struct {
	Kind     string
	Object   client.Object // *appsv1.Deployment or *appsv1.StatefulSet
	Replicas int32         // that it shall have
	Selector *metav1.LabelSelector
	Template *corev1.PodTemplateSpec
	Settled  bool // no rollout of a Deployment is under way
}

// DeploymentWorkload returns a Deployment as a Workload.
func DeploymentWorkload(d *appsv1.Deployment) Workload {
	replicas := ptr.Deref(d.Spec.Replicas, 1)
	return Workload{
		Kind: infrav1.KindDeployment, Object: d, Replicas: replicas, Selector: d.Spec.Selector, Template: &d.Spec.Template,
		Settled: d.Status.ObservedGeneration >= d.Generation && d.Status.UpdatedReplicas >= d.Status.Replicas && !d.Spec.Paused,
	}
}

// StatefulSetWorkload returns a StatefulSet as a Workload.
func StatefulSetWorkload(s *appsv1.StatefulSet) Workload {
	return Workload{
		Kind: infrav1.KindStatefulSet, Object: s, Replicas: ptr.Deref(s.Spec.Replicas, 1), Selector: s.Spec.Selector, Template: &s.Spec.Template,
	}
}

// Name of the workload.
func (w *Workload) Name() string { return w.Object.GetName() }

// Namespace of the workload.
func (w *Workload) Namespace() string { return w.Object.GetNamespace() }

// HandOff reports whether its pods are to be handed off: it says so, or its pods do.
func (w *Workload) HandOff() bool {
	return w.Object.GetAnnotations()[infrav1.AnnotationHandOff] == "true" || w.Template.Annotations[infrav1.AnnotationHandOff] == "true"
}

// Owns reports whether a pod is of the workload.
func (w *Workload) Owns(pod *corev1.Pod) bool {
	selector, err := metav1.LabelSelectorAsSelector(w.Selector)
	if err != nil || pod.Namespace != w.Namespace() || !selector.Matches(labels.Set(pod.Labels)) {
		return false
	}
	kind, name := OwnerOf(pod)
	return kind == w.Kind && name == w.Name()
}

// OwnerOf returns the kind and name of the Deployment or StatefulSet that a pod is of;
// empty: of none. A ReplicaSet is called as its Deployment, with the pod's template hash.
func OwnerOf(pod *corev1.Pod) (kind, name string) {
	owner := metav1.GetControllerOf(pod)
	switch {
	case owner == nil:
	case owner.Kind == infrav1.KindStatefulSet:
		return owner.Kind, owner.Name
	case owner.Kind == "ReplicaSet":
		if name, ok := strings.CutSuffix(owner.Name, "-"+pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey]); ok && name != "" {
			return infrav1.KindDeployment, name
		}
	}
	return "", ""
}

// Lives reports whether a pod runs, or shall run.
func Lives(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

// Ready reports whether a pod is ready.
func Ready(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// scaled reports whether an autoscaler scales the workload.
func (w *Workload) scaled(by *autoscalingv2.HorizontalPodAutoscaler) bool {
	target := by.Spec.ScaleTargetRef
	return by.Namespace == w.Namespace() && target.Kind == w.Kind && target.Name == w.Name()
}
