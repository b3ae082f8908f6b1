package protection

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// A Cause says what ends a node.
type Cause string

// The causes. For a Replacement its maker has other nodes ready first, so nothing needs to
// bridge it.
const (
	Reclaim     Cause = "reclaim"     // the cloud takes the machine back, or it was stopped
	ScaleDown   Cause = "scale-down"  // its pods are evicted, and no node is made for them
	Replacement Cause = "replacement" // voluntary, and other nodes come first
)

// A Signal says that a node is about to end.
type Signal struct {
	Cause   Cause
	EventID string // of node and cause: one interruption has several taints, conditions and events
	Reason  string // taint, condition or event, with its message
}

// Loses reports whether pods lose their node before there is another.
func (s *Signal) Loses() bool { return s != nil && s.Cause != Replacement }

// eventAge is how old an event may be that announces something: clouds take machines back
// within minutes.
const eventAge = 10 * time.Minute

// Taints of Karpenter, https://karpenter.sh/docs/concepts/disruption/#control-flow: it puts
// the taint on a node that it disrupts, whatever for. That of versions before 1.0 is
// karpenter.sh/disruption.
var karpenterTaints = []string{"karpenter.sh/disrupted", "karpenter.sh/disruption"}

// Voluntary reasons of Karpenter, in the condition DisruptionReason of a NodeClaim
// (sigs.k8s.io/karpenter/pkg/apis/v1, DisruptionReason). It waits for replacements before
// it deletes the NodeClaim. An interruption or expiry deletes it without a reason.
var voluntaryReasons = []string{"Underutilized", "Empty", "Drifted"}

// lossTaints announce the end of a machine.
//   - aws-node-termination-handler, pkg/node/node.go, with TAINT_NODE: it cordons and drains
//     then.
//   - GKE: https://cloud.google.com/kubernetes-engine/docs/concepts/spot-vms, and
//     node-termination-handler of Google's before it.
//   - Azure's cloud provider, docs/…/load balancer draining: draining=spot-eviction.
//   - the cloud's node lifecycle controller, k8s.io/cloud-provider/api: the machine is off.
var lossTaints = map[string]Cause{
	"aws-node-termination-handler/spot-itn":                  Reclaim,
	"aws-node-termination-handler/scheduled-maintenance":     Reclaim,
	"aws-node-termination-handler/asg-lifecycle-termination": Reclaim,
	"aws-node-termination-handler/rebalance-recommendation":  Reclaim,
	"cloud.google.com/impending-node-termination":            Reclaim,
	"cloudprovider.azure.microsoft.com/draining":             Reclaim,
	"node.cloudprovider.kubernetes.io/shutdown":              Reclaim,

	// Cluster Autoscaler, utils/taints: the node is drained and deleted. It has checked
	// that the pods fit elsewhere at that time, and makes no node for them.
	"ToBeDeletedByClusterAutoscaler": ScaleDown,
}

// lossEvents are reasons of events on Nodes.
//   - SpotInterrupted, TerminatingOnInterruption, InstanceStopping, InstanceTerminating:
//     Karpenter's providers, pkg/controllers/interruption/events. They read the cloud's queue.
//   - SpotInterruption, SQSTermination: aws-node-termination-handler,
//     pkg/observability/k8s-events.go, from the metadata service or the cloud's queue.
//   - PreemptScheduled: AKS's node problem detector,
//     https://learn.microsoft.com/azure/aks/node-problem-detector.
var lossEvents = []string{
	"SpotInterrupted", "TerminatingOnInterruption", "InstanceStopping", "InstanceTerminating", "SpotInterruption", "SQSTermination", "PreemptScheduled",
}

// voluntaryEvent is Karpenter's on a node that it disrupts voluntarily,
// sigs.k8s.io/karpenter/pkg/controllers/disruption/events. Versions before 1.1 have no
// condition that says so.
const voluntaryEvent = "DisruptionTerminating"

// KnownEvent reports whether an event on a node means something here.
func KnownEvent(reason string) bool {
	return reason == voluntaryEvent || slices.Contains(lossEvents, reason)
}

// Detect returns what a node's taints, conditions and events, and Karpenter's NodeClaim for
// it, announce; nil: nothing. claim is nil where there is none.
func Detect(node *corev1.Node, claim *unstructured.Unstructured, events []corev1.Event, now time.Time) *Signal {
	event := latest(node, events, lossEvents, now)
	if event != nil {
		return signal(node, Reclaim, event.Reason+": "+event.Message)
	}
	for _, t := range node.Spec.Taints {
		if cause, ok := lossTaints[t.Key]; ok {
			return signal(node, cause, "taint "+t.ToString())
		}
	}
	for _, c := range node.Status.Conditions {
		if announces(c) {
			return signal(node, Reclaim, string(c.Type)+": "+c.Message)
		}
	}
	return detectKarpenter(node, claim, events, now)
}

// announces reports whether a condition announces the end of a machine: that of AKS's node
// problem detector for spot VMs (PreemptionScheduled; VMEventScheduled is of any event), or
// the kubelet's during a graceful shutdown (pkg/kubelet/nodeshutdown).
func announces(c corev1.NodeCondition) bool {
	switch c.Type {
	case "PreemptionScheduled":
		return c.Status == corev1.ConditionTrue
	case "VMEventScheduled":
		return c.Status == corev1.ConditionTrue && strings.Contains(c.Message, "Preempt")
	case corev1.NodeReady:
		return c.Status == corev1.ConditionFalse && strings.Contains(c.Message, "node is shutting down")
	}
	return false
}

// detectKarpenter tells interruptions and forced deletions from voluntary disruption. While
// a NodeClaim is not being deleted, its replacements are prepared, and the taint may be taken
// away again.
func detectKarpenter(node *corev1.Node, claim *unstructured.Unstructured, events []corev1.Event, now time.Time) *Signal {
	tainted := slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return slices.Contains(karpenterTaints, t.Key) })
	reason, deleting := disruptionOf(claim), claim != nil && claim.GetDeletionTimestamp() != nil
	voluntary := slices.Contains(voluntaryReasons, reason) || latest(node, events, []string{voluntaryEvent}, now) != nil
	switch {
	case !tainted && !deleting:
		return nil
	case voluntary:
		return signal(node, Replacement, "Karpenter replaces the node: "+reason)
	case deleting:
		return signal(node, Reclaim, "NodeClaim "+claim.GetName()+" is being deleted")
	case claim == nil:
		return signal(node, Reclaim, "Karpenter's taint, and there is no NodeClaim")
	}
	return signal(node, Replacement, "Karpenter prepares the node's replacement")
}

// disruptionOf returns the reason of a NodeClaim's condition DisruptionReason; empty: it is
// not true.
func disruptionOf(claim *unstructured.Unstructured) string {
	if claim == nil {
		return ""
	}
	conditions, _, _ := unstructured.NestedSlice(claim.Object, "status", "conditions")
	for _, c := range conditions {
		m, ok := c.(map[string]any)
		if ok && m["type"] == "DisruptionReason" && m["status"] == string(metav1.ConditionTrue) {
			reason, _ := m["reason"].(string)
			return reason
		}
	}
	return ""
}

// NodeOf returns the name of a NodeClaim's node; empty: it has none yet.
func NodeOf(claim *unstructured.Unstructured) string {
	name, _, _ := unstructured.NestedString(claim.Object, "status", "nodeName")
	return name
}

func signal(node *corev1.Node, cause Cause, reason string) *Signal {
	return &Signal{Cause: cause, EventID: string(cause) + "/" + string(node.UID), Reason: reason}
}

// latest returns the latest event of a node with one of these reasons; nil: there is none
// that still counts.
func latest(node *corev1.Node, events []corev1.Event, reasons []string, now time.Time) (found *corev1.Event) {
	for i := range events {
		e := &events[i]
		at := seenAt(e)
		if e.InvolvedObject.Name != node.Name || !slices.Contains(reasons, e.Reason) || at.Before(node.CreationTimestamp.Time) || now.Sub(at) > eventAge {
			continue
		}
		if found == nil || seenAt(found).Before(at) {
			found = e
		}
	}
	return found
}

func seenAt(e *corev1.Event) time.Time {
	at := e.CreationTimestamp.Time
	for _, other := range []time.Time{e.LastTimestamp.Time, e.EventTime.Time} {
		if other.After(at) {
			at = other
		}
	}
	if e.Series != nil && e.Series.LastObservedTime.After(at) {
		at = e.Series.LastObservedTime.Time
	}
	return at
}
