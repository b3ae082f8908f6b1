package nstance

import "time"

// A Drain is the emptying of one instance before its deletion. Its start is
// durable: a new leader neither repeats nor lengthens it.
type Drain struct {
	Instance   InstanceID `json:"instance_id"`
	Group      GroupKey   `json:"group"`
	ProviderID string     `json:"provider_id,omitempty"`
	Generation uint64     `json:"generation"` // grows with every start and cancel of this instance
	StartedAt  time.Time  `json:"started_at"`
	Deadline   time.Time  `json:"deadline"` // only ever tightens; the machine is deleted then, drained or not; see Unlimited
	Causes     []Cause    `json:"causes"`
	Voluntary  bool       `json:"voluntary"`
	Executor   Executor   `json:"executor"`
	CordonOnly bool       `json:"cordon_only,omitempty"` // what runs is left to end by itself, until no more time is left than it needs to stop; may become false, never true
}

// UnlimitedDrain is how long after its start the deadline of a drain is that waits until the
// instance is empty.
const UnlimitedDrain = 10 * 365 * day

// Unlimited reports whether the drain waits until the instance is empty: its deadline is
// further away than anything lasts.
func (d *Drain) Unlimited() bool {
	return !d.StartedAt.IsZero() && d.Deadline.Sub(d.StartedAt) > UnlimitedDrain/2
}

// A Cause is one reason why an instance must go. A drain ends without deletion
// when its last cause is withdrawn before the instance is marked deleting.
type Cause struct {
	Kind    CauseKind `json:"kind"`
	EventID string    `json:"event_id,omitempty"` // of the notice
	Message string    `json:"message,omitempty"`
}

// A CauseKind classifies causes.
type CauseKind string

// The causes.
const (
	CauseNotice    CauseKind = "notice"    // the cloud takes the machine
	CauseUnhealthy CauseKind = "unhealthy" // silent past its limit, though running
	CauseTimeout   CauseKind = "timeout"   // not registered or not ready in time
	CauseGone      CauseKind = "gone"      // the provider says it does not run
	CauseExpired   CauseKind = "expired"   // older than forced_age or on_demand_age
	CauseRollout   CauseKind = "rollout"   // its definition changed, or it passed eligible_age
	CauseSurplus   CauseKind = "surplus"   // the group has more members than its size
	CauseStandby   CauseKind = "standby"   // it goes back to the group's warm pool: it is parked when it is empty
	CauseRequest   CauseKind = "request"   // requested through the API
	CauseOrphan    CauseKind = "orphan"    // a machine with our marks that no record named
	CauseAbandoned CauseKind = "abandoned" // no machine was created, and this server cannot repeat the create
)

// An Executor empties the instance.
type Executor string

// The executors. The choice is durable when the drain starts. Another executor
// is chosen, durably too, when the first has disconnected or cannot drain.
const (
	ExecutorOperator Executor = "operator" // an operator that registered for the tenant's drains
	ExecutorAgent    Executor = "agent"    // runs its hook on the machine itself
	ExecutorNone     Executor = "none"     // the deadline decides
)

// An Ack says how a drain ended. It counts only for the current generation.
type Ack struct {
	Instance   InstanceID `json:"instance_id"`
	Generation uint64     `json:"generation"`
	By         Executor   `json:"by"` // an agent's ack counts for its own instance only
	Outcome    Outcome    `json:"outcome"`
	Delete     bool       `json:"delete"`            // for Failed: end the drain now instead of at its deadline
	Message    string     `json:"message,omitempty"` // at most 256 bytes
}

// An Outcome is how a drain went.
type Outcome string

// The outcomes.
const (
	OutcomeDrained Outcome = "drained" // empty: delete now
	OutcomeFailed  Outcome = "failed"  // recorded; the deadline decides unless Ack.Delete
	OutcomeBlocked Outcome = "blocked" // not empty yet, and still at it: Message says what blocks; may be repeated with another one
)

// A Seq numbers events of one stream. Zero means from the beginning.
type Seq uint64

// A DrainEvent tells a watcher what changed about one drain.
type DrainEvent struct {
	Seq   Seq            `json:"seq"`
	Type  DrainEventType `json:"type"`
	Drain Drain          `json:"drain"`
	Ack   *Ack           `json:"ack,omitempty"` // for DrainAcknowledged, and in a snapshot of an acknowledged drain
}

// A DrainEventType says what a DrainEvent reports.
type DrainEventType string

// The types. A watch begins with one DrainSnapshot for each drain under way,
// then DrainSynced, unless it could resume where it left off.
const (
	DrainSnapshot     DrainEventType = "snapshot"
	DrainSynced       DrainEventType = "synced"
	DrainRequested    DrainEventType = "requested"
	DrainTightened    DrainEventType = "tightened"
	DrainReassigned   DrainEventType = "reassigned" // it has another executor now
	DrainAcknowledged DrainEventType = "acknowledged"
	DrainCancelled    DrainEventType = "cancelled"
	DrainEnded        DrainEventType = "ended" // the instance is being deleted
)
