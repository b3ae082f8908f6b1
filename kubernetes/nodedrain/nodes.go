package nodedrain

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

const (
	byProviderID    = "providerID" // lower case, after the last slash
	conditionPrefix = "Nstance"    // of the types of conditions that are kept
)

// A nodeIndex has what a drain needs to know of each node, by provider ID.
type nodeIndex struct {
	informer cache.SharedIndexInformer
	systems  systems
}

// newNodeIndex returns an index that calls joined, which must not block, for each node that
// does not name its instance.
func newNodeIndex(client kubernetes.Interface, joined func(), log *slog.Logger) *nodeIndex {
	informer := informers.NewSharedInformerFactory(client, 0).Core().V1().Nodes().Informer()
	_ = informer.SetTransform(trimNode) // these fail only once the informer runs
	_ = informer.AddIndexers(cache.Indexers{byProviderID: func(obj any) ([]string, error) {
		node, ok := obj.(*corev1.Node)
		if !ok || node.Spec.ProviderID == "" {
			return nil, nil
		}
		return []string{indexKey(node.Spec.ProviderID)}, nil
	}})
	_ = informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		log.Warn("watch of nodes failed: retrying", "err", err)
	})
	x := &nodeIndex{informer: informer}
	_, _ = informer.AddEventHandler(x.systems.handler())
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
		if node, ok := obj.(*corev1.Node); ok && node.Annotations[AnnotationInstance] == "" {
			joined()
		}
	}})
	return x
}

func (x *nodeIndex) run(ctx context.Context) { x.informer.RunWithContext(ctx) }

// awaitSync returns when all nodes are known, or ctx has ended.
func (x *nodeIndex) awaitSync(ctx context.Context) {
	for !x.informer.HasSynced() && sleep.For(ctx, 20*time.Millisecond) {
	}
}

func (x *nodeIndex) count() int { return len(x.informer.GetStore().ListKeys()) }

// all returns all nodes.
func (x *nodeIndex) all() (nodes []*corev1.Node) {
	for _, obj := range x.informer.GetStore().List() {
		nodes = append(nodes, obj.(*corev1.Node))
	}
	return nodes
}

// get returns the node of a name, nil if there is none.
func (x *nodeIndex) get(name string) *corev1.Node {
	obj, ok, _ := x.informer.GetStore().GetByKey(name)
	if !ok {
		return nil
	}
	return obj.(*corev1.Node)
}

// find returns the node of an instance. Fails with NotFound when there is none, which
// may change, and Conflict when there are several.
func (x *nodeIndex) find(providerID string, instance nstance.InstanceID) (*corev1.Node, error) {
	var found []*corev1.Node
	for _, key := range slices.Compact([]string{indexKey(providerID), indexKey(string(instance))}) {
		objects, err := x.informer.GetIndexer().ByIndex(byProviderID, key)
		if err != nil {
			return nil, nstance.Errorf(nstance.Internal, "index of nodes: %w", err)
		}
		for _, obj := range objects {
			node := obj.(*corev1.Node)
			if isNodeOf(node.Spec.ProviderID, providerID, instance) {
				found = append(found, node)
			}
		}
	}
	switch len(found) {
	case 0:
		return nil, nstance.Errorf(nstance.NotFound, "no node has the provider ID %q", orInstance(providerID, instance))
	case 1:
		return found[0], nil
	}
	return nil, nstance.Errorf(nstance.Conflict, "nodes %s and %s both have the provider ID %q", found[0].Name, found[1].Name, orInstance(providerID, instance))
}

// Find returns the node of a machine as it was seen last, by the provider's ID of the machine
// or that of the instance: its name, UID, provider ID and system UUID, whether it is ready
// and schedulable, and its conditions and annotations of this project. It must not be
// changed. Fails with NotFound when there is none, which may change, Conflict when there
// are several, and Unavailable when Run does not know the nodes yet.
func (d *Drainer) Find(instance nstance.InstanceID, providerID string) (*corev1.Node, error) {
	if !d.nodes.informer.HasSynced() {
		return nil, errNotListed
	}
	return d.nodes.find(providerID, instance)
}

// Nodes returns all nodes, as Find does.
func (d *Drainer) Nodes() []*corev1.Node { return d.nodes.all() }

// targets returns how many nodes are ready, schedulable and not excluded from load
// balancers.
func (x *nodeIndex) targets() int {
	n := 0
	for _, obj := range x.informer.GetStore().List() {
		if node := obj.(*corev1.Node); readiness(node) == corev1.ConditionTrue && !node.Spec.Unschedulable && !excluded(node) {
			n++
		}
	}
	return n
}

var errNotListed = nstance.Errorf(nstance.Unavailable, "nodes are not listed yet")

func orInstance(providerID string, instance nstance.InstanceID) string {
	if providerID == "" {
		return string(instance)
	}
	return providerID
}

// isNodeOf reports whether a node's provider ID names the machine: it is the cloud's ID
// of it, or ends in it or in the instance's ID. A number, such as Proxmox has, is no
// identity: another cluster has a machine of the same number. Clouds do not agree on
// the case of letters in one ID.
func isNodeOf(nodeID, providerID string, instance nstance.InstanceID) bool {
	if nodeID == "" {
		return false
	}
	if strings.Trim(providerID, "0123456789") == "" {
		return endsIn(nodeID, string(instance))
	}
	return strings.EqualFold(nodeID, providerID) || endsIn(nodeID, providerID) || endsIn(nodeID, string(instance))
}

// endsIn reports whether the last parts of a path are tail.
func endsIn(path, tail string) bool {
	start := len(path) - len(tail)
	return tail != "" && start > 0 && path[start-1] == '/' && strings.EqualFold(path[start:], tail)
}

// indexKey returns what follows the last slash.
func indexKey(id string) string { return strings.ToLower(id[strings.LastIndexByte(id, '/')+1:]) }

// trimNode keeps what is used of a node, since all nodes are kept in memory.
func trimNode(obj any) (any, error) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	kept := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion},
		Spec:       corev1.NodeSpec{ProviderID: node.Spec.ProviderID, Unschedulable: node.Spec.Unschedulable},
		Status: corev1.NodeStatus{
			VolumesAttached: node.Status.VolumesAttached,
			NodeInfo:        corev1.NodeSystemInfo{SystemUUID: node.Status.NodeInfo.SystemUUID},
		},
	}
	if value, ok := node.Labels[corev1.LabelNodeExcludeBalancers]; ok {
		kept.Labels = map[string]string{corev1.LabelNodeExcludeBalancers: value}
	}
	for key, value := range node.Annotations {
		if strings.HasPrefix(key, annotationPrefix) || key == AnnotationInstance {
			if kept.Annotations == nil {
				kept.Annotations = map[string]string{}
			}
			kept.Annotations[key] = value
		}
	}
	for _, c := range node.Status.Conditions {
		switch {
		case c.Type == corev1.NodeReady:
			kept.Status.Conditions = append(kept.Status.Conditions, corev1.NodeCondition{Type: c.Type, Status: c.Status})
		case strings.HasPrefix(string(c.Type), conditionPrefix):
			kept.Status.Conditions = append(kept.Status.Conditions, c)
		}
	}
	return kept, nil
}

// readiness returns the status of the node's condition Ready; empty: it has none.
func readiness(node *corev1.Node) corev1.ConditionStatus {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return ""
}

func excluded(node *corev1.Node) bool {
	_, ok := node.Labels[corev1.LabelNodeExcludeBalancers]
	return ok
}
