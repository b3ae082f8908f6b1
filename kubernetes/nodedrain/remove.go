package nodedrain

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

const (
	volumesLimit     = 6 * time.Minute // after which Kubernetes detaches volumes by force
	maxBackoff       = 5 * time.Second
	progressInterval = 10 * time.Second
	maxListed        = 10 // names of pods in an annotation
)

// removePods returns when no pod is left that the drain waits for.
func (w *worker) removePods(ctx context.Context) error {
	for {
		dr := w.current()
		if err := w.cordon(ctx, dr); err != nil {
			return err
		}
		all, err := w.candidates(ctx, dr)
		if err != nil {
			return err
		}
		if !w.nodeExists() {
			return errNodeDeleted // one that registers again is not cordoned
		}
		began := time.Now()
		r := planRound(all, w.tries, w.frame(dr), began)
		w.setRemaining(r.text())
		w.countRefused(r.refused > 0)
		w.reportProgress(ctx, r.remaining)
		w.reportBlocked(ctx, dr, r.blocked)
		if r.remaining == 0 {
			return nil
		}
		if len(r.steps) > 0 {
			if err := w.d.confirm(ctx, w.node); err != nil {
				return err // the listed pods may be those of another machine
			}
		}
		if w.takeSteps(ctx, dr, r) {
			continue
		}
		r.wakeAgain(planRound(all, w.tries, w.frame(dr), time.Now()), w.tries, began)
		if err := w.pause(ctx, r.next); err != nil {
			return err
		}
	}
}

// frame returns the time that a drain has, once its node is annotated with it.
func (w *worker) frame(dr nstance.Drain) timeFrame {
	return timeFrame{since: since(w.node), deadline: dr.Deadline, margin: w.d.options.Margin}
}

// setRemaining says what the drain waits for. It is looked at less often while that
// does not change.
func (w *worker) setRemaining(text string) {
	if w.unchanged++; text != w.remaining {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.remaining, w.unchanged = text, 0
	}
}

// pause waits until the pods are worth another look. No error keeps the drain from going on.
func (w *worker) pause(ctx context.Context, next time.Time) error {
	w.reportTrouble(ctx, nil)
	wait := w.d.budget.pollInterval(w.d.countDraining(0))
	longest := min(max(wait, time.Until(w.current().Deadline)/40), maxBackoff)
	wait = sleep.Backoff(w.unchanged+1, wait, longest)
	if !next.IsZero() {
		wait = min(wait, max(time.Until(next), time.Millisecond))
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.changed:
	case a := <-w.answers:
		w.record(w.current(), a)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// candidates lists the pods of the node that the drain waits for.
func (w *worker) candidates(ctx context.Context, dr nstance.Drain) ([]candidate, error) {
	pods, err := w.d.listPods(ctx, w.node.Name, dr.Deadline)
	if err != nil {
		return nil, err
	}
	unreachable := w.unreachable()
	w.staying, w.left = nil, nil
	var all []candidate
	for i := range pods {
		pod := &pods[i]
		rule, stay, err := w.ruleFor(ctx, dr, pod)
		if err != nil {
			rule, stay = Rule{Behavior: WaitCompleted}, false
		}
		switch {
		case stay:
			if !finished(pod) {
				w.staying = append(w.staying, pod)
			}
		case w.graceOver(pod, unreachable, stuckLimit):
			w.leave(pod, doesNotEnd(pod, unreachable))
		default:
			w.hasVolumes = w.hasVolumes || len(claimsOf(pod)) > 0
			c := candidate{pod: pod, rule: rule, unknown: err}
			if pod.DeletionTimestamp != nil && (unreachable || w.graceOver(pod, unreachable, confirmTime)) {
				c.stuck = doesNotEnd(pod, unreachable)
			}
			all = append(all, c)
		}
	}
	return all, nil
}

// graceOver reports whether the grace period of a terminating pod has been over for a time.
// A kubelet that is unreachable has none to confirm it.
func (w *worker) graceOver(pod *corev1.Pod, unreachable bool, since time.Duration) bool {
	if unreachable {
		since = 0
	}
	return pod.DeletionTimestamp != nil && graceOver(pod, w.tries[pod.UID], w.d.options.Margin, time.Now().Add(-since))
}

// leave has the drain wait no more for a pod that does not end, nor for its volumes.
func (w *worker) leave(pod *corev1.Pod, why string) {
	w.staying = append(w.staying, pod)
	w.left = append(w.left, podName(pod))
	if t := w.tries[pod.UID]; !t.left {
		t.left = true
		w.tries[pod.UID] = t
		w.d.events.onPod(pod, corev1.EventTypeWarning, reasonLeft, "the drain of node "+w.node.Name+" waits no more for this pod: "+why)
	}
}

// ruleFor says what becomes of a pod, and whether it stays.
func (w *worker) ruleFor(ctx context.Context, dr nstance.Drain, pod *corev1.Pod) (rule Rule, stay bool, err error) {
	orphan, err := w.d.orphan(ctx, pod)
	if err != nil || stays(pod, orphan) {
		return rule, true, err
	}
	if rule, ok := labelled(pod); ok {
		return rule, false, nil
	}
	if rules := w.d.options.Rules; rules != nil {
		rule, err = rules.Rule(ctx, dr, w.node, pod)
	}
	if rule.Behavior == Evict && (dr.CordonOnly || dr.Voluntary && !MayDisrupt(pod)) {
		rule.Behavior = WaitCompleted
	}
	return rule, rule.Behavior == Skip, err
}

// unreachable reports whether the node's kubelet has fallen silent.
func (w *worker) unreachable() bool {
	node := w.d.nodes.get(w.node.Name)
	return node != nil && readiness(node) == corev1.ConditionUnknown
}

func (d *Drainer) listPods(ctx context.Context, node string, deadline time.Time) ([]corev1.Pod, error) {
	var list *corev1.PodList
	err := d.slots.do(ctx, deadline, func(ctx context.Context) (err error) {
		selector := fields.OneTermEqualSelector("spec.nodeName", node).String()
		list, err = d.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: selector})
		return err
	})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// reportProgress annotates the node with what remains, now and then, and has load
// balancers leave it out once others can serve.
func (w *worker) reportProgress(ctx context.Context, remaining int) {
	p := &nodePatch{}
	due := remaining > 0 && time.Since(w.reported) >= progressInterval && w.node.Annotations[annotationProgress] != w.remaining
	if due {
		p.annotate(annotationProgress, w.remaining)
	}
	w.annotateOverridden(p)
	if w.mayExclude(w.node) {
		p.exclude()
	}
	if p.empty() {
		return
	}
	if due {
		w.reported = time.Now()
	}
	node, err := w.d.patchNode(ctx, w.node, p)
	if err != nil {
		w.log.Warn("progress not written to the node", "err", err)
		return
	}
	w.node = node
}

// annotateOverridden adds what was deleted past disruption budgets, unless it is there.
func (w *worker) annotateOverridden(p *nodePatch) {
	switch text := w.overriddenText(); text {
	case w.node.Annotations[annotationOverridden]:
	case "":
		p.annotate(annotationOverridden, nil) // of an earlier drain
	default:
		p.annotate(annotationOverridden, text)
	}
}

func (w *worker) overriddenText() string {
	return strings.Join(w.overridden[:min(maxListed, len(w.overridden))], ",")
}

func splitList(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}

// awaitVolumes returns when the volumes of the removed pods are detached.
func (w *worker) awaitVolumes(ctx context.Context) error {
	node := w.d.nodes.get(w.node.Name)
	if !w.hasVolumes && (node == nil || len(node.Status.VolumesAttached) == 0) {
		return nil
	}
	staying, err := w.d.volumesOf(ctx, w.staying)
	if err != nil {
		return err
	}
	for began := time.Now(); !w.unreachable() && time.Since(began) < volumesLimit; {
		attached, err := w.d.attachments.Since(ctx, time.Now())
		if err != nil {
			return err
		}
		rest := slices.DeleteFunc(slices.Clone(attached[w.node.Name]), func(a attachment) bool { return staying[a.persistentVolume] })
		if len(rest) == 0 {
			return nil
		}
		w.setRemaining("volumes attached: " + strconv.Itoa(len(rest)))
		if err := w.pause(ctx, time.Time{}); err != nil {
			return err
		}
	}
	return nil
}
