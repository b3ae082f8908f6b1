package protection

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// Interval is between a machine's waking and its cordon, and between two surges of a
// workload.
const Interval = 5 * time.Minute

// MaxSurge bounds by how many replicas one workload is raised.
const MaxSurge = 500

// AnnotationSurge on a Deployment is the record of a surge under way, a Surge as JSON.
const AnnotationSurge = "nstance.dev/hand-off-surge"

// DeletionCost is that of pods on a machine that is about to be emptied: a ReplicaSet that
// shrinks deletes them first.
const DeletionCost = "-2000000000"

// gitOpsMarks are labels and annotations of objects that a controller keeps as they are in a
// repository:
//   - Argo CD, docs/user-guide/resource_tracking.md
//   - Flux, https://fluxcd.io/flux/components/kustomize/kustomizations/ and …/helm/helmreleases/
var gitOpsMarks = []string{
	"argocd.argoproj.io/tracking-id", "argocd.argoproj.io/instance", "kustomize.toolkit.fluxcd.io/name", "helm.toolkit.fluxcd.io/name",
}

// ManagedByGit returns the mark of a GitOps controller on an object; empty: there is none.
func ManagedByGit(obj metav1.Object) string {
	for _, mark := range gitOpsMarks {
		_, label := obj.GetLabels()[mark]
		if _, annotation := obj.GetAnnotations()[mark]; label || annotation {
			return mark
		}
	}
	return ""
}

// managedByKEDA reports whether KEDA writes an autoscaler: it would take a change back.
// https://keda.sh/docs/latest/concepts/scaling-deployments/
func managedByKEDA(a *autoscalingv2.HorizontalPodAutoscaler) bool {
	_, named := a.Labels["scaledobject.keda.sh/name"]
	owned := slices.ContainsFunc(a.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "ScaledObject" })
	return named || owned || a.Labels["app.kubernetes.io/managed-by"] == "keda-operator"
}

// scalesDown reports whether an autoscaler lowers replicas.
func scalesDown(a *autoscalingv2.HorizontalPodAutoscaler) bool {
	b := a.Spec.Behavior
	return b == nil || b.ScaleDown == nil || ptr.Deref(b.ScaleDown.SelectPolicy, autoscalingv2.MaxChangePolicySelect) != autoscalingv2.DisabledPolicySelect
}

// A HandOff says how a workload's pods are handed off.
type HandOff struct {
	Method infrav1.HandOffMethod
	Why    string                                 // of an eviction
	Scaler *autoscalingv2.HorizontalPodAutoscaler // of a surge; nil: none
}

// ChooseHandOff decides by the autoscalers of a workload's namespace. Replicas that another
// controller would lower again, or cannot run twice, are evicted within the budget.
func ChooseHandOff(w *Workload, scalers []autoscalingv2.HorizontalPodAutoscaler) HandOff {
	evict := func(format string, args ...any) HandOff {
		return HandOff{Method: infrav1.HandOffEviction, Why: fmt.Sprintf(format, args...)}
	}
	if w.Kind == infrav1.KindStatefulSet {
		return evict("members of a StatefulSet are not alike, and deletion costs do not count there")
	}
	if mark := ManagedByGit(w.Object); mark != "" {
		return evict("it has the mark %s: a GitOps controller would take a surge back", mark)
	}
	if claims := slices.ContainsFunc(w.Template.Spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil }); claims {
		return evict("its pods share a PersistentVolumeClaim, which a second node may not be able to mount")
	}
	h := HandOff{Method: infrav1.HandOffSurge}
	for i := range scalers {
		s := &scalers[i]
		switch {
		case !w.scaled(s):
		case managedByKEDA(s):
			return evict("KEDA scales it by HorizontalPodAutoscaler %s", s.Name)
		case ManagedByGit(s) != "":
			return evict("HorizontalPodAutoscaler %s has the mark %s: a GitOps controller would take a surge back", s.Name, ManagedByGit(s))
		case h.Scaler != nil:
			return evict("HorizontalPodAutoscalers %s and %s both scale it", h.Scaler.Name, s.Name)
		default:
			h.Scaler = s
		}
	}
	if h.Scaler != nil && !scalesDown(h.Scaler) {
		return evict("HorizontalPodAutoscaler %s never lowers its replicas: spec.behavior.scaleDown.selectPolicy is Disabled", h.Scaler.Name)
	}
	if h.Scaler != nil && surgeOf(w) == nil && w.Replicas >= h.Scaler.Spec.MaxReplicas {
		return evict("it runs spec.maxReplicas of HorizontalPodAutoscaler %s", h.Scaler.Name)
	}
	return h
}

// A Surge is what was done to a Deployment so that its pods run elsewhere first. It is kept
// in the annotation AnnotationSurge, so that any operator ends what another began.
type Surge struct {
	Added    int32       `json:"added"`    // replicas; 0: the surge is over, and the next one waits
	Replicas int32       `json:"replicas"` // that were set
	Since    metav1.Time `json:"since"`
	Reason   string      `json:"reason,omitempty"`

	// With an autoscaler its floor is raised: it would lower the replicas again at once,
	// since its stabilization window holds its own recommendations only.
	Scaler   string `json:"scaler,omitempty"`
	Floor    int32  `json:"floor,omitempty"`    // minReplicas that were set
	OldFloor *int32 `json:"oldFloor,omitempty"` // minReplicas before
}

// surgeOf returns the surge of a workload; nil: there is none.
func surgeOf(w *Workload) *Surge {
	text := w.Object.GetAnnotations()[AnnotationSurge]
	if text == "" {
		return nil
	}
	s := &Surge{}
	if json.Unmarshal([]byte(text), s) != nil || s.Added < 0 || s.Added > MaxSurge {
		return &Surge{} // what cannot be read is not undone, and goes
	}
	return s
}

// Surged returns by how many replicas a workload is raised.
func Surged(w *Workload) int32 {
	if s := surgeOf(w); s != nil {
		return s.Added
	}
	return 0
}

// Progress is where the pods of a workload are.
type Progress struct {
	Leaving  int  // living pods on machines that are about to be emptied, that may be moved
	Settled  int  // ready pods elsewhere
	Unready  int  // other living pods elsewhere, or nowhere yet
	Wanted   bool // a surge may begin
	Reason   string
	Now      time.Time
	Finished bool // the hand-off is not wanted any more: what was done is taken back
}

// A Step changes a Deployment, its autoscaler or both. Nil fields are not changed.
type Step struct {
	Replicas *int32
	Surge    *Surge // to be kept; nil: none
	Forget   bool   // the annotation goes

	// Floor is to be set on the autoscaler, if it is FloorWas.
	Floor, FloorWas *int32
}

// NextStep decides what to do for a workload; nil: nothing, or nothing yet.
//
// A surge raises the replicas by as many as leave. It ends once as many are ready elsewhere
// as there were before, or none leaves any more: then the replicas are lowered, and the pods
// that leave are the cheapest. With an autoscaler only its floor is lowered, unless it is gone
// or does not lower replicas any more. The next surge comes an Interval later. What others
// have scaled meanwhile stays.
func NextStep(w *Workload, scaler *autoscalingv2.HorizontalPodAutoscaler, p Progress) *Step {
	s := surgeOf(w)
	switch {
	case s == nil && (p.Finished || !p.Wanted || p.Leaving == 0 || !w.Settled || w.Replicas == 0):
		return nil
	case s == nil:
		return beginSurge(w, scaler, p)
	case s.Added == 0 && (p.Leaving == 0 || p.Finished || p.Now.Sub(s.Since.Time) >= Interval):
		return &Step{Forget: true} // another pass begins the next one
	case s.Added == 0:
		return nil
	}
	base := int(s.Replicas - s.Added)
	if p.Finished || p.Leaving == 0 || p.Settled >= base && p.Unready == 0 {
		return endSurge(w, s, scaler, p)
	}
	if more := int32(min(p.Leaving, MaxSurge)) - s.Added; more > 0 && p.Wanted && s.Scaler == "" && s.Replicas == w.Replicas && p.Now.Sub(s.Since.Time) >= Interval {
		grown := *s
		grown.Added, grown.Replicas, grown.Since = s.Added+more, s.Replicas+more, metav1.NewTime(p.Now)
		return &Step{Replicas: &grown.Replicas, Surge: &grown}
	}
	return holdFloor(s, scaler)
}

func beginSurge(w *Workload, scaler *autoscalingv2.HorizontalPodAutoscaler, p Progress) *Step {
	added := int32(min(p.Leaving, MaxSurge))
	s := &Surge{Since: metav1.NewTime(p.Now), Reason: p.Reason}
	if scaler != nil {
		added = min(added, scaler.Spec.MaxReplicas-w.Replicas)
		s.Scaler, s.OldFloor = scaler.Name, scaler.Spec.MinReplicas
	}
	if added <= 0 {
		return nil
	}
	s.Added, s.Replicas = added, w.Replicas+added
	step := &Step{Replicas: &s.Replicas, Surge: s}
	if scaler != nil {
		s.Floor = s.Replicas
		step.Floor, step.FloorWas = &s.Floor, scaler.Spec.MinReplicas
	}
	return step
}

// endSurge takes back what was done, if nothing else changed it.
func endSurge(w *Workload, s *Surge, scaler *autoscalingv2.HorizontalPodAutoscaler, p Progress) *Step {
	step := &Step{Surge: &Surge{Since: metav1.NewTime(p.Now)}}
	if p.Finished || p.Leaving == 0 {
		step.Surge, step.Forget = nil, true
	}
	if s.Scaler != "" && scaler != nil && scaler.Name == s.Scaler && ptr.Deref(scaler.Spec.MinReplicas, 1) == s.Floor {
		step.Floor, step.FloorWas = ptr.To(ptr.Deref(s.OldFloor, 1)), scaler.Spec.MinReplicas
	}
	lowered := s.Scaler != "" && scaler != nil && scalesDown(scaler) // by the autoscaler, if there still is one
	if !lowered && w.Replicas == s.Replicas {
		step.Replicas = ptr.To(max(s.Replicas-s.Added, 0))
	}
	return step
}

// holdFloor raises the floor of the autoscaler, if an operator ended before it could.
func holdFloor(s *Surge, scaler *autoscalingv2.HorizontalPodAutoscaler) *Step {
	if s.Scaler == "" || scaler == nil || scaler.Name != s.Scaler || ptr.Deref(scaler.Spec.MinReplicas, 1) != ptr.Deref(s.OldFloor, 1) || s.Floor > scaler.Spec.MaxReplicas {
		return nil
	}
	return &Step{Surge: s, Floor: &s.Floor, FloorWas: scaler.Spec.MinReplicas}
}
