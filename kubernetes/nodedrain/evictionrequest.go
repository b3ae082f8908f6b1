package nodedrain

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	lifecyclev1 "k8s.io/api/lifecycle/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nstance-go/nstance"
)

// Requester is the name under which drains ask for evictions with EvictionRequests.
const Requester = "nstance.dev/drain"

// labelRequestNode on an EvictionRequest says which node is drained.
const labelRequestNode = "nstance.dev/drain-node"

// nodeLabel is a node's name as a label: names may be longer than values of labels.
func nodeLabel(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:16])
}

// Conditions of an EvictionRequest, from k8s.io/api v0.37, lifecycle/v1alpha1, EvictionRequestStatus.
const (
	requestFailed  = "Failed"        // no responder managed to evict the pod
	requestEvicted = "TargetEvicted" // the pod has ended, or is gone
)

// For how long it is remembered whether the API is served, and how long that may take to answer.
const (
	servedFor  = 5 * time.Minute
	servedWait = 5 * time.Second
)

// A Withdrawer is an Evictor whose requests stand after it was called: they are taken back
// when the drain of a node is cancelled. Its methods must be safe for concurrent use.
type Withdrawer interface {
	Evictor

	// Withdraw takes back the requests for the pods of a node. It may be repeated.
	Withdraw(ctx context.Context, node *corev1.Node) error
}

// EvictionRequests is an Evictor that asks with an EvictionRequest (KEP-4563, alpha in
// Kubernetes 1.37), so that responders which the pod names may move it in their own way. It
// is Denied until the pod ends, with what the request's status says. A request that has
// failed, a pod of a PodGroup, for which the API has none, and a cluster that does not serve
// lifecycle.k8s.io/v1alpha1 are left to the eviction API. A pod that is still there when its grace
// period must begin is deleted, as one whose disruption budget refuses its eviction.
//
// It needs further permissions: get, list, create and delete evictionrequests of the group
// lifecycle.k8s.io. It is safe for concurrent use.
type EvictionRequests struct {
	client   kubernetes.Interface
	eviction Evictor
	log      *slog.Logger

	mu     sync.Mutex
	served bool
	asked  time.Time // when that was asked; zero: never
}

// NewEvictionRequests returns the Evictor for the cluster that cfg connects to. A nil log
// discards. Fails with Invalid for a configuration that makes no sense.
func NewEvictionRequests(cfg *rest.Config, log *slog.Logger) (*EvictionRequests, error) {
	if cfg == nil {
		return nil, nstance.FieldError("cfg", "pass the client configuration of the nodes' cluster", "is nil")
	}
	own := rest.CopyConfig(cfg)
	own.ContentType, own.AcceptContentTypes = "application/json", "application/json" // the resource may be one that others define, which has no protobuf
	client, err := kubernetes.NewForConfig(own)
	if err != nil {
		return nil, nstance.FieldError("cfg", "correct the client configuration", "%s", err)
	}
	return &EvictionRequests{client: client, eviction: evictionAPI{client}, log: discardIfNil(log)}, nil
}

// Evict implements Evictor.
func (e *EvictionRequests) Evict(ctx context.Context, pod *corev1.Pod, grace *int64) error {
	if pod.Spec.SchedulingGroup != nil || !e.isServed(ctx) {
		return e.eviction.Evict(ctx, pod, grace)
	}
	requests := e.client.LifecycleV1alpha1().EvictionRequests(pod.Namespace)
	request, err := requests.Create(ctx, requestFor(pod), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		request, err = requests.Get(ctx, requestName(pod), metav1.GetOptions{})
	}
	switch {
	case err != nil:
		return classify(err)
	case meta.IsStatusConditionTrue(request.Status.Conditions, requestFailed):
		return e.eviction.Evict(ctx, pod, grace)
	}
	return nstance.Errorf(nstance.Denied, "%s", requestText(request))
}

// requestName is the same for each request for a pod.
func requestName(pod *corev1.Pod) string { return "nstance-" + string(pod.UID) }

// requestFor returns the request for a pod, which ends with the pod.
func requestFor(pod *corev1.Pod) *lifecyclev1.EvictionRequest {
	return &lifecyclev1.EvictionRequest{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: requestName(pod), Labels: map[string]string{labelRequestNode: nodeLabel(pod.Spec.NodeName)},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
		},
		Spec: lifecyclev1.EvictionRequestSpec{
			Target:    lifecyclev1.EvictionRequestTarget{Pod: &lifecyclev1.EvictionRequestPodReference{Name: pod.Name, UID: pod.UID}},
			Requester: Requester, Intent: lifecyclev1.EvictionRequestIntentEviction,
		},
	}
}

// requestText says how far a request is.
func requestText(r *lifecyclev1.EvictionRequest) string {
	text := "EvictionRequest " + r.Name + " has not moved it yet"
	for _, c := range r.Status.Conditions {
		if c.Type != requestEvicted && c.Message != "" {
			text += ": " + c.Message
		}
	}
	return text
}

// isServed reports whether the cluster serves the API. One that cannot be asked counts as
// one that does what it did before.
func (e *EvictionRequests) isServed(ctx context.Context) bool {
	served, known := e.remembered()
	if known {
		return served
	}
	asking, cancel := context.WithTimeout(ctx, servedWait)
	defer cancel()
	list, err := discovery.ToDiscoveryInterfaceWithContext(e.client.Discovery()).ServerResourcesForGroupVersionWithContext(asking, lifecyclev1.SchemeGroupVersion.String())
	switch {
	case ctx.Err() != nil: // it says nothing of the cluster
		return served
	case err != nil && !apierrors.IsNotFound(err):
		e.log.Warn("cannot ask whether EvictionRequests are served", "err", err)
	default:
		served = err == nil && slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == "evictionrequests" })
		if !served {
			e.log.Info("EvictionRequests are not served: pods are evicted with policy/v1")
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.served, e.asked = served, time.Now()
	return served
}

// remembered returns what the last answer was, and whether it still holds.
func (e *EvictionRequests) remembered() (served, known bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.served, time.Since(e.asked) < servedFor
}

// Withdraw implements Withdrawer.
func (e *EvictionRequests) Withdraw(ctx context.Context, node *corev1.Node) error {
	if !e.isServed(ctx) {
		return nil
	}
	list, err := e.client.LifecycleV1alpha1().EvictionRequests("").List(ctx, metav1.ListOptions{LabelSelector: labelRequestNode + "=" + nodeLabel(node.Name)})
	if err != nil {
		return unlessNotFound(classify(err)) // NotFound: they are served no more
	}
	var errs []error
	for i := range list.Items {
		r := &list.Items[i]
		if r.Spec.Requester != Requester {
			continue
		}
		err := e.client.LifecycleV1alpha1().EvictionRequests(r.Namespace).Delete(ctx, r.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(r.UID))})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			errs = append(errs, classify(err))
		}
	}
	return errors.Join(errs...)
}
