package nodedrain

import (
	"context"
	"errors"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/nstance-go/nstance"
)

// confirm reads a node once more. A new machine may have the name of an old one: pods that
// were listed by the name of the node, before this call, ran there. Fails with NotFound when
// the node is gone or another one has its name, with Conflict when the kubelet of another
// machine has taken it over.
func (d *Drainer) confirm(ctx context.Context, node *corev1.Node) error {
	now, err := d.getNode(ctx, node.Name)
	switch {
	case err != nil:
		return classify(err)
	case now.UID != node.UID:
		return replaced(node)
	case d.nodes.systems.changed(now):
		return nstance.Errorf(nstance.Conflict, "another machine runs as node %s, whose provider ID is %s: "+
			"delete the node and restart the kubelet, which then registers the machine's own", node.Name, now.Spec.ProviderID)
	}
	return nil
}

func replaced(node *corev1.Node) error {
	return nstance.Errorf(nstance.NotFound, "node %s was replaced by another of its name", node.Name)
}

// hasOtherUID reports whether a patch failed because its object has another UID.
func hasOtherUID(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || status.ErrStatus.Details == nil {
		return false
	}
	return slices.ContainsFunc(status.ErrStatus.Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}

func unlessNotFound(err error) error {
	if nstance.CodeOf(err) == nstance.NotFound || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// systems remember on which machine each node was seen first. A kubelet that starts takes
// over the node of its name as it is, with the provider ID of the machine before. It is safe
// for concurrent use.
type systems struct {
	mu    sync.Mutex
	first map[types.UID]string // the system UUID
}

func (s *systems) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: s.add,
		UpdateFunc: func(before, now any) {
			if before.(*corev1.Node).UID != now.(*corev1.Node).UID {
				s.remove(before)
			}
			s.add(now)
		},
		DeleteFunc: s.remove,
	}
}

func (s *systems) add(obj any) {
	node := obj.(*corev1.Node)
	s.mu.Lock()
	defer s.mu.Unlock()
	if id := node.Status.NodeInfo.SystemUUID; id != "" && s.first[node.UID] == "" {
		if s.first == nil {
			s.first = map[types.UID]string{}
		}
		s.first[node.UID] = id
	}
}

func (s *systems) remove(obj any) {
	if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = last.Obj
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.first, obj.(*corev1.Node).UID)
}

// changed reports whether the node runs on another machine than at first.
func (s *systems) changed(node *corev1.Node) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, is := s.first[node.UID], node.Status.NodeInfo.SystemUUID
	return first != "" && is != "" && first != is
}
