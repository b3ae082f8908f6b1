package nodedrain

import (
	"cmp"
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nstance-go/nstance"
)

// blockedInterval is after how long it is said again what blocks a drain.
const blockedInterval = time.Minute

// A blockedPod keeps a node from being empty.
type blockedPod struct {
	*corev1.Pod
	why string
}

func (b *blockedPod) String() string {
	if b == nil {
		return ""
	}
	return "pod " + podName(b.Pod) + ": " + b.why
}

// block names the first pod that does not leave.
func (r *round) block(pod *corev1.Pod, why string) {
	if r.blocked == nil {
		r.blocked = &blockedPod{pod, why}
	}
}

// doesNotEnd says why a terminating pod is still there.
func doesNotEnd(pod *corev1.Pod, unreachable bool) string {
	text := "its grace period is over, and it has not ended"
	if unreachable {
		text = "the kubelet of its node is silent, and cannot say that it has ended"
	}
	if len(pod.Finalizers) > 0 {
		text += "; finalizers: " + strings.Join(pod.Finalizers, ", ")
	}
	return text
}

// A blockReport is what was said of the pods, or the errors, that keep a node from being
// empty.
type blockReport struct {
	since time.Time // when the first of a run of them was found; zero: there is none
	text  string    // what was said last
	at    time.Time // when
}

// due reports whether it is time to say a text, which is empty when nothing blocks. One that
// is said again is for a coordinator that has lost it.
func (b *blockReport) due(text string, now time.Time) bool {
	if text == "" {
		b.since = time.Time{}
		return b.text != ""
	}
	if b.since.IsZero() {
		b.since = now
	}
	return now.Sub(b.since) >= progressInterval && now.Sub(b.at) >= blockedInterval
}

// reportBlocked says in events which pod keeps the node from being empty, and why. The
// coordinator is told if the drain has no deadline.
func (w *worker) reportBlocked(ctx context.Context, dr nstance.Drain, pod *blockedPod) {
	text, now := pod.String(), time.Now()
	if !w.block.due(text, now) {
		return
	}
	if pod != nil && text != w.block.text {
		why := "node " + w.node.Name + " is drained " + until(dr) + " because of " + because(dr)
		w.d.events.onPod(pod.Pod, corev1.EventTypeWarning, reasonBlocked, "the drain waits for this pod: "+pod.why+": "+why)
		w.d.events.onNode(w.node, corev1.EventTypeWarning, reasonBlocked, "the drain waits for "+text)
	}
	w.block.text, w.block.at = text, now
	if dr.Unlimited() {
		w.tellBlocked(ctx)
	}
}

// reportTrouble tells the coordinator which error keeps a drain without deadline from going
// on; nil: none does any more. Other drains end at their deadline.
func (w *worker) reportTrouble(ctx context.Context, err error) {
	text, now := "", time.Now()
	if err != nil {
		text = err.Error()
	}
	if dr := w.current(); !dr.Unlimited() || !w.trouble.due(text, now) {
		return
	}
	w.trouble.text, w.trouble.at = text, now
	w.tellBlocked(ctx)
}

// tellBlocked tells the coordinator what the drain waits for.
func (w *worker) tellBlocked(ctx context.Context) {
	ack := nstance.Ack{
		Instance: w.instance, Generation: w.generation, By: nstance.ExecutorOperator, Outcome: nstance.OutcomeBlocked,
		Message: cmp.Or(w.trouble.text, w.block.text),
	}
	if err := w.sendAck(ctx, ack); err != nil {
		w.log.Warn("coordinator not told what the drain waits for", "err", err)
	}
}
