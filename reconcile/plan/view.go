package plan

import (
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
)

// UnknownHash is the desired hash of a group whose definition is not known. No
// member drifts from it. Unless the group is being removed, drains in progress
// continue and requested removals happen, nothing else.
const UnknownHash = "unknown"

// A View is everything Plan looks at: one group, its members, its history.
type View struct {
	Group       nstance.Group
	Hash        string // desired infra hash; "" when the definition could not be read: nothing is planned
	RuntimeHash string // desired; only Compare looks at it
	Members     []Member
	History     History
	Unreadable  int    // records of this group that could not be read: only losses are replaced
	Removing    bool   // the group itself is being deleted: its size counts as 0
	Frozen      bool   // no mutation except drains already under way
	Breaker     string // why silent members are not replaced; empty: they are
	SpotFree    bool   // spot capacity is not known to be sold out
	Clock       string // why the time cannot be trusted: nothing goes for its age or a deadline; empty: it can
}

// A Member is what Plan needs to know of one instance.
type Member struct {
	ID           nstance.InstanceID
	State        nstance.State // pending, provisioning, booting, draining, deleting or failed; ready is derived from GoodSince
	OnDemand     bool
	Reason       Reason
	Market       nstance.MarketType // the actual one, or what was asked for while that is not known
	Hash         string             // infra hash it was made from; "" is unknown or not comparable, which is not drift
	CreatedAt    time.Time
	HasMachine   bool              // the provider accepted its create
	RegisteredAt time.Time         // zero: never
	GoodSince    time.Time         // first good report of the present run of good ones in this term; zero: none
	RegisterBy   time.Time         // must have registered by then
	LaunchBy     time.Time         // must have reported well by then; zero once it has been ready, or when that instant had passed as the term began
	GraceUntil   time.Time         // registered but not heard of in this term: no verdict, no surplus, no rollout before; zero once heard of
	EligibleAt   time.Time         // may be replaced for its age, jitter included; zero: never
	ExpireAt     time.Time         // must be replaced for its age (on-demand: its own limit), jitter included; zero: never
	Notices      []nstance.Notice  // standing notices that doom it
	Silent       bool              // missed reports
	Unhealthy    bool              // silent past the limit while the provider says running
	Preserved    bool              // kept for inspection: no part of the plan until the machine is gone
	Gone         bool              // the provider says it does not exist or does not run
	Loss         nstance.LossCause // Gone: why, as far as the provider says
	Taken        bool              // Gone: nothing that it was made from is to blame
	Requested    *nstance.Cause    // its removal was requested
	NoDrain      bool              // the request was to delete at once
	Drain        *nstance.Drain    // recorded drain; its generation outlives a cancel
	DrainBy      time.Time         // when that ends, by what has elapsed since this term planned it; zero: as recorded
	DrainOver    bool              // acknowledged, or its executor gave up for good
	DeletedFor   nstance.CauseKind // deleting without a drain: the recorded cause; "" is unknown

	// Answered says of a leaving member that no replacement is to be created for
	// it in spite of a backoff: one has been, or it is a failed creation itself.
	Answered bool

	// Inherited says that the member was already leaving, or already created as a
	// replacement, when this term began: it is not known which replaces which.
	Inherited bool
}

// A Reason says why a member was created. It is part of its intent.
type Reason string

// The reasons.
const (
	ReasonSize     Reason = "size"
	ReasonReplace  Reason = "replace"
	ReasonRollout  Reason = "rollout"
	ReasonOnDemand Reason = "on_demand"
)

// History is what a group remembers across plans. It is durable.
type History struct {
	Paused       bool
	HaltedHash   string    // rollout towards this hash is halted
	Failures     int       // consecutive creations that did not become ready
	LastFailure  string    // why the latest of them came to nothing; empty: not known
	BackoffUntil time.Time // no create but the replacement of true losses before; then one at a time while Failures > 0
	LastGoodHash string    // definition with which every counted member was last ready and fresh
	ReturnAt     time.Time // when a member may go back to spot; zero: none may
	FullAt       int       // size at which every member was last ready, lowered with the size: members missing from it are losses
}

// An Action is one step that the executor takes.
type Action struct {
	Kind      ActionKind
	ID        nstance.InstanceID // the member; empty for Create
	Reason    Reason             // Create
	Count     int                // Create: how many alike, at least 1
	LastGood  bool               // Create: use the last good definition instead of the desired one
	Market    nstance.MarketType // Create: only this one; empty: as the definition says
	Replaces  nstance.InstanceID // Create, reason replace: the loss it answers; empty: one that has left already
	Deadline  time.Time          // StartDrain, Tighten
	Voluntary bool               // StartDrain, Tighten: no cause but a rollout or a surplus
	Causes    []nstance.Cause    // StartDrain: all; Tighten: the full new set; Delete: why
	Failure   bool               // StartDrain, Delete: a creation that came to nothing, to be counted in History.Failures
}

// An ActionKind names a step.
type ActionKind string

// The steps. Each may be emitted again until its effect is seen.
const (
	Create      ActionKind = "create"
	StartDrain  ActionKind = "start_drain"
	Tighten     ActionKind = "tighten" // an earlier deadline, or another set of causes
	CancelDrain ActionKind = "cancel_drain"
	Delete      ActionKind = "delete" // mark durably, then ask the provider until NotFound, then forget the record
)

// A Decision is what Plan returns.
type Decision struct {
	Actions []Action
	Next    time.Time // when time alone may change the answer; zero: never
	Holds   []Hold    // what is being waited for, and why
	Halt    bool      // record that the rollout to the desired hash is halted
}

// A Hold is something that keeps Plan from acting.
type Hold struct {
	Kind   string // one of the kinds below
	Reason string
	Until  time.Time // zero: until something changes
}

// The kinds of holds that Plan reports, unless said otherwise.
const (
	HoldBackoff      = "backoff"       // creations failed: the next ones wait
	HoldHalted       = "halted"        // the rollout to the desired hash failed too often
	HoldPaused       = "paused"        // the rollout is paused on request
	HoldSettling     = "settling"      // a new leader has not heard from every member yet
	HoldUnhealthyCap = "unhealthy_cap" // enough members are leaving for being unhealthy
	HoldBreaker      = "breaker"       // many members fell silent at once: none is replaced for it
	HoldClock        = "clock"         // the leader's clock is wrong: what a deadline or an age would delete stays
	HoldUnreadable   = "unreadable"    // records could not be read: losses are replaced, nothing else
	HoldFrozen       = "frozen"        // drains under way go on, nothing else
	HoldDefinition   = "definition"    // the definition could not be read: nothing is planned; or the one on record of members to be created: they wait
	HoldBudget       = "budget"        // the create budget is used up; reported by the loop
	HoldCapacity     = "capacity"      // the provider has no room for what the group permits; reported by the loop
	HoldPending      = "pending"       // another definition is not in effect yet: it names what is not found, or is invalid; reported by the loop
	HoldRolledBack   = "rolled_back"   // the last good definition is desired, not the configured one; reported by the loop
)

// String says in words what the action does.
func (a Action) String() string {
	s := string(a.Kind)
	if a.ID != "" {
		s += " " + string(a.ID)
	}
	if a.Count > 1 {
		s += fmt.Sprintf(" %d", a.Count)
	}
	if a.Reason != "" {
		s += " (" + string(a.Reason) + ")"
	}
	if a.Replaces != "" {
		s += " for " + string(a.Replaces)
	}
	if !a.Deadline.IsZero() {
		s += " until " + a.Deadline.UTC().Format(time.RFC3339)
	}
	return s
}
