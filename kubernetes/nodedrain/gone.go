package nodedrain

import (
	"context"
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

// goneLimit is how long the pods of a machine that is gone may delay the removal of
// its node.
const goneLimit = 4 * time.Second

// detachLimit is how long volumes that are attached may delay the removal of a node.
const (
	detachLimit = 30 * time.Second
	detachPoll  = 250 * time.Millisecond
)

// Gone removes the node of a machine that does not exist any more, so that its volumes
// and pods move at once: it taints the node as out of service, deletes its pods without
// grace within 4 s, waits at most 30 s until Kubernetes has detached its volumes, and
// deletes it. A node that is deleted before that keeps them for six minutes. Call it only when the provider has confirmed that
// the machine is gone: pods that still run somewhere would run twice. Its node has the
// provider's ID of the machine, or that of the instance, in its own; a provider's ID that is
// a number, which machines of other clusters have too, finds no node. Nil means that the
// node does not exist: another one that has its name by now, and the pods there, are left
// alone. Fails with Unavailable when Run does not know the nodes yet or the cluster does not
// answer, and Conflict when two nodes match, or another machine has taken the node over:
// repeat it.
func (d *Drainer) Gone(ctx context.Context, instance nstance.InstanceID, providerID string) error {
	if !d.nodes.informer.HasSynced() {
		return errNotListed
	}
	node, err := d.nodes.find(providerID, instance)
	if nstance.CodeOf(err) == nstance.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	log := d.options.Log.With("node", node.Name, "instance_id", instance, "provider_id", providerID)
	if err := d.abandon(ctx, node); err != nil {
		log.Warn("pods of a machine that is gone are not all deleted", "err", err)
	}
	if err := d.confirm(ctx, node); err != nil {
		return unlessNotFound(err)
	}
	if err := d.awaitDetached(ctx, node.Name); err != nil {
		log.Warn("volumes of a machine that is gone are still attached: its node is deleted all the same", "err", err)
	}
	return d.deleteNode(ctx, node)
}

// awaitDetached returns when no volume is attached to a node any more. Fails with Conflict
// when one still is after detachLimit, with the last error when that is not known.
func (d *Drainer) awaitDetached(ctx context.Context, name string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, detachLimit)
	defer cancel()
	for {
		attached, e := d.attachments.Since(ctx, time.Now())
		switch {
		case e == nil && len(attached[name]) == 0:
			return nil
		case e == nil:
			err = nstance.Errorf(nstance.Conflict, "%d volumes are attached", len(attached[name]))
		case ctx.Err() == nil:
			err = e
		}
		if !sleep.For(ctx, detachPoll) {
			return err
		}
	}
}

// abandon taints a node and deletes its pods: those that were listed while it had its name.
func (d *Drainer) abandon(ctx context.Context, node *corev1.Node) error {
	ctx, cancel := context.WithTimeout(ctx, goneLimit)
	defer cancel()
	if err := d.confirm(ctx, node); err != nil {
		return err
	}
	if err := d.taint(ctx, node); err != nil {
		return err
	}
	pods, err := d.listPods(ctx, node.Name, time.Time{})
	if err != nil {
		return err
	}
	if err := d.confirm(ctx, node); err != nil {
		return err
	}
	zero, errs := int64(0), make(chan error, len(pods))
	for i := range pods {
		go func() {
			errs <- d.slots.do(ctx, time.Time{}, func(ctx context.Context) error { return d.deletePod(ctx, &pods[i], &zero) })
		}()
	}
	for range pods {
		if e := <-errs; e != nil && nstance.CodeOf(e) != nstance.NotFound {
			err = e
		}
	}
	return err
}

// taint has Kubernetes detach the volumes of the node by force.
func (d *Drainer) taint(ctx context.Context, node *corev1.Node) error {
	taint := corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID},
		"spec":     map[string]any{"unschedulable": true, "taints": []corev1.Taint{taint}},
	})
	if err != nil {
		return err
	}
	_, err = d.client.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{})
	return err
}

func (d *Drainer) deleteNode(ctx context.Context, node *corev1.Node) error {
	if err := d.confirm(ctx, node); err != nil {
		return unlessNotFound(err)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := classify(d.client.CoreV1().Nodes().Delete(ctx, node.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(node.UID))}))
	if code := nstance.CodeOf(err); code == nstance.NotFound || code == nstance.Conflict { // Conflict: another node has its name
		return nil
	}
	return err
}
