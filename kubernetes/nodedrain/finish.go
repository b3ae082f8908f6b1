package nodedrain

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

// finish reports how the drain ended: to the hooks, on the node, to the coordinator.
func (w *worker) finish(ctx context.Context, ending Ending) {
	dr, result := w.current(), Result{Ending: ending, Message: w.message(ending), PDBOverridden: w.overridden}
	w.log.Info("drain finished", "ending", string(ending), "message", result.Message)
	if w.node != nil {
		w.reportOverridden(ctx)
		w.endHook(ctx, dr, result)
	}
	switch ending {
	case Drained:
		w.d.events.onNode(w.node, corev1.EventTypeNormal, reasonDrained, strings.TrimSpace("node is empty: its machine may be deleted. "+result.Message))
		w.acknowledge(ctx, nstance.OutcomeDrained, result.Message)
	case Expired:
		if w.node != nil {
			w.d.events.onNode(w.node, corev1.EventTypeWarning, reasonExpired, "node is not empty at the deadline, and its machine is deleted: "+result.Message)
		}
		w.acknowledge(ctx, nstance.OutcomeFailed, result.Message)
	}
}

// reportOverridden records the last override, if it was not yet.
func (w *worker) reportOverridden(ctx context.Context) {
	p := &nodePatch{}
	if w.annotateOverridden(p); !p.empty() {
		if _, err := w.d.patchNode(ctx, w.node, p); err != nil {
			w.log.Warn("overridden disruption budgets not written to the node", "err", err)
		}
	}
}

func (w *worker) endHook(ctx context.Context, dr nstance.Drain, r Result) {
	if hooks := w.d.options.Hooks; hooks != nil {
		w.hook(ctx, "end", func(ctx context.Context) error { return hooks.End(ctx, dr, w.node, r) })
	}
}

func (w *worker) message(ending Ending) string {
	var parts []string
	if ending != Drained {
		parts = append(parts, w.remaining)
	}
	if n := len(w.left); n > 0 {
		parts = append(parts, fmt.Sprintf("%d pods do not end, and are left: %s", n, strings.Join(w.left[:min(maxListed, n)], ",")))
	}
	if n := len(w.overridden); n > 0 {
		parts = append(parts, fmt.Sprintf("pdb_overridden for %d pods: %s", n, w.overriddenText()))
	}
	return strings.Join(parts, "; ")
}

// acknowledge repeats the acknowledgement until the coordinator has it or wants none, or the
// drain has ended.
func (w *worker) acknowledge(ctx context.Context, outcome nstance.Outcome, message string) {
	ack := nstance.Ack{Instance: w.instance, Generation: w.generation, By: nstance.ExecutorOperator, Outcome: outcome, Message: message}
	for failures := 1; ; failures++ {
		err := w.sendAck(ctx, ack)
		switch nstance.CodeOf(err) {
		case "":
			return
		case nstance.NotFound, nstance.Conflict, nstance.Denied, nstance.Invalid:
			w.log.Info("acknowledgement not wanted: the drain is over", "outcome", string(outcome), "err", err)
			return
		}
		w.log.Warn("acknowledgement not delivered: retrying", "outcome", string(outcome), "err", err)
		if !sleep.For(ctx, sleep.Jitter(sleep.Backoff(failures, 100*time.Millisecond, 5*time.Second))) || w.isStopped() {
			return
		}
	}
}

func (w *worker) sendAck(ctx context.Context, ack nstance.Ack) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return w.d.drains.Acknowledge(ctx, ack)
}

// restore takes back what the drain did to its node. A node that was not found in the
// drain has nothing to take back.
func (w *worker) restore(ctx context.Context) {
	w.d.nodes.awaitSync(ctx)
	for failures := 1; ctx.Err() == nil; failures++ {
		err := w.restoreNode(ctx)
		if err == nil {
			return
		}
		w.log.Warn("cancelled drain not taken back: retrying", "err", err)
		sleep.For(ctx, sleep.Jitter(sleep.Backoff(failures, 250*time.Millisecond, 30*time.Second)))
	}
}

func (w *worker) restoreNode(ctx context.Context) error {
	known, err := w.d.nodes.find(w.drain.ProviderID, w.instance)
	if err != nil {
		return unlessNotFound(err)
	}
	if !w.begun && known.Annotations[annotationInstance] != string(w.instance) {
		return nil // another executor's
	}
	node, err := w.d.getNode(ctx, known.Name)
	if err != nil {
		return unlessNotFound(err)
	}
	w.node = node
	if e, ok := w.d.options.Evictor.(Withdrawer); ok {
		if err := e.Withdraw(ctx, node); err != nil {
			return err
		}
	}
	w.endHook(ctx, w.drain, Result{Ending: Cancelled})
	if node.Annotations[annotationInstance] != string(w.instance) {
		return nil
	}
	uncordon, drain := w.mayUncordon(ctx, node), drainOf(node)
	node, sent, err := w.d.changeNode(ctx, node, func(now *corev1.Node) *nodePatch {
		if drainOf(now) != drain {
			return nil // another process has begun a newer one
		}
		return restorePatch(now, uncordon)
	})
	if err == nil && sent {
		w.log.Info("cancelled drain taken back", "node", node.Name, "uncordoned", uncordon)
		w.d.events.onNode(node, corev1.EventTypeNormal, reasonCancelled, cancelledText(uncordon, node))
	}
	return unlessNotFound(err)
}

// drainOf returns of which drain a node is annotated with.
func drainOf(node *corev1.Node) [2]string {
	return [2]string{node.Annotations[annotationInstance], node.Annotations[annotationGeneration]}
}

func (w *worker) mayUncordon(ctx context.Context, node *corev1.Node) bool {
	hooks, may := w.d.options.Hooks, true
	if hooks != nil {
		may = false
		w.hook(ctx, "may uncordon", func(ctx context.Context) (err error) {
			may, err = hooks.MayUncordon(ctx, w.drain, node)
			may = may && err == nil
			return err
		})
	}
	return may
}

func cancelledText(uncordon bool, node *corev1.Node) string {
	switch {
	case !uncordon:
		return "drain cancelled: the node stays cordoned, since a hook asks for it"
	case node.Spec.Unschedulable:
		return "drain cancelled: the node stays cordoned, as it was before"
	}
	return "drain cancelled: the node is schedulable again"
}
