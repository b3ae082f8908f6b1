package kube

import (
	"context"
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nstance-go/nstance"
)

// goneLimit is how long the pods of a machine that is gone may delay the removal of
// its node.
const goneLimit = 4 * time.Second

// Gone removes the node of a machine that does not exist any more, so that its volumes
// and pods move at once: it taints the node as out of service, deletes its pods without
// grace, and deletes it within 5 s. Call it only when the provider has confirmed that
// the machine is gone: pods that still run somewhere would run twice. Nil means that
// the node does not exist. Fails with Unavailable when Run does not know the nodes yet
// or the cluster does not answer, and Conflict when two nodes match: repeat it.
func (d *Drainer) Gone(ctx context.Context, providerID string) error {
	if !d.nodes.informer.HasSynced() {
		return nstance.Errorf(nstance.Unavailable, "nodes are not listed yet")
	}
	node, err := d.nodes.find(providerID, nstance.InstanceID(providerID))
	if nstance.CodeOf(err) == nstance.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	log := d.options.Log.With("node", node.Name, "provider_id", providerID)
	if err := d.abandon(ctx, node.Name); err != nil {
		log.Warn("pods of a machine that is gone are not all deleted: its node is deleted all the same", "err", err)
	}
	return d.deleteNode(ctx, node)
}

// abandon taints a node and deletes its pods.
func (d *Drainer) abandon(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, goneLimit)
	defer cancel()
	if err := d.taint(ctx, name); err != nil {
		return err
	}
	pods, err := d.listPods(ctx, name, time.Time{})
	if err != nil {
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
func (d *Drainer) taint(ctx context.Context, name string) error {
	taint := corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}
	body, err := json.Marshal(map[string]any{"spec": map[string]any{"unschedulable": true, "taints": []corev1.Taint{taint}}})
	if err != nil {
		return err
	}
	_, err = d.client.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, body, metav1.PatchOptions{})
	return err
}

func (d *Drainer) deleteNode(ctx context.Context, node *corev1.Node) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := classify(d.client.CoreV1().Nodes().Delete(ctx, node.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(node.UID))}))
	if code := nstance.CodeOf(err); code == nstance.NotFound || code == nstance.Conflict { // Conflict: another node has its name
		return nil
	}
	return err
}
