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
	Group       nstance.Group `json:"group"`
	Hash        string        `json:"hash,omitempty"`         // desired infra hash; "" when the definition could not be read: nothing is planned
	RuntimeHash string        `json:"runtime_hash,omitempty"` // desired; Plan does not look at it
	Members     []Member      `json:"members,omitempty"`
	History     History       `json:"history"`
	Unreadable  int           `json:"unreadable"`        // records of this group that could not be read: only losses are replaced
	Removing    bool          `json:"removing"`          // the group itself is being deleted: its size counts as 0
	Frozen      bool          `json:"frozen"`            // no mutation except drains already under way
	Breaker     string        `json:"breaker,omitempty"` // why silent members are not replaced; empty: they are
	SpotFree    bool          `json:"spot_free"`         // spot capacity is not known to be sold out
	Claims      int           `json:"claims,omitempty"`  // stand-by members that others asked for
	Clock       string        `json:"clock,omitempty"`   // why the time cannot be trusted: nothing goes for its age or a deadline; empty: it can
}

// A Member is what Plan needs to know of one instance.
type Member struct {
	ID           nstance.InstanceID `json:"id"`
	State        nstance.State      `json:"state"` // pending, provisioning, booting, draining, deleting or failed, of stand-by members also parking, parked or waking; ready is derived from GoodSince
	OnDemand     bool               `json:"on_demand"`
	Reason       Reason             `json:"reason,omitempty"`
	Standby      bool               `json:"standby,omitempty"`     // of the warm pool
	ParkMode     nstance.ParkMode   `json:"park_mode,omitempty"`   // Standby: how it waits
	Woken        bool               `json:"woken,omitempty"`       // Standby: it has been woken since it was last parked
	WakeFailed   bool               `json:"wake_failed,omitempty"` // Waking: the latest attempt came to nothing
	ParkFailed   bool               `json:"park_failed,omitempty"` // Parking: likewise
	Market       nstance.MarketType `json:"market,omitempty"`      // the actual one, or what was asked for while that is not known
	Hash         string             `json:"hash,omitempty"`        // infra hash it was made from; "" is unknown or not comparable, which is not drift
	CreatedAt    time.Time          `json:"created_at"`
	HasMachine   bool               `json:"has_machine"`             // the provider accepted its create
	Refusal      string             `json:"refusal,omitempty"`       // what the provider answered to its create, or why its machine does not start; "" unless it is late and has no machine, or one that is pending
	RegisteredAt time.Time          `json:"registered_at,omitzero"`  // zero: never
	GoodSince    time.Time          `json:"good_since,omitzero"`     // first good report of the present run of good ones in this term; zero: none
	RegisterBy   time.Time          `json:"register_by,omitzero"`    // must have registered by then
	LaunchBy     time.Time          `json:"launch_by,omitzero"`      // must have reported well by then; zero once it has been ready, or when that instant had passed as the term began
	WasReady     bool               `json:"was_ready,omitempty"`     // it was ready before this term, as is on record: it is shown as ready until it is heard of
	GraceUntil   time.Time          `json:"grace_until,omitzero"`    // registered but not heard of in this term: no verdict, no surplus, no rollout before; zero once heard of
	EligibleAt   time.Time          `json:"eligible_at,omitzero"`    // may be replaced for its age, jitter included, for what the cloud advises, or for an avoided pool; zero: never
	EligibleFor  string             `json:"eligible_for,omitempty"`  // what the cloud advises, and the setting that heeds it, or the pool that it is to leave; empty: it is for its age
	ExpireAt     time.Time          `json:"expire_at,omitzero"`      // must be replaced for its age (on-demand: its own limit), jitter included; zero: never
	Notices      []nstance.Notice   `json:"notices,omitempty"`       // standing notices that doom it
	Silent       bool               `json:"silent"`                  // missed reports
	Unhealthy    bool               `json:"unhealthy"`               // silent past the limit while the provider says running
	Preserved    bool               `json:"preserved"`               // kept for inspection: no part of the plan until the machine is gone
	Gone         bool               `json:"gone"`                    // the provider says it does not exist or does not run
	Loss         nstance.LossCause  `json:"loss,omitempty"`          // Gone: why, as far as the provider says
	LossWords    string             `json:"loss_words,omitempty"`    // Gone: what the provider says of that
	Taken        bool               `json:"taken"`                   // Gone: nothing that it was made from is to blame
	Requested    *nstance.Cause     `json:"requested,omitempty"`     // its removal was requested
	GoesFirst    bool               `json:"goes_first,omitempty"`    // it was requested that it goes before others when there is surplus
	Place        string             `json:"place,omitempty"`         // what the group's spread counts as one; empty: it has none
	NoDrain      bool               `json:"no_drain"`                // the request was to delete at once
	Drain        *nstance.Drain     `json:"drain,omitempty"`         // recorded drain; its generation outlives a cancel
	DrainBy      time.Time          `json:"drain_by,omitzero"`       // when that ends, by what has elapsed since this term planned it; zero: as recorded
	DrainOver    bool               `json:"drain_over"`              // acknowledged, or its executor gave up for good
	DrainBlocked string             `json:"drain_blocked,omitempty"` // what keeps its machine from being empty, as the executor of its drain says; empty: it names nothing
	DeletedFor   nstance.CauseKind  `json:"deleted_for,omitempty"`   // deleting without a drain: the recorded cause; "" is unknown

	// Answered says of a leaving member that no replacement is to be created for
	// it in spite of a backoff: one has been, or it is a failed creation itself.
	Answered bool `json:"answered"`

	// Inherited says that the member was already leaving, or already created as a
	// replacement, when this term began. Where Replaces is empty it is not known which
	// replaces which.
	Inherited bool `json:"inherited"`

	Replaces nstance.InstanceID `json:"replaces,omitempty"` // the loss that it was created for; empty: it was created for none, or for one that had left already
}

// A Reason says why a member was created. It is part of its intent.
type Reason string

// The reasons.
const (
	ReasonSize     Reason = "size"
	ReasonReplace  Reason = "replace"
	ReasonRollout  Reason = "rollout"
	ReasonOnDemand Reason = "on_demand"
	ReasonStandby  Reason = "standby" // for the warm pool
)

// History is what a group remembers across plans. It is durable.
type History struct {
	Paused       bool      `json:"paused"`
	HaltedHash   string    `json:"halted_hash,omitempty"`    // rollout towards this hash is halted
	Failures     int       `json:"failures"`                 // consecutive creations that did not become ready
	LastFailure  string    `json:"last_failure,omitempty"`   // why the latest of them came to nothing; empty: not known
	BackoffUntil time.Time `json:"backoff_until,omitzero"`   // no create but the replacement of true losses before; then one at a time while Failures > 0
	LastGoodHash string    `json:"last_good_hash,omitempty"` // definition with which every counted member was last ready and fresh
	ReturnAt     time.Time `json:"return_at,omitzero"`       // when a member may go back to spot; zero: none may
	FullAt       int       `json:"full_at"`                  // size at which every member was last ready, lowered with the size: members missing from it are losses
}

// An Action is one step that the executor takes.
type Action struct {
	Kind      ActionKind         `json:"kind"`
	ID        nstance.InstanceID `json:"id,omitempty"`       // the member; empty for Create
	Reason    Reason             `json:"reason,omitempty"`   // Create
	Count     int                `json:"count"`              // Create: how many alike, at least 1
	LastGood  bool               `json:"last_good"`          // Create: use the last good definition instead of the desired one
	Market    nstance.MarketType `json:"market,omitempty"`   // Create: only this one; empty: as the definition says
	Replaces  nstance.InstanceID `json:"replaces,omitempty"` // Create, reason replace: the loss it answers; empty: one that has left already
	Deadline  time.Time          `json:"deadline,omitzero"`  // StartDrain, Tighten
	Voluntary bool               `json:"voluntary"`          // StartDrain, Tighten, Delete: no cause but a rollout or a surplus
	Causes    []nstance.Cause    `json:"causes,omitempty"`   // StartDrain: all; Tighten: the full new set; Delete: why
	Failure   bool               `json:"failure"`            // StartDrain, Delete: a creation that came to nothing, to be counted in History.Failures
}

// An ActionKind names a step.
type ActionKind string

// The steps. Each may be emitted again until its effect is seen.
const (
	Create      ActionKind = "create"
	StartDrain  ActionKind = "start_drain"
	Tighten     ActionKind = "tighten" // an earlier deadline, or another set of causes
	CancelDrain ActionKind = "cancel_drain"
	Park        ActionKind = "park"   // mark durably, then ask the provider until the machine is stopped
	Wake        ActionKind = "wake"   // mark durably, then ask the provider until the machine runs
	Delete      ActionKind = "delete" // mark durably, then ask the provider until NotFound, then forget the record
)

// A Decision is what Plan returns.
type Decision struct {
	Actions []Action  `json:"actions,omitempty"`
	Next    time.Time `json:"next,omitzero"`   // when time alone may change the answer; zero: never
	Holds   []Hold    `json:"holds,omitempty"` // what is being waited for, and why
	Halt    bool      `json:"halt"`            // record that the rollout to the desired hash is halted
}

// A Hold is something that keeps Plan from acting.
type Hold struct {
	Kind   HoldKind  `json:"kind"`
	Reason string    `json:"reason,omitempty"`
	Until  time.Time `json:"until,omitzero"` // zero: until something changes
}

// A HoldKind says what keeps Plan from acting.
type HoldKind string

// The kinds of holds that Plan reports, unless said otherwise.
const (
	HoldBackoff      HoldKind = "backoff"        // creations failed: the next ones wait
	HoldHalted       HoldKind = "halted"         // the rollout to the desired hash failed too often
	HoldPaused       HoldKind = "paused"         // the rollout is paused on request
	HoldSettling     HoldKind = "settling"       // a new leader has not heard from every member yet
	HoldUnhealthyCap HoldKind = "unhealthy_cap"  // enough members are leaving for being unhealthy
	HoldBreaker      HoldKind = "breaker"        // many members fell silent at once: none is replaced for it
	HoldClock        HoldKind = "clock"          // the leader's clock is wrong: what a deadline or an age would delete stays
	HoldDrain        HoldKind = "drain"          // a drain without deadline is under way: its place in the rollout is taken
	HoldUnreadable   HoldKind = "unreadable"     // records could not be read: losses are replaced, nothing else
	HoldFrozen       HoldKind = "frozen"         // drains under way go on, nothing else
	HoldDefinition   HoldKind = "definition"     // the definition could not be read: nothing is planned; or the one on record of members to be created: they wait
	HoldBudget       HoldKind = "budget"         // the create budget is used up; reported by the loop
	HoldCapacity     HoldKind = "capacity"       // the provider has no room for what the group permits; reported by the loop
	HoldRefused      HoldKind = "create_refused" // the provider refuses what the group permits, for another reason than capacity; reported by the loop
	HoldPending      HoldKind = "pending"        // another definition is not in effect yet: it names what is not found, or is invalid; reported by the loop
	HoldAvoided      HoldKind = "avoided"        // everything that the group permits is in pools that are avoided; reported by the loop
	HoldRolledBack   HoldKind = "rolled_back"    // the last good definition is desired, not the configured one; reported by the loop
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
