package nodedrain

import (
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nstance-go/nstance/internal/clip"
)

const (
	labelDrain     = "cluster.x-k8s.io/drain" // skip or wait-completed
	systemPriority = 2_000_000_000            // of the classes system-cluster-critical and system-node-critical
)

// A candidate is a pod that the drain waits for.
type candidate struct {
	pod     *corev1.Pod
	rule    Rule
	unknown error  // of its rule, which is asked for again: until then it is left; nil: the rule is known
	stuck   string // why it is terminating and does not end: no other pod waits for it; empty: it may end yet
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

// doNotDisrupt are the annotations by which a pod refuses voluntary disruption. A machine
// that its cloud takes back ends the pod all the same.
//   - Karpenter: https://karpenter.sh/docs/concepts/disruption/#pod-level-controls
//   - Cluster Autoscaler: its FAQ, "What types of pods can prevent CA from removing a node?"
var doNotDisrupt = map[string]string{
	"karpenter.sh/do-not-disrupt":                    "true",
	"cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
}

// MayDisrupt reports whether a pod lets itself be moved although its node could stay.
func MayDisrupt(pod *corev1.Pod) bool { return refusesDisruption(pod) == "" }

// refusesDisruption returns the annotation by which a pod does; empty: it has none.
func refusesDisruption(pod *corev1.Pod) string {
	for key, value := range doNotDisrupt {
		if pod.Annotations[key] == value {
			return key + "=" + value
		}
	}
	return ""
}

// waitsFor says why a pod is not evicted.
func (c candidate) waitsFor() string {
	if c.unknown != nil {
		return "it is not known whether it may be evicted: " + clip.Words(c.unknown.Error())
	}
	if annotation := refusesDisruption(c.pod); annotation != "" {
		return "it has the annotation " + annotation
	}
	return "it is left to complete"
}

func podName(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

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
		return inSeconds(*s)
	}
	return corev1.DefaultTerminationGracePeriodSeconds * time.Second
}

// inSeconds returns a number of seconds, of which Kubernetes permits more than fit: then as many as do.
func inSeconds(n int64) time.Duration {
	return time.Duration(min(n, int64(math.MaxInt64/time.Second))) * time.Second
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
func shortenedGrace(pod *corev1.Pod, t try, f timeFrame, now time.Time) *int64 {
	given := pod.DeletionGracePeriodSeconds
	done := !t.shortenedFor.IsZero() && !f.deadline.Before(t.shortenedFor)
	if done || given == nil || !pod.DeletionTimestamp.After(f.end().Add(apiSecond)) {
		return nil
	}
	return clampGrace(inSeconds(*given), f.end().Sub(now))
}

// graceOver reports whether the grace period of a terminating pod is over. The API server
// counts a shortened one from the first request, the kubelet from the one that shortened it.
func graceOver(pod *corev1.Pod, t try, margin time.Duration, now time.Time) bool {
	return now.After(pod.DeletionTimestamp.Time) && (t.shortenedFor.IsZero() || now.After(t.shortenedFor.Add(-margin)))
}

// How long a pod that is terminating is waited for once its grace period is over: its kubelet
// kills it then, unmounts its volumes, and says so.
const (
	confirmTime = 10 * time.Second // by other pods
	stuckLimit  = 2 * time.Minute  // by the drain
)

// A timeFrame is the time that a drain has.
type timeFrame struct {
	since    time.Time // when it was given its deadline
	deadline time.Time
	margin   time.Duration // how long before the deadline a pod must have ended
}

// end is when a pod must have ended.
func (f timeFrame) end() time.Time { return f.deadline.Add(-f.margin) }

// latestStart is when a pod's grace period must begin so that it ends in time.
func (f timeFrame) latestStart(pod *corev1.Pod) time.Time { return f.end().Add(-graceOf(pod)) }

// overrideAt is when a pod is deleted past a disruption budget that refuses its eviction.
// Its grace period has half of the drain's time at most: the budget has the other half.
func (f timeFrame) overrideAt(pod *corev1.Pod) time.Time {
	return f.end().Add(-min(graceOf(pod), f.deadline.Sub(f.since)/2))
}

// A try is what came of the evictions of one pod so far.
type try struct {
	failures   int
	next       time.Time // not before
	refusedAt  time.Time // by a disruption budget or an admission webhook, or without an answer; zero: never
	refusal    string    // what the API server said
	inFlight   bool      // a request is under way
	unanswered bool      // the last one was
	left       bool      // the drain waits for it no more

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
	waiting     int // for their completion
	blocked     *blockedPod
	next        time.Time // when one more is due; zero: none is known
}

// planRound decides which of the candidates are due: those of the first tier, and all
// whose grace period must begin now.
func planRound(all []candidate, tries map[types.UID]try, f timeFrame, now time.Time) round {
	r := round{remaining: len(all)}
	first := firstTier(all)
	for _, c := range all {
		t, latest := tries[c.pod.UID], f.latestStart(c.pod)
		last, refused := !now.Before(latest), !t.refusedAt.IsZero()
		if refused && c.pod.DeletionTimestamp == nil {
			r.refused++
			r.block(c.pod, t.refusal)
		}
		switch {
		case c.pod.DeletionTimestamp != nil:
			r.terminating++
			r.planShorten(c.pod, t, shortenedGrace(c.pod, t, f, now), now)
			if c.stuck != "" {
				r.block(c.pod, c.stuck)
			}
		case t.inFlight:
		case c.rule.Behavior == WaitCompleted && !last:
			r.waiting++
			r.block(c.pod, c.waitsFor())
			r.wake(latest)
		case first.before(tierOf(c)) && !last:
			r.wake(latest)
		case now.Before(t.next) && (!refused || now.Before(f.overrideAt(c.pod))):
			r.wake(t.next)
			if refused {
				r.wake(f.overrideAt(c.pod))
			}
		default:
			r.steps = append(r.steps, step{pod: c.pod, grace: clampGrace(graceOf(c.pod), f.end().Sub(now)), override: overrides(c.pod, t, f)})
		}
	}
	return r
}

// planShorten plans one more deletion of a terminating pod, unless grace is nil.
func (r *round) planShorten(pod *corev1.Pod, t try, grace *int64, now time.Time) {
	switch {
	case grace == nil, t.inFlight:
	case now.Before(t.next):
		r.wake(t.next)
	default:
		r.steps = append(r.steps, step{pod: pod, grace: grace, shorten: true})
	}
}

// overrides reports whether a disruption budget is passed: it refused the pod even when
// there was no more time to wait for it.
func overrides(pod *corev1.Pod, t try, f timeFrame) bool {
	return !t.refusedAt.IsZero() && !t.refusedAt.Before(f.overrideAt(pod))
}

// firstTier returns the tier of the pods that go first, of those that are not stuck.
func firstTier(all []candidate) tier {
	first := tier{order: math.MaxInt32, critical: true}
	for _, c := range all {
		if t := tierOf(c); c.stuck == "" && t.before(first) {
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

// wakeAgain has the pods that were refused since a round began looked at when the plan after it
// says so.
func (r *round) wakeAgain(after round, tries map[types.UID]try, began time.Time) {
	if !after.next.IsZero() {
		r.wake(after.next)
	}
	for _, s := range after.steps {
		if next := tries[s.pod.UID].next; next.After(began) { // due by now
			r.wake(next)
		}
	}
}

// text says what remains, and what blocks it.
func (r *round) text() string {
	if r.blocked == nil {
		return r.String()
	}
	return r.String() + "; " + r.blocked.String()
}

// String says what remains in numbers.
func (r *round) String() string {
	s := fmt.Sprintf("pods remaining: %d", r.remaining)
	if r.terminating > 0 {
		s += fmt.Sprintf(", terminating: %d", r.terminating)
	}
	if r.refused > 0 {
		s += fmt.Sprintf(", evictions refused: %d", r.refused)
	}
	if r.waiting > 0 {
		s += fmt.Sprintf(", to complete: %d", r.waiting)
	}
	return s
}
