package nodedrain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/sleep"
)

const (
	answerTime      = time.Second      // how long answers are awaited before anything else is done
	leastEviction   = time.Second      // for one eviction, however little time is left
	webhookTimeout  = 15 * time.Second // for one that had no answer before: admission webhooks have 10 s where they do not say otherwise
	evictionBackoff = 500 * time.Millisecond
	backoffShare    = 20
)

// An answer is what came of a step.
type answer struct {
	step
	err error
}

// takeSteps sends the requests of a round in parallel and records what comes of them, for
// answerTime or until the next ones are due: an admission webhook that hangs delays no other
// pod by more. It reports whether a pod must be deleted past its disruption budget now.
func (w *worker) takeSteps(ctx context.Context, dr nstance.Drain, r round) (urgent bool) {
	for _, s := range r.steps {
		w.send(ctx, dr, s)
	}
	wait := answerTime
	if !r.next.IsZero() {
		wait = min(wait, time.Until(r.next))
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for w.pending > 0 {
		select {
		case a := <-w.answers:
			if w.record(dr, a) && !urgent {
				urgent = true
				timer.Reset(settleTime) // others are refused in the same moment
			}
		case <-timer.C:
			return urgent
		case <-ctx.Done():
			return false
		}
	}
	return urgent
}

// send takes a step in the background.
func (w *worker) send(ctx context.Context, dr nstance.Drain, s step) {
	t := w.tries[s.pod.UID]
	before := t
	t.inFlight = true
	w.tries[s.pod.UID] = t
	w.pending++
	f := w.frame(dr)
	w.d.start(func() {
		a := answer{s, w.takeStep(ctx, s, f, before)}
		select {
		case w.answers <- a:
		case <-ctx.Done():
		}
	})
}

// takeStep sends one request.
func (w *worker) takeStep(ctx context.Context, s step, f timeFrame, before try) error {
	if !s.evicts() {
		return w.delete(ctx, s, f)
	}
	err := w.evict(ctx, s, f, before)
	// A grant may have come before this drain, or after its last try had given up.
	_, budget := errors.AsType[budgetRefusal](err)
	if budget && (before.failures == 0 || before.unanswered) && w.d.granted(ctx, s.pod) {
		return w.delete(ctx, s, f)
	}
	return err
}

func (w *worker) delete(ctx context.Context, s step, f timeFrame) error {
	return w.d.gate.pass(ctx, w.d.slots, f.deadline, func(ctx context.Context) error {
		return w.d.deletePod(ctx, s.pod, s.grace)
	})
}

// evict asks for an eviction until its pod is to be deleted without one. One whose last try
// had no answer has more time, since a webhook may have it, but few slots, so that others
// have the rest.
func (w *worker) evict(ctx context.Context, s step, f timeFrame, before try) error {
	ctx, cancel := context.WithTimeout(ctx, max(time.Until(f.overrideAt(s.pod)), leastEviction))
	defer cancel()
	limit := callTimeout
	if before.unanswered {
		limit = webhookTimeout
		if err := w.d.retries.acquire(ctx, f.deadline); err != nil {
			return err
		}
		defer w.d.retries.release()
	}
	return w.d.gate.pass(ctx, w.d.slots, f.deadline, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return w.d.options.Evictor.Evict(ctx, s.pod, s.grace)
	})
}

// record records what came of a step, and reports whether its pod must be deleted past its
// disruption budget now.
func (w *worker) record(dr nstance.Drain, a answer) (urgent bool) {
	w.pending--
	t := w.tries[a.pod.UID]
	t.inFlight, t.unanswered = false, false
	if a.err == nil {
		w.recordRemoval(dr, a.step, &t)
	} else { // also NotFound: a pod that is gone is not listed again
		w.recordFailure(a, nstance.CodeOf(a.err), &t)
	}
	w.tries[a.pod.UID] = t
	return a.evicts() && overrides(a.pod, t, w.frame(dr))
}

func (w *worker) recordRemoval(dr nstance.Drain, s step, t *try) {
	text := "node " + w.node.Name + " is drained " + until(dr) + " because of " + because(dr)
	switch {
	case s.override:
		w.overridden = append(w.overridden, podName(s.pod))
		w.d.count(func(s *Stats) { s.PDBOverridden++ })
		w.d.events.onPod(s.pod, corev1.EventTypeWarning, reasonOverridden, "deleted past its disruption budget, since its eviction was refused until its grace period had to begin ("+t.refusal+"): "+text)
		w.log.Warn("pod deleted past its disruption budget", "pod", podName(s.pod), "refusal", t.refusal)
	case s.shorten:
		t.shortenedFor = dr.Deadline
		w.d.events.onPod(s.pod, corev1.EventTypeNormal, reasonShortened, fmt.Sprintf("grace period shortened to %d s: %s", *s.grace, text))
	default:
		w.d.events.onPod(s.pod, corev1.EventTypeNormal, reasonEvicted, "evicted: "+text)
	}
}

// recordFailure plans another try. An eviction that fails again and again counts as refused,
// whatever refuses it: the pod shall not be killed without notice for that.
func (w *worker) recordFailure(a answer, code nstance.Code, t *try) {
	now := time.Now()
	if a.evicts() && (code == nstance.Denied || t.failures > 0) {
		t.refusedAt, t.refusal = now, refusal(a.err, t.refusal)
	}
	t.unanswered = code == nstance.Unavailable
	t.failures++
	t.next = now.Add(sleep.Jitter(sleep.Backoff(t.failures, evictionBackoff, w.longestBackoff(a.pod))))
	if t.failures == 1 {
		w.log.Info("pod not evicted: retrying until the deadline", "pod", podName(a.pod), "code", string(code), "err", a.err)
	}
}

// longestBackoff is the longest wait between two tries for a pod: a share of the time until it is
// deleted past its disruption budget, which may permit it at any moment until then.
func (w *worker) longestBackoff(pod *corev1.Pod) time.Duration {
	left := time.Until(w.frame(w.current()).overrideAt(pod))
	return min(max(w.d.budget.pollInterval(w.d.countDraining(0)), left/backoffShare), maxBackoff)
}

// refusal says what keeps a pod from being evicted. An answer before says more than none now.
func refusal(err error, before string) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return cmp.Or(before, "the API server has not answered: an admission webhook for evictions may hang")
	}
	return clip.Words(err.Error())
}
