package nodedrain

import (
	"context"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/validate"
)

// Options change how a Drainer works. Nil and zero fields mean the defaults. They are
// read by New and not changed.
type Options struct {
	// Tenant is whose drains are executed. Empty means every tenant's.
	Tenant nstance.TenantID

	// Margin is how long before the deadline a pod must have ended. Zero means 2 s.
	Margin time.Duration

	// MinTargets is how many nodes must be ready, schedulable and not excluded from
	// load balancers, or else a draining node stays a target of them: a fleet that is
	// drained as a whole keeps its targets. Zero means 1.
	MinTargets int

	// MaxCalls is how many requests may be in flight. Zero means 64.
	MaxCalls int

	// QPS is how many requests a second may be sent. Zero means twice the number of
	// nodes, from 100 to 500.
	QPS float64

	// Evictor asks for the removal of pods. Nil means the eviction API (policy/v1).
	Evictor Evictor

	// Rules say which pods stay, and in which order the others go. Nil means none.
	Rules Rules

	// Hooks are called when a drain begins and ends. Nil means none.
	Hooks Hooks

	// Instances know what has become of the instances of nodes. Nil: nodes are compared
	// with nothing.
	Instances Instances

	// Log receives state changes and errors. Nil discards.
	Log *slog.Logger
}

func (o *Options) complete() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	if err := validate.Setting("margin", c.Margin, time.Hour); err != nil {
		return c, err
	}
	switch {
	case c.MinTargets < 0:
		return c, nstance.FieldError("min_targets", "use zero for the default", "is %d", c.MinTargets)
	case c.MaxCalls < 0:
		return c, nstance.FieldError("max_calls", "use zero for the default", "is %d", c.MaxCalls)
	case c.QPS < 0:
		return c, nstance.FieldError("qps", "use zero to have it computed from the number of nodes", "is %v", c.QPS)
	}
	if c.Margin == 0 {
		c.Margin = 2 * time.Second
	}
	if c.MinTargets == 0 {
		c.MinTargets = 1
	}
	if c.MaxCalls == 0 {
		c.MaxCalls = 64
	}
	c.Log = discardIfNil(c.Log)
	return c, nil
}

// An Evictor asks for the removal of one pod within its disruption budgets.
// Implementations must be safe for concurrent use and return promptly when ctx ends.
type Evictor interface {
	// Evict requests the removal; nil means that it was accepted. A nil grace is the
	// pod's own. Fails with NotFound when the pod is gone, and Denied when the request
	// was refused, by a disruption budget or an admission webhook: it is repeated, and the
	// pod is deleted without it when its grace period must begin. Any other error counts
	// as a refusal if the request has failed before.
	Evict(ctx context.Context, pod *corev1.Pod, grace *int64) error
}

// Rules say what a drain does with pods beyond what their labels say.
// Implementations must be safe for concurrent use.
type Rules interface {
	// Rule is called for each pod of the node in each pass, so it answers from memory.
	// A pod with an error is left until the deadline leaves no more than its grace period, or
	// the error is over: it is asked for again in each pass.
	Rule(ctx context.Context, d nstance.Drain, node *corev1.Node, pod *corev1.Pod) (Rule, error)
}

// A Rule is what a drain does with one pod. The zero Rule evicts it.
type Rule struct {
	Behavior Behavior
	Order    int32 // pods of a lower order go first; within one, system-critical pods last
}

// A Behavior is what a drain does with a pod.
type Behavior string

// The behaviors. The label cluster.x-k8s.io/drain on the pod goes before the Rules.
const (
	Evict         Behavior = ""               // remove it
	Skip          Behavior = "skip"           // leave it, and do not wait for it
	WaitCompleted Behavior = "wait-completed" // wait until it has finished; evict it when the deadline leaves no more than its grace period
)

// Hooks are called by the worker of a drain. Implementations must be safe for
// concurrent use. Each call ends after 5 s; errors are logged and delay nothing.
// The node has its name, UID and provider ID, whether it is ready and schedulable, and
// nothing else.
type Hooks interface {
	// Begin is called once before the node is cordoned, and again after a restart.
	Begin(ctx context.Context, d nstance.Drain, node *corev1.Node) error

	// End is called when a drain whose node was found is over, before it is
	// acknowledged or taken back. It may be repeated.
	End(ctx context.Context, d nstance.Drain, node *corev1.Node, r Result) error

	// MayUncordon is called when a drain was cancelled. With false, or an error, the
	// node stays cordoned and excluded from load balancers.
	MayUncordon(ctx context.Context, d nstance.Drain, node *corev1.Node) (bool, error)
}

// A Result is how a drain went.
type Result struct {
	Ending        Ending
	Message       string   // what remains, and what was overridden
	PDBOverridden []string // namespace/name of each pod that was deleted past its disruption budget
}

// An Ending says why a drain is over.
type Ending string

// The endings.
const (
	Drained    Ending = "drained"    // the node is empty
	Expired    Ending = "expired"    // its deadline has passed: the machine is deleted
	Cancelled  Ending = "cancelled"  // the instance stays
	Ended      Ending = "ended"      // the machine is being deleted already
	Reassigned Ending = "reassigned" // another executor drains it now
)
