package nodedrain

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

// AnnotationInstance on a node names its instance, from the first comparison that found both:
// the machine may be gone at the next, and the node's provider ID need not say whose it was.
const AnnotationInstance = "nstance.dev/instance"

// Times of the comparison of nodes and instances.
const (
	compareInterval = time.Minute
	suspectInterval = 10 * time.Second // while the machine of a node is gone, and its kubelet not silent for long enough
	comparePause    = time.Second      // at least, between two
)

// Bounds of one comparison. What is left is for the next.
const (
	compareWidth = 64
	maxMarks     = 256
)

// Instances know what has become of the instances whose nodes a Drainer drains.
// Implementations must be safe for concurrent use.
type Instances interface {
	// OfNodes returns what is known of the instances of nodes now. Nodes of others are left
	// out, and those whose instance cannot be told: nothing is ever done to a node that is
	// not in the answer. The nodes are as those of Find.
	OfNodes(ctx context.Context, nodes []*corev1.Node) map[types.UID]Known
}

// Known is what is known of the instance of a node.
type Known struct {
	Instance nstance.InstanceID
	State    InstanceState
}

// An InstanceState says what becomes of an instance.
type InstanceState string

// The states.
const (
	InstanceStays  InstanceState = "stays"  // nothing drains it, and it is not being deleted
	InstanceLeaves InstanceState = "leaves" // it is drained, or being deleted
	InstanceGone   InstanceState = "gone"   // the provider has confirmed that there is no machine
)

// Compare has nodes compared with Options.Instances soon, instead of within a minute.
func (d *Drainer) Compare() {
	select {
	case d.wakeCompare <- struct{}{}:
	default:
	}
}

// compare repairs until ctx ends what events did not say, since no Drainer ran, or no shard
// was connected: cordons of drains that are over, nodes whose machine is gone.
func (d *Drainer) compare(ctx context.Context) {
	d.nodes.awaitSync(ctx)
	for ctx.Err() == nil {
		next := time.NewTimer(d.compareOnce(ctx))
		if !sleep.For(ctx, comparePause) {
			return
		}
		select {
		case <-next.C:
		case <-d.wakeCompare:
		case <-ctx.Done():
		}
		next.Stop()
	}
}

// compareOnce makes one comparison, and returns when the next one is due.
func (d *Drainer) compareOnce(ctx context.Context) (next time.Duration) {
	nodes := d.nodes.all()
	known := d.options.Instances.OfNodes(ctx, nodes)
	d.kubelets.keep(nodes)
	next = compareInterval
	var gone errgroup.Group
	gone.SetLimit(compareWidth)
	for _, node := range nodes {
		switch k := known[node.UID]; {
		case k.State == InstanceStays && node.Annotations[annotationInstance] == string(k.Instance):
			d.takeBack(ctx, node, k.Instance)
		case k.State == InstanceGone:
			next = suspectInterval
			gone.Go(func() error { return d.removeSilent(ctx, node, k.Instance) })
		}
	}
	_ = gone.Wait() // logged
	if d.mark(ctx, nodes, known) {
		next = 0
	}
	return next
}

// takeBack takes back what a drain did that is over, unless a drain is at work there.
func (d *Drainer) takeBack(ctx context.Context, node *corev1.Node, id nstance.InstanceID) {
	w := newWorker(d, nstance.Drain{Instance: id, ProviderID: node.Spec.ProviderID}, false)
	d.mu.Lock()
	if d.workers[id] != nil {
		d.mu.Unlock()
		return
	}
	w.start(ctx) // before a drain that begins now may find it
	d.workers[id] = w
	d.mu.Unlock()
	d.start(func() {
		defer w.close()
		w.restore(w.life)
	})
}

// removeSilent removes a node whose machine is gone and whose kubelet is silent.
func (d *Drainer) removeSilent(ctx context.Context, node *corev1.Node, id nstance.InstanceID) error {
	silent, err := d.kubelets.silent(ctx, node)
	if err == nil && silent {
		err = d.Gone(ctx, id, node.Spec.ProviderID)
	}
	if err != nil {
		d.options.Log.Warn("node of a machine that is gone not removed: retrying", "node", node.Name, "instance_id", id, "err", err)
	}
	return err
}

// mark names the instances of nodes on them, and reports whether some are left that are worth
// another try at once. A node that cannot be marked keeps no other from it.
func (d *Drainer) mark(ctx context.Context, nodes []*corev1.Node, known map[types.UID]Known) (more bool) {
	var (
		marks  errgroup.Group
		marked atomic.Int64
	)
	marks.SetLimit(compareWidth)
	tried := 0
	for _, node := range nodes {
		k, ok := known[node.UID]
		if !ok || k.State == InstanceGone || node.Annotations[AnnotationInstance] == string(k.Instance) {
			continue
		}
		if more = tried == maxMarks; more {
			break
		}
		tried++
		marks.Go(func() error {
			p := &nodePatch{}
			p.annotate(AnnotationInstance, string(k.Instance))
			if _, err := d.patchNode(ctx, node, p); err != nil {
				return fmt.Errorf("node %s of instance %s: %w", node.Name, k.Instance, err)
			}
			marked.Add(1)
			return nil
		})
	}
	if err := marks.Wait(); err != nil {
		d.options.Log.Warn("nodes not marked with their instances: retrying", "nodes", tried-int(marked.Load()), "err", err)
	}
	return more && marked.Load() > 0
}

// instanceNamed returns the instance that a provider ID ends with; empty: none.
func instanceNamed(providerID string) nstance.InstanceID {
	id, err := nstance.ParseInstanceID(providerID[strings.LastIndexByte(providerID, '/')+1:])
	if err != nil {
		return ""
	}
	return id
}

// InstanceOf returns the instance that a node names, in its annotation or its provider ID;
// empty: none.
func InstanceOf(node *corev1.Node) nstance.InstanceID {
	if id, err := nstance.ParseInstanceID(node.Annotations[AnnotationInstance]); err == nil {
		return id
	}
	return instanceNamed(node.Spec.ProviderID)
}
