package operator

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// byMachine indexes pods by the name of their Machine.
const byMachine = "machine"

// livingPods leaves out pods that have ended: they are as good as deleted.
var livingPods = fields.AndSelectors(
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
).String()

// A podWatch follows the living pods of one cluster that have the label PodGroup. The API
// server filters, and sends metadata only. It is safe for concurrent use.
type podWatch struct {
	cluster  string // of Cluster API
	informer cache.SharedIndexInformer
	changed  func(machine string) // must not block; empty: all have been listed
}

func newPodWatch(cfg *rest.Config, cluster string, changed func(machine string), log *slog.Logger) (*podWatch, error) {
	client, err := metadata.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	pods := client.Resource(corev1.SchemeGroupVersion.WithResource("pods"))
	filtered := func(o metav1.ListOptions) metav1.ListOptions {
		o.LabelSelector, o.FieldSelector = PodGroup, livingPods
		return o
	}
	source := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return pods.List(ctx, filtered(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return pods.Watch(ctx, filtered(o))
		},
	}, client)
	w := &podWatch{cluster: cluster, changed: changed}
	w.informer = cache.NewSharedIndexInformer(source, &metav1.PartialObjectMetadata{}, 0, cache.Indexers{byMachine: func(obj any) ([]string, error) {
		return []string{w.machineName(obj.(*metav1.PartialObjectMetadata))}, nil
	}})
	_ = w.informer.SetTransform(trimPod) // these fail only once the informer runs
	_ = w.informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		log.Warn("pods cannot be watched", "err", err)
	})
	return w, nil
}

// trimPod keeps what names a pod and what it asks for.
func trimPod(obj any) (any, error) {
	pod, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return obj, nil
	}
	asked := map[string]string{}
	for key, value := range pod.Annotations {
		if strings.HasPrefix(key, podPrefix) {
			asked[key] = value
		}
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, DeletionTimestamp: pod.DeletionTimestamp,
		Labels: map[string]string{PodGroup: pod.Labels[PodGroup]}, Annotations: asked,
	}}, nil
}

// run follows the pods until ctx ends.
func (w *podWatch) run(ctx context.Context) {
	tell := func(obj any) {
		if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = last.Obj
		}
		if pod, ok := obj.(*metav1.PartialObjectMetadata); ok {
			w.changed(w.machineName(pod))
		}
	}
	handler, err := w.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: tell, UpdateFunc: func(_, obj any) { tell(obj) }, DeleteFunc: tell,
	})
	if err != nil {
		return // it has ended
	}
	ended := make(chan struct{})
	go func() { // waited for below
		defer close(ended)
		w.informer.RunWithContext(ctx)
	}()
	if cache.WaitForCacheSync(ctx.Done(), handler.HasSynced) {
		w.changed("") // the Machines of pods that ended unseen
	}
	<-ended
}

// synced reports whether all living pods are known.
func (w *podWatch) synced() bool { return w.informer.HasSynced() }

// machineName names the Machine of a pod: the same each time, another for another pod of
// the same name.
func (w *podWatch) machineName(pod *metav1.PartialObjectMetadata) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{w.cluster, pod.Namespace, pod.Name, string(pod.UID)}, "\x00")))
	return w.cluster + "-pod-" + hex.EncodeToString(sum[:8])
}

// pod returns the living pod of a Machine; nil: there is none.
func (w *podWatch) pod(machine string) *metav1.PartialObjectMetadata {
	found, err := w.informer.GetIndexer().ByIndex(byMachine, machine)
	if err != nil || len(found) == 0 {
		return nil // there is such an index
	}
	return found[0].(*metav1.PartialObjectMetadata)
}

// machines returns the names of the Machines of all living pods.
func (w *podWatch) machines() []string { return w.informer.GetIndexer().ListIndexFuncValues(byMachine) }
