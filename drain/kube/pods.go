package kube

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nstance-go/nstance"
)

const (
	labelDrain     = "cluster.x-k8s.io/drain" // skip or wait-completed
	systemPriority = 2_000_000_000            // of the classes system-cluster-critical and system-node-critical
)

// A candidate is a pod that the drain waits for.
type candidate struct {
	pod  *corev1.Pod
	rule Rule
}

// stays reports whether a pod is left on the node. An orphan is one whose DaemonSet
// does not exist.
func stays(pod *corev1.Pod, orphan bool) bool {
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return mirror || finished(pod) || pod.Labels[labelDrain] == string(Skip) || daemonSetOf(pod) != "" && !orphan
}

// labelled returns the behavior that the pod's label asks for.
func labelled(pod *corev1.Pod) (Rule, bool) {
	return Rule{Behavior: WaitCompleted}, pod.Labels[labelDrain] == string(WaitCompleted)
}

func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// daemonSetOf returns namespace/name of the DaemonSet that made the pod, else nothing.
func daemonSetOf(pod *corev1.Pod) string {
	if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "DaemonSet" {
		return pod.Namespace + "/" + owner.Name
	}
	return ""
}

// A tier is evicted when the tiers before it are gone.
type tier struct {
	order    int32
	critical bool
}

func (t tier) before(u tier) bool {
	return t.order < u.order || t.order == u.order && !t.critical && u.critical
}

func tierOf(c candidate) tier {
	t := tier{order: c.rule.Order}
	switch class := c.pod.Spec.PriorityClassName; {
	case class == "system-cluster-critical", class == "system-node-critical":
		t.critical = true
	case c.pod.Spec.Priority != nil:
		t.critical = *c.pod.Spec.Priority >= systemPriority
	}
	return t
}

// graceOf returns the pod's own grace period.
func graceOf(pod *corev1.Pod) time.Duration {
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		return time.Duration(*s) * time.Second
	}
	return corev1.DefaultTerminationGracePeriodSeconds * time.Second
}

// clampGrace returns the grace period that fits into the time left, rounded up to whole
// seconds: nil for the pod's own, else at least one, since zero kills without notice.
func clampGrace(own, left time.Duration) *int64 {
	seconds := max(1, int64((left+time.Second-1)/time.Second))
	if own <= time.Duration(seconds)*time.Second {
		return nil
	}
	return &seconds
}

// apiSecond is how far the API server's times, in whole seconds, are from the real ones.
const apiSecond = time.Second

// shortenedGrace returns the grace period for a pod that is terminating with more than
// the time left: nil if what it has fits, or was shortened for this deadline before.
func shortenedGrace(pod *corev1.Pod, t try, deadline time.Time, margin time.Duration, now time.Time) *int64 {
	given, end := pod.DeletionGracePeriodSeconds, deadline.Add(-margin)
	done := !t.shortenedFor.IsZero() && !deadline.Before(t.shortenedFor)
	if done || given == nil || !pod.DeletionTimestamp.After(end.Add(apiSecond)) {
		return nil
	}
	return clampGrace(time.Duration(*given)*time.Second, end.Sub(now))
}

// graceOver reports whether the grace period of a terminating pod is over. The API server
// counts a shortened one from the first request, the kubelet from the one that shortened it.
func graceOver(pod *corev1.Pod, t try, margin time.Duration, now time.Time) bool {
	return now.After(pod.DeletionTimestamp.Time) && (t.shortenedFor.IsZero() || now.After(t.shortenedFor.Add(-margin)))
}

// latestStart is when a pod's grace period must begin so that it ends in time.
func latestStart(pod *corev1.Pod, deadline time.Time, margin time.Duration) time.Time {
	return deadline.Add(-margin - graceOf(pod))
}

// A try is what came of the evictions of one pod so far.
type try struct {
	failures  int
	next      time.Time // not before
	refusedAt time.Time // by a disruption budget; zero: never

	shortenedFor time.Time // the deadline for which the grace period was cut; zero: none
}

// A step evicts one pod now, deletes it past its disruption budget, or shortens the
// grace period of one that is terminating.
type step struct {
	pod      *corev1.Pod
	grace    *int64
	override bool
	shorten  bool
}

func (s step) evicts() bool { return !s.override && !s.shorten }

// A round is what to do with the pods of a node now.
type round struct {
	steps       []step
	remaining   int
	terminating int
	refused     int
	waiting     int       // for their completion
	next        time.Time // when one more is due; zero: none is known
}

// planRound decides which of the candidates are due: those of the first tier, and all
// whose grace period must begin now.
func planRound(all []candidate, tries map[types.UID]try, d nstance.Drain, margin time.Duration, now time.Time) round {
	r := round{remaining: len(all)}
	first := firstTier(all)
	for _, c := range all {
		t, latest := tries[c.pod.UID], latestStart(c.pod, d.Deadline, margin)
		last := !now.Before(latest)
		if !t.refusedAt.IsZero() && c.pod.DeletionTimestamp == nil {
			r.refused++
		}
		switch {
		case c.pod.DeletionTimestamp != nil:
			r.terminating++
			r.planShorten(c.pod, t, shortenedGrace(c.pod, t, d.Deadline, margin, now), now)
		case c.rule.Behavior == WaitCompleted && !last:
			r.waiting++
			r.wake(latest)
		case first.before(tierOf(c)) && !last:
			r.wake(latest)
		case now.Before(t.next) && (!last || d.Voluntary || t.refusedAt.IsZero()):
			r.wake(t.next)
			if !last {
				r.wake(latest)
			}
		default:
			left := d.Deadline.Add(-margin).Sub(now)
			r.steps = append(r.steps, step{pod: c.pod, grace: clampGrace(graceOf(c.pod), left), override: overrides(t, latest, d)})
		}
	}
	return r
}

// planShorten plans one more deletion of a terminating pod, unless grace is nil.
func (r *round) planShorten(pod *corev1.Pod, t try, grace *int64, now time.Time) {
	switch {
	case grace == nil:
	case now.Before(t.next):
		r.wake(t.next)
	default:
		r.steps = append(r.steps, step{pod: pod, grace: grace, shorten: true})
	}
}

// overrides reports whether a disruption budget is passed: it refused the pod in an
// involuntary drain even when the grace period had to begin.
func overrides(t try, latest time.Time, d nstance.Drain) bool {
	return !d.Voluntary && !t.refusedAt.IsZero() && !t.refusedAt.Before(latest)
}

func firstTier(all []candidate) tier {
	var first tier
	for i, c := range all {
		if t := tierOf(c); i == 0 || t.before(first) {
			first = t
		}
	}
	return first
}

func (r *round) wake(at time.Time) {
	if r.next.IsZero() || at.Before(r.next) {
		r.next = at
	}
}

// String says what remains.
func (r *round) String() string {
	s := fmt.Sprintf("pods remaining: %d", r.remaining)
	if r.terminating > 0 {
		s += fmt.Sprintf(", terminating: %d", r.terminating)
	}
	if r.refused > 0 {
		s += fmt.Sprintf(", refused by a disruption budget: %d", r.refused)
	}
	if r.waiting > 0 {
		s += fmt.Sprintf(", to complete: %d", r.waiting)
	}
	return s
}
