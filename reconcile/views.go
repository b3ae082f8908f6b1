package reconcile

import (
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/confighash"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/storage"
)

// A GroupView is the present state of a group.
type GroupView struct {
	nstance.Group
	Hash           string // desired infra hash; empty: the definition could not be read
	RuntimeHash    string // desired
	Ready          int
	Booting        int // counted, not ready yet
	Leaving        int
	Gone           int // their machine is gone, and they are not removed yet
	Stale          int
	OnDemand       int // made by request, in none of the numbers above
	SpotMarket     int // members, by the market that the provider says they are in
	OnDemandMarket int
	ReturnAt       time.Time // when an on-demand member beyond the base may go back to spot; zero: there is none
	FailedReturns  int       // to spot, in a row
	Preserved      int       // kept for inspection, in none of the numbers above
	Paused         bool
	Halted         string // why the rollout is halted; empty: it is not
	Frozen         bool   // by itself or with the shard
	FrozenAlone    bool   // by itself
	RolledBack     bool   // Group and the hashes are those of the last good definition
	LastGoodHash   string // of the definition with which all members were last ready; empty: there is none
	Failures       int    // consecutive creations from the desired definition that did not become ready
	BackoffUntil   time.Time
	Holds          []HoldView
}

// An InstanceView is the present state of an instance.
type InstanceView struct {
	Record     storage.Instance
	State      nstance.State
	Machine    nstance.Machine // as last seen; zero while there is none
	Connected  bool
	Report     nstance.Report // the last one; zero before the first
	ReportedAt time.Time
	Notices    []nstance.Notice
	Drain      *nstance.Drain
	Drifted    bool
	Silent     bool               // it has missed reports
	Unhealthy  bool               // it has missed so many, though the provider says that it runs, that it is to be replaced, or leaves for that
	Expired    bool               // it is older than its group permits, or would rather have
	Preserved  bool               // it is kept for inspection, still
	Market     nstance.MarketType // that it is in, as far as the provider says, else that it is asked for
	Runtime    string             // runtime hash that its group wants; empty: unknown
	Gone       bool
}

// A HoldView is a Hold with its beginning.
type HoldView struct {
	plan.Hold
	Since time.Time
}

// text says in one line what holds, why and until when.
func (h HoldView) text() string {
	text := h.Kind + withMessage(h.Reason)
	if !h.Until.IsZero() {
		text += ", until " + h.Until.UTC().Format(time.RFC3339)
	}
	return text
}

// An OrphanView is a machine with our marks and without a record.
type OrphanView struct {
	Machine nstance.Machine // as last listed
	Since   time.Time       // when it was first listed in this term
	Spared  string          // why it is not collected; empty: it will be at the next look
}

// A FreezeView is a freeze: since when, and why.
type FreezeView struct {
	Since  time.Time
	Reason string
}

// A RuntimeView is what an instance should have that can be changed while it runs.
type RuntimeView struct {
	Record     storage.Instance
	Machine    nstance.Machine // as last seen
	Seen       bool            // this term has seen the machine
	Definition nstance.Definition
	Hash       string // runtime hash of Definition
	Frozen     bool   // a freeze forbids to change the machine
}

// A FieldChange is one field in which two definitions differ.
type FieldChange struct {
	confighash.Change
	Effect Effect
}

// An Effect is what a changed field does to the machines that there are.
type Effect string

// The effects.
const (
	EffectReplace Effect = "replace" // only a new machine has it
	EffectPush    Effect = "push"    // it is pushed to the machines that run
	EffectNone    Effect = "none"    // it concerns later machines, or none at all
)
