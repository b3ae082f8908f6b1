package operator

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/kubernetes/nodedrain"
)

// Bounds of the questions that one comparison of nodes asks the shards. What is left is asked
// by a later one.
const (
	maxQuestions  = 256
	questionWidth = 8
)

var _ nodedrain.Instances = (*fleet)(nil)

// An instanceIndex finds the instances of nodes: by a node's whole provider ID, or by the
// instance that the node names. What ends a provider ID is no identity: another cluster has a
// machine of the same number.
type instanceIndex struct {
	byProviderID map[string]*apiv1.Instance // in lower case: clouds do not agree on it
	byID         map[nstance.InstanceID]*apiv1.Instance
}

// instances returns those of all shards.
func (fl *fleet) instances() instanceIndex {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	var all []*apiv1.Instance
	for _, c := range fl.shards {
		all = append(all, c.AllInstances()...)
	}
	return newInstanceIndex(all)
}

func newInstanceIndex(all []*apiv1.Instance) instanceIndex {
	x := instanceIndex{map[string]*apiv1.Instance{}, map[nstance.InstanceID]*apiv1.Instance{}}
	for _, i := range all {
		x.byID[nstance.InstanceID(i.GetId())] = i
		x.byProviderID[strings.ToLower(i.GetNodeProviderId())] = i
	}
	delete(x.byProviderID, "")
	return x
}

// of returns the instance of a node; nil: none that is known.
func (x instanceIndex) of(node *corev1.Node) *apiv1.Instance {
	if i := x.byProviderID[strings.ToLower(node.Spec.ProviderID)]; i != nil {
		return i
	}
	return x.byID[nodedrain.InstanceOf(node)]
}

// OfNodes implements nodedrain.Instances. The copies of the shards answer for what they have; what they do
// not have, and what a drain has left a mark on, the shards are asked for.
func (fl *fleet) OfNodes(ctx context.Context, nodes []*corev1.Node) map[types.UID]nodedrain.Known {
	instances, out := fl.instances(), map[types.UID]nodedrain.Known{}
	var mu sync.Mutex
	note := func(node *corev1.Node, k nodedrain.Known) {
		mu.Lock()
		defer mu.Unlock()
		if k.State != "" {
			out[node.UID] = k
		}
	}
	var questions errgroup.Group
	questions.SetLimit(questionWidth)
	asked := 0
	for _, node := range nodes {
		id := nodedrain.InstanceOf(node)
		i := instances.of(node)
		if i != nil {
			id = nstance.InstanceID(i.GetId())
		}
		switch {
		case i != nil && node.Annotations[annotationDrainInstance] == "":
			note(node, knownOf(i))
		case id != "" && asked < maxQuestions:
			asked++
			questions.Go(func() error {
				note(node, fl.askShards(ctx, id))
				return nil
			})
		}
	}
	_ = questions.Wait() // never fails
	return out
}

// askShards asks the shards for an instance. It has no state when none that is connected knows
// it: that is no proof.
func (fl *fleet) askShards(ctx context.Context, id nstance.InstanceID) nodedrain.Known {
	fl.mu.Lock()
	all := slices.Collect(maps.Values(fl.shards))
	fl.mu.Unlock()
	for _, c := range all {
		i, err := c.Fresh(ctx, id)
		if err == nil {
			return knownOf(i)
		}
		if !errors.Is(err, nstance.NotFound) {
			fl.fleets.log.Info("instance of a node not asked for", "instance_id", id, "shard", c.Name(), "err", err)
		}
	}
	return nodedrain.Known{}
}

// knownOf returns what an instance means for its node. It has no state when its record cannot
// be read, or its create failed: it had no machine then.
func knownOf(i *apiv1.Instance) nodedrain.Known {
	k, state := nodedrain.Known{Instance: nstance.InstanceID(i.GetId())}, nstance.State(i.GetState())
	switch {
	case state == "", state == nstance.Failed, slices.Contains(i.GetConditions(), wire.Unreadable):
	case state == nstance.Deleted:
		k.State = nodedrain.InstanceGone
	case i.GetDrain() != nil, state.Leaving(), state == nstance.Gone:
		k.State = nodedrain.InstanceLeaves
	default:
		k.State = nodedrain.InstanceStays
	}
	return k
}
