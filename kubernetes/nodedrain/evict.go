package nodedrain

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nstance-go/nstance"
)

// evictionAPI evicts with policy/v1.
type evictionAPI struct{ client kubernetes.Interface }

// Evict sends one request: client-go itself would repeat a refusal for minutes.
func (e evictionAPI) Evict(ctx context.Context, pod *corev1.Pod, grace *int64) error {
	options := deleteOptions(pod, grace)
	body := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}, DeleteOptions: &options}
	err := e.client.CoreV1().RESTClient().Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("eviction").
		MaxRetries(0).Body(body).Do(ctx).Error()
	return classify(err)
}

// A budgetRefusal is what a disruption budget refuses an eviction with.
type budgetRefusal string

func (r budgetRefusal) Error() string { return string(r) }

// granted reports whether a disruption budget counts a pod as evicted already. The API server
// records that before it deletes the pod, and does not delete it if its client has ended or has
// given up in between: the budget may permit nothing else for two minutes then (checkAndDecrement
// in Kubernetes' pkg/registry/core/pod/storage/eviction.go). What cannot be read is not granted.
func (d *Drainer) granted(ctx context.Context, pod *corev1.Pod) bool {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	budgets, err := d.client.PolicyV1().PodDisruptionBudgets(pod.Namespace).List(ctx, metav1.ListOptions{})
	return err == nil && slices.ContainsFunc(budgets.Items, func(b policyv1.PodDisruptionBudget) bool {
		at, ok := b.Status.DisruptedPods[pod.Name]
		return ok && at.After(pod.CreationTimestamp.Time) // else of a pod that had this name before
	})
}

// deletePod removes a pod past its disruption budget or once its eviction was granted, or
// shortens the grace period of one that is terminating.
func (d *Drainer) deletePod(ctx context.Context, pod *corev1.Pod, grace *int64) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return classify(d.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, deleteOptions(pod, grace)))
}

// deleteOptions name the very pod: a StatefulSet gives its name to the next one.
func deleteOptions(pod *corev1.Pod, grace *int64) metav1.DeleteOptions {
	return metav1.DeleteOptions{GracePeriodSeconds: grace, Preconditions: metav1.NewUIDPreconditions(string(pod.UID))}
}

func classify(err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsNotFound(err):
		return nstance.Errorf(nstance.NotFound, "%w", err)
	case apierrors.IsConflict(err):
		return nstance.Errorf(nstance.Conflict, "%w", err)
	case apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause):
		cause, _ := apierrors.StatusCause(err, policyv1.DisruptionBudgetCause)
		return nstance.Errorf(nstance.Denied, "%w", budgetRefusal(cause.Message)) // which names the budget
	case severalBudgets(err), apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return nstance.Errorf(nstance.Denied, "%w", err)
	case apierrors.IsTooManyRequests(err):
		return nstance.Errorf(nstance.Throttled, "%w", err)
	}
	return nstance.Errorf(nstance.Unavailable, "%w", err)
}

// severalBudgets reports a refusal that has no code of its own: two budgets select
// the pod.
func severalBudgets(err error) bool {
	return apierrors.IsInternalError(err) && strings.Contains(err.Error(), "more than one PodDisruptionBudget")
}
