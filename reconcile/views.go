package reconcile

import (
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/confighash"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// A GroupView is the present state of a group.
type GroupView struct {
	nstance.Group
	Hash           string     `json:"hash,omitempty"`         // desired infra hash; empty: the definition could not be read
	RuntimeHash    string     `json:"runtime_hash,omitempty"` // desired
	Ready          int        `json:"ready"`
	Booting        int        `json:"booting"` // counted, not ready yet
	Leaving        int        `json:"leaving"`
	Gone           int        `json:"gone"` // their machine is gone, and they are not removed yet
	Stale          int        `json:"stale"`
	Standby        int        `json:"standby,omitempty"` // members of the warm pool, in none of the numbers above
	Parked         int        `json:"parked,omitempty"`  // of them, those that are asleep
	Claims         []Claim    `json:"claims,omitempty"`  // on them, oldest first
	OnDemand       int        `json:"on_demand"`         // made by request, in none of the numbers above
	SpotMarket     int        `json:"spot_market"`       // members, by the market that the provider says they are in
	OnDemandMarket int        `json:"on_demand_market"`
	ReturnAt       time.Time  `json:"return_at,omitzero"` // when an on-demand member beyond the base may go back to spot; zero: there is none
	FailedReturns  int        `json:"failed_returns"`     // to spot, in a row
	Preserved      int        `json:"preserved"`          // kept for inspection, in none of the numbers above
	Paused         bool       `json:"paused"`
	Halted         string     `json:"halted,omitempty"`         // why the rollout is halted; empty: it is not
	Frozen         bool       `json:"frozen"`                   // by itself or with the shard
	FrozenAlone    bool       `json:"frozen_alone"`             // by itself
	RolledBack     bool       `json:"rolled_back"`              // Group and the hashes are those of the last good definition
	LastGoodHash   string     `json:"last_good_hash,omitempty"` // of the definition with which all members were last ready; empty: there is none
	Failures       int        `json:"failures"`                 // consecutive creations from the desired definition that did not become ready
	BackoffUntil   time.Time  `json:"backoff_until,omitzero"`
	Holds          []HoldView `json:"holds,omitempty"`
}

// An InstanceView is the present state of an instance.
type InstanceView struct {
	ID           nstance.InstanceID `json:"id"`
	Group        nstance.GroupKey   `json:"group"`
	OnDemand     bool               `json:"on_demand"`               // requested by itself, not a member by size
	Reason       string             `json:"reason,omitempty"`        // why it was created
	InstanceType string             `json:"instance_type,omitempty"` // requested
	InfraHash    string             `json:"infra_hash,omitempty"`    // of the definition that it was created from
	RuntimeHash  string             `json:"runtime_hash,omitempty"`  // likewise
	CreatedAt    time.Time          `json:"created_at"`
	RegisteredAt time.Time          `json:"registered_at,omitzero"` // zero: its agent has no certificate yet

	State          nstance.State      `json:"state"`
	ProviderID     string             `json:"provider_id,omitempty"`      // of its machine, also while this term has not seen it
	NodeProviderID string             `json:"node_provider_id,omitempty"` // spec.providerID of its Kubernetes Node; empty: not known yet
	Machine        nstance.Machine    `json:"machine,omitzero"`           // as last seen; zero while there is none
	Connected      bool               `json:"connected"`
	Report         nstance.Report     `json:"report,omitzero"` // the last one; zero before the first
	ReportedAt     time.Time          `json:"reported_at,omitzero"`
	Notices        []nstance.Notice   `json:"notices,omitempty"`
	Drain          *nstance.Drain     `json:"drain,omitempty"`
	Drifted        bool               `json:"drifted"`
	Silent         bool               `json:"silent"`            // it has missed reports
	Unhealthy      bool               `json:"unhealthy"`         // it has missed so many, though the provider says that it runs, that it is to be replaced, or leaves for that
	Expired        bool               `json:"expired"`           // it is older than its group permits, or would rather have
	Preserved      bool               `json:"preserved"`         // it is kept for inspection, still
	Market         nstance.MarketType `json:"market,omitempty"`  // that it is in, as far as the provider says, else that it is asked for
	Runtime        string             `json:"runtime,omitempty"` // runtime hash that its group wants; empty: unknown
	Gone           bool               `json:"gone"`

	Standby bool      `json:"standby,omitempty"` // of its group's warm pool
	WokenAt time.Time `json:"woken_at,omitzero"` // since when it is awake in place of others; zero: it is not

	PricePerHour    float64            `json:"price_per_hour,omitempty"`   // of its shape when it was created, in the cloud's currency; 0: not known
	ShapeChoice     string             `json:"shape_choice,omitempty"`     // why it was created as this instance type, in this subnet and market; docs/provisioning.md lists the words
	PreservedUntil  time.Time          `json:"preserved_until,omitzero"`   // zero: it was not preserved
	RequestedMarket nstance.MarketType `json:"requested_market,omitempty"` // of its last create
	Zone            string             `json:"zone,omitempty"`             // empty: not known
}

// A HoldView is a Hold with its beginning.
type HoldView struct {
	plan.Hold
	Since time.Time `json:"since,omitzero"`
}

// text says in one line what holds, why and until when.
func (h HoldView) text() string {
	text := string(h.Kind) + withMessage(h.Reason)
	if !h.Until.IsZero() {
		text += ", until " + h.Until.UTC().Format(time.RFC3339)
	}
	return text
}

// An OrphanView is a machine with our marks and without a record.
type OrphanView struct {
	Machine nstance.Machine `json:"machine"`          // as last listed
	Since   time.Time       `json:"since,omitzero"`   // when it was first listed in this term
	Spared  string          `json:"spared,omitempty"` // why it is not collected; empty: it will be at the next look
}

// A FieldChange is one field in which two definitions differ.
type FieldChange struct {
	confighash.Change
	Effect Effect `json:"effect"`
}

// An Effect is what a changed field does to the machines that there are.
type Effect string

// The effects.
const (
	EffectReplace Effect = "replace" // only a new machine has it
	EffectPush    Effect = "push"    // it is pushed to the machines that run
	EffectNone    Effect = "none"    // it concerns later machines, or none at all
)
