package memkube

import (
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// AnnotationStops on a pod says how long it takes to stop once it is asked to, as a duration, or
// never; without it a second. It is killed when its grace period is over, unless it never stops.
const AnnotationStops = "test.nstance.dev/stops-after"

func podOf(o object) *corev1.Pod {
	pod := &corev1.Pod{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o, pod); err != nil {
		panic(err)
	}
	return pod
}

// terminate deletes a pod with a grace period: nil is its own. It is called with the server
// locked.
func (s *Server) terminate(at address, o object, grace *int64) object {
	pod := podOf(o)
	seconds := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if own := pod.Spec.TerminationGracePeriodSeconds; own != nil {
		seconds = *own
	}
	if grace != nil {
		seconds = *grace
	}
	if before := pod.DeletionGracePeriodSeconds; before != nil && (grace == nil || seconds >= *before) {
		return o // only a shorter one counts
	}
	if (seconds == 0 || pod.Spec.NodeName == "") && len(pod.Finalizers) == 0 {
		s.forget(at)
		return o
	}
	first := metav1.Now()
	if pod.DeletionTimestamp != nil {
		first = metav1.NewTime(pod.DeletionTimestamp.Add(-time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second))
	}
	end := metav1.NewTime(first.Add(time.Duration(seconds) * time.Second)) // as the API server counts
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &end, &seconds
	now, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
	if err != nil {
		panic(err)
	}
	now["apiVersion"], now["kind"] = "v1", "Pod"
	s.stop(at, pod, min(stopTime(pod), time.Duration(seconds)*time.Second))
	return s.store(at, now)
}

// stop has the pod's kubelet end it after a time.
func (s *Server) stop(at address, pod *corev1.Pod, after time.Duration) {
	if stopTime(pod) < 0 {
		return
	}
	s.after(after, func() {
		if now := s.objects[at.path()]; now != nil && podOf(now).UID == pod.UID && len(pod.Finalizers) == 0 {
			s.forget(at)
		}
	})
}

func stopTime(pod *corev1.Pod) time.Duration {
	switch text := pod.Annotations[AnnotationStops]; text {
	case "":
		return time.Second
	case "never":
		return -1
	default:
		d, err := time.ParseDuration(text)
		if err != nil {
			panic(err)
		}
		return d
	}
}

// evict deletes a pod within its disruption budgets, as the API server does. It is called with
// the server locked.
func (s *Server) evict(r *http.Request, at address, body []byte) (object, error) {
	var e policyv1.Eviction
	if err := decodeInto(r, body, &e); err != nil {
		return nil, err
	}
	at.sub = ""
	o, err := s.get(at)
	if err != nil {
		return nil, err
	}
	pod, options := podOf(o), metav1.DeleteOptions{}
	if e.DeleteOptions != nil {
		options = *e.DeleteOptions
	}
	if p := options.Preconditions; p != nil && p.UID != nil && *p.UID != pod.UID {
		return nil, apierrors.NewConflict(at.groupResource(), at.name, errPrecondition)
	}
	if pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed && pod.Status.Phase != corev1.PodPending {
		if err := s.askBudgets(pod); err != nil {
			return nil, err
		}
	}
	if _, err := s.remove(at, options); err != nil {
		return nil, err
	}
	return object{"apiVersion": "v1", "kind": "Status", "status": "Success"}, nil
}

// askBudgets reports why a pod may not be disrupted.
func (s *Server) askBudgets(pod *corev1.Pod) error {
	var found []policyv1.PodDisruptionBudget
	for _, o := range s.sorted(resourceOf(&policyv1.PodDisruptionBudget{}), pod.Namespace) {
		var b policyv1.PodDisruptionBudget
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o, &b); err != nil {
			return err
		}
		if selected(&b, pod) {
			found = append(found, b)
		}
	}
	switch {
	case len(found) == 0:
		return nil
	case len(found) > 1:
		return apierrors.NewInternalError(fmt.Errorf("This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.")) //nolint:revive,staticcheck // Kubernetes' words
	case s.allowed(&found[0]) > 0:
		return nil
	}
	err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
		Type: policyv1.DisruptionBudgetCause, Message: "The disruption budget " + found[0].Name + " allows none",
	})
	return err
}

func selected(b *policyv1.PodDisruptionBudget, pod *corev1.Pod) bool {
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	return err == nil && selector.Matches(labels.Set(pod.Labels))
}

// allowed is how many pods of a budget may be disrupted now. How many there should be is in its
// annotation AnnotationExpected, as the number of replicas is for Kubernetes.
func (s *Server) allowed(b *policyv1.PodDisruptionBudget) int {
	healthy, all := 0, 0
	for _, o := range s.sorted(resourceOf(&corev1.Pod{}), b.Namespace) {
		if pod := podOf(o); selected(b, pod) {
			if all++; PodReady(pod) {
				healthy++
			}
		}
	}
	if n := 0; b.Annotations[AnnotationExpected] != "" {
		if _, err := fmt.Sscan(b.Annotations[AnnotationExpected], &n); err == nil {
			all = n
		}
	}
	desired := 0
	switch {
	case b.Spec.MaxUnavailable != nil:
		n, _ := intstr.GetScaledValueFromIntOrPercent(b.Spec.MaxUnavailable, all, true)
		desired = all - n
	case b.Spec.MinAvailable != nil:
		desired, _ = intstr.GetScaledValueFromIntOrPercent(b.Spec.MinAvailable, all, true)
	}
	return healthy - desired
}

// AnnotationExpected on a disruption budget is how many pods its workload has.
const AnnotationExpected = "test.nstance.dev/expected"

// PodReady reports whether a pod serves.
func PodReady(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil {
		return false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}
