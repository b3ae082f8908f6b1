package kube

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

const (
	evictionBackoff  = 500 * time.Millisecond
	maxBackoff       = 5 * time.Second
	progressInterval = 10 * time.Second
	maxListed        = 10 // names of pods in an annotation
)

// removePods returns when no pod is left that the drain waits for.
func (w *worker) removePods(ctx context.Context) error {
	for {
		if err := w.cordon(ctx); err != nil {
			return err
		}
		dr := w.current()
		all, err := w.candidates(ctx, dr)
		if err != nil {
			return err
		}
		r := planRound(all, w.tries, dr, w.d.options.Margin, time.Now())
		w.setRemaining(r.String())
		w.reportProgress(ctx, r.remaining)
		if r.remaining == 0 {
			return nil
		}
		if w.takeSteps(ctx, dr, r.steps) {
			continue
		}
		if err := w.pause(ctx, r.next); err != nil {
			return err
		}
	}
}

// setRemaining says what the drain waits for. It is looked at less often while that
// does not change.
func (w *worker) setRemaining(text string) {
	if w.unchanged++; text != w.remaining {
		w.remaining, w.unchanged = text, 0
	}
}

// pause waits until the pods are worth another look.
func (w *worker) pause(ctx context.Context, next time.Time) error {
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
	w.staying = nil
	var all []candidate
	for i := range pods {
		pod := &pods[i]
		rule, stay, err := w.ruleFor(ctx, dr, pod)
		switch {
		case err != nil:
			return nil, err
		case stay:
			if !finished(pod) {
				w.staying = append(w.staying, pod)
			}
		case unreachable && pod.DeletionTimestamp != nil && graceOver(pod, w.tries[pod.UID], w.d.options.Margin, time.Now()):
			// Its kubelet cannot confirm the end.
		default:
			w.hasVolumes = w.hasVolumes || len(claimsOf(pod)) > 0
			all = append(all, candidate{pod, rule})
		}
	}
	return all, nil
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
	if dr.CordonOnly && rule.Behavior == Evict {
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

// takeSteps evicts in parallel, records what came of it, and reports whether a pod must
// be deleted past its disruption budget now.
func (w *worker) takeSteps(ctx context.Context, dr nstance.Drain, steps []step) (urgent bool) {
	errs := make([]error, len(steps))
	var all sync.WaitGroup
	for i, s := range steps {
		all.Go(func() { errs[i] = w.takeStep(ctx, dr, s) })
	}
	all.Wait()
	for i, s := range steps {
		w.record(dr, s, errs[i])
		urgent = urgent || s.evicts() && overrides(w.tries[s.pod.UID], latestStart(s.pod, dr.Deadline, w.d.options.Margin), dr)
	}
	return urgent
}

func (w *worker) takeStep(ctx context.Context, dr nstance.Drain, s step) error {
	return w.d.gate.pass(ctx, w.d.slots, dr.Deadline, func(ctx context.Context) error {
		if s.evicts() {
			return w.d.options.Evictor.Evict(ctx, s.pod, s.grace)
		}
		return w.d.deletePod(ctx, s.pod, s.grace)
	})
}

func (w *worker) record(dr nstance.Drain, s step, err error) {
	name := s.pod.Namespace + "/" + s.pod.Name
	text := "node " + w.node.Name + " is drained until " + until(dr.Deadline) + " because of " + because(dr)
	t := w.tries[s.pod.UID]
	switch code := nstance.CodeOf(err); {
	case err == nil && s.override:
		w.overridden = append(w.overridden, name)
		w.d.events.onPod(s.pod, corev1.EventTypeWarning, reasonOverridden, "deleted past its disruption budget, which left no time for its grace period: "+text)
		w.log.Warn("pod deleted past its disruption budget", "pod", name)
	case err == nil && s.shorten:
		t.shortenedFor = dr.Deadline
		w.d.events.onPod(s.pod, corev1.EventTypeNormal, reasonShortened, fmt.Sprintf("grace period shortened to %d s: %s", *s.grace, text))
	case err == nil:
		w.d.events.onPod(s.pod, corev1.EventTypeNormal, reasonEvicted, "evicted: "+text)
	case code == nstance.NotFound:
	case code == nstance.Denied && s.evicts():
		t.refusedAt = time.Now()
		fallthrough
	default:
		t.failures++
		t.next = time.Now().Add(sleep.Jitter(sleep.Backoff(t.failures, evictionBackoff, maxBackoff)))
		if t.failures == 1 {
			w.log.Info("pod not evicted: retrying until the deadline", "pod", name, "code", string(code), "err", err)
		}
	}
	w.tries[s.pod.UID] = t
}

// reportProgress annotates the node with what remains, now and then, and has load
// balancers leave it out once others can serve.
func (w *worker) reportProgress(ctx context.Context, remaining int) {
	p := &nodePatch{}
	if remaining > 0 && time.Since(w.reported) >= progressInterval && w.node.Annotations[annotationProgress] != w.remaining {
		p.annotate(annotationProgress, w.remaining)
	}
	w.annotateOverridden(p)
	if w.mayExclude(w.node) {
		p.exclude()
	}
	if p.empty() {
		return
	}
	w.reported = time.Now()
	node, err := w.d.patchNode(ctx, w.node.Name, p)
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
	if w.unreachable() || !w.hasVolumes && (node == nil || len(node.Status.VolumesAttached) == 0) {
		return nil
	}
	staying, err := w.d.volumesOf(ctx, w.staying)
	if err != nil {
		return err
	}
	for {
		attached, err := w.d.attachments.since(ctx, time.Now())
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
}
