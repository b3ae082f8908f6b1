package operator

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/kubernetes/internal/protection"
)

// protectionRate is how many requests for protected workloads are sent in a second, at most.
const protectionRate = 100

// Kinds of Karpenter's that protection reads. A cluster without Karpenter has none.
var (
	nodeClaimKind = schema.GroupVersionKind{Group: "karpenter.sh", Version: "v1", Kind: "NodeClaim"}
	nodePoolKind  = schema.GroupVersionKind{Group: "karpenter.sh", Version: "v1", Kind: "NodePool"}
)

// A workloadCluster is the cluster whose workloads are protected. Its nodes, their events
// and Karpenter's NodeClaims are watched once a SpotProtection wants it; all else is read
// when it is needed. It is safe for concurrent use.
type workloadCluster struct {
	objects client.Client // without a cache
	watched cache.Cache
	changed func() // a node's end may be announced, or nodes came or went; must not block
	start   func() // runs the cache until the nodes are not reached any more

	mu        sync.Mutex
	following bool           // nodes and events are
	claims    cache.Informer // of NodeClaims; nil: there are none yet
}

// newWorkloadCluster returns a cluster that run watches once it is needed.
func newWorkloadCluster(cfg *rest.Config, changed func(), run func(func(context.Context))) (*workloadCluster, error) {
	own := rest.CopyConfig(cfg)
	own.QPS, own.Burst = protectionRate, protectionRate
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, err
	}
	objects, err := client.New(own, client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	watched, err := cache.New(own, cache.Options{Scheme: scheme, Mapper: objects.RESTMapper(), DefaultTransform: trimClaim, ByObject: map[client.Object]cache.ByObject{
		&corev1.Node{}:  {Transform: trimProtectedNode},
		&corev1.Event{}: {Transform: trimEvent, Field: fields.OneTermEqualSelector("involvedObject.kind", "Node")},
	}})
	if err != nil {
		return nil, err
	}
	w := &workloadCluster{objects: objects, watched: watched, changed: changed}
	w.start = sync.OnceFunc(func() {
		run(func(ctx context.Context) { _ = watched.Start(ctx) }) // nil, when ctx ends
	})
	return w, nil
}

// trimProtectedNode keeps what protection looks at.
func trimProtectedNode(obj any) (any, error) {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	kept := &corev1.Node{ObjectMeta: n.ObjectMeta, Spec: n.Spec, Status: corev1.NodeStatus{Conditions: n.Status.Conditions}}
	kept.ManagedFields = nil
	return kept, nil
}

// trimEvent keeps what an event announces. Of the others nothing but the name is kept.
func trimEvent(obj any) (any, error) {
	e, ok := obj.(*corev1.Event)
	if !ok {
		return obj, nil
	}
	kept := &corev1.Event{}
	kept.Namespace, kept.Name, kept.UID, kept.ResourceVersion = e.Namespace, e.Name, e.UID, e.ResourceVersion
	if protection.KnownEvent(e.Reason) {
		kept.CreationTimestamp, kept.InvolvedObject, kept.Reason, kept.Message = e.CreationTimestamp, e.InvolvedObject, e.Reason, clip.Text(e.Message, 256)
		kept.LastTimestamp, kept.EventTime, kept.Series = e.LastTimestamp, e.EventTime, e.Series
	}
	return kept, nil
}

// trimClaim keeps what protection looks at in a NodeClaim.
func trimClaim(obj any) (any, error) {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		u.SetManagedFields(nil)
		unstructured.RemoveNestedField(u.Object, "spec")
	}
	return obj, nil
}

// claimsWait is how long the first listing of NodeClaims is waited for.
const claimsWait = 5 * time.Second

// follow watches what announces the end of nodes, and returns when all of it is known. Not all
// needs NodeClaims: unread says why there are some that are not known.
func (w *workloadCluster) follow(ctx context.Context) (unread, err error) {
	w.start()
	if !w.watched.WaitForCacheSync(ctx) {
		return nil, fmt.Errorf("nodes of the cluster cannot be listed: %w", context.Cause(ctx))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.following {
		for _, kind := range []client.Object{&corev1.Node{}, &corev1.Event{}} {
			if _, err := w.notify(ctx, kind); err != nil {
				return nil, err
			}
		}
		w.following = true
	}
	if w.claims == nil {
		if err := w.followClaims(ctx); err != nil {
			return nil, err
		}
	}
	if w.claims != nil && !w.claims.HasSynced() {
		return nstance.Errorf(nstance.Unavailable, "NodeClaims cannot be listed: whether Karpenter replaces a node is not known"), nil
	}
	return nil, nil
}

// followClaims watches NodeClaims, where there is such a kind. Another operator's webhook may
// keep them from being listed for ever.
func (w *workloadCluster) followClaims(ctx context.Context) error {
	claim := &unstructured.Unstructured{}
	claim.SetGroupVersionKind(nodeClaimKind)
	informer, err := w.notify(ctx, claim, cache.BlockUntilSynced(false))
	if meta.IsNoMatchError(err) {
		return nil
	} else if err != nil {
		return err
	}
	w.claims = informer
	ctx, cancel := context.WithTimeout(ctx, claimsWait)
	defer cancel()
	toolscache.WaitForCacheSync(ctx.Done(), informer.HasSynced)
	return nil
}

// notify reports changes of a kind that mean something.
func (w *workloadCluster) notify(ctx context.Context, kind client.Object, how ...cache.InformerGetOption) (cache.Informer, error) {
	informer, err := w.watched.GetInformer(ctx, kind, how...)
	if err != nil {
		return nil, err
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if meaning(obj) != "" {
				w.changed()
			}
		},
		UpdateFunc: func(before, obj any) {
			if meaning(before) != meaning(obj) {
				w.changed()
			}
		},
		DeleteFunc: func(any) { w.changed() },
	})
	return informer, err
}

// meaning is what protection looks at in an object that is watched; empty: nothing.
func meaning(obj any) string {
	switch o := obj.(type) {
	case *corev1.Node:
		conditions := slices.DeleteFunc(slices.Clone(o.Status.Conditions), func(c corev1.NodeCondition) bool {
			return c.Status == corev1.ConditionFalse && c.Type != corev1.NodeReady
		})
		text := fmt.Sprint(o.UID, o.Spec.Unschedulable, o.DeletionTimestamp != nil)
		for _, t := range o.Spec.Taints {
			text += " " + t.ToString()
		}
		for _, c := range conditions {
			text += fmt.Sprint(" ", c.Type, c.Status)
		}
		return text
	case *corev1.Event:
		return o.Reason
	case *unstructured.Unstructured:
		return fmt.Sprint(o.GetUID(), o.GetDeletionTimestamp() != nil, protection.NodeOf(o))
	}
	return ""
}

// nodes returns the nodes, and by name what announces their ends.
func (w *workloadCluster) nodes(ctx context.Context) (nodes []corev1.Node, claims map[string]*unstructured.Unstructured, events map[string][]corev1.Event, err error) {
	var list corev1.NodeList
	if err := w.watched.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, nil, err
	}
	var all corev1.EventList
	if err := w.watched.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, nil, err
	}
	events = map[string][]corev1.Event{}
	for _, e := range all.Items {
		if e.Reason != "" {
			events[e.InvolvedObject.Name] = append(events[e.InvolvedObject.Name], e)
		}
	}
	w.mu.Lock()
	withClaims := w.claims != nil && w.claims.HasSynced()
	w.mu.Unlock()
	claims = map[string]*unstructured.Unstructured{}
	if withClaims {
		found := &unstructured.UnstructuredList{}
		found.SetGroupVersionKind(nodeClaimKind.GroupVersion().WithKind(nodeClaimKind.Kind + "List"))
		if err := w.watched.List(ctx, found, client.UnsafeDisableDeepCopy); err != nil {
			return nil, nil, nil, err
		}
		for i := range found.Items {
			claims[protection.NodeOf(&found.Items[i])] = &found.Items[i]
		}
	}
	return list.Items, claims, events, nil
}
