package admin

import (
	"time"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

// A Group is a group as group list prints it.
type Group struct {
	Tenant        nstance.TenantID  `json:"tenant"`
	Group         nstance.GroupID   `json:"group"`
	Template      string            `json:"template"`
	Size          int               `json:"size"`    // members wanted
	Ready         int               `json:"ready"`   // members that are ready
	Booting       int               `json:"booting"` // members on their way to ready
	Leaving       int               `json:"leaving"` // members on their way out, not counted
	Stale         int               `json:"stale"`   // members of an older definition
	Static        bool              `json:"static"`  // from the configuration
	InfraHash     string            `json:"infra_hash,omitempty"`
	InstanceTypes []string          `json:"instance_types,omitempty"`
	Vars          map[string]string `json:"vars,omitempty"`
	Paused        bool              `json:"paused,omitempty"`
	Halted        string            `json:"halted,omitempty"` // why the rollout stopped
	Frozen        bool              `json:"frozen,omitempty"`
	RolledBack    bool              `json:"rolled_back,omitempty"` // the last good definition is the desired one
	LastGoodHash  string            `json:"last_good_hash,omitempty"`
	Failures      int               `json:"failures,omitempty"` // consecutive creations that did not become ready
	Holds         []Hold            `json:"holds,omitempty"`
	Kind          nstance.Kind      `json:"kind,omitempty"`        // that the IDs of its instances begin with
	HasOverlay    bool              `json:"has_overlay,omitempty"` // static, and changed through the API
	Protect       bool              `json:"protect,omitempty"`
	Removing      bool              `json:"removing,omitempty"` // it goes when its last member is gone
	SubnetPool    string            `json:"subnet_pool,omitempty"`
	Args          string            `json:"args,omitempty"` // JSON
	LoadBalancers []string          `json:"load_balancers,omitempty"`
	DrainTimeout  string            `json:"drain_timeout,omitempty"`
	Rollout       *Pace             `json:"rollout,omitempty"`
	OnDemand      int               `json:"on_demand,omitempty"` // instances made by request
	Gone          int               `json:"gone,omitempty"`      // members whose machine is gone, not counted
	Market        *Market           `json:"market,omitempty"`

	SpotMarket     int       `json:"spot_market"` // members that stay, by the market that the provider says they are in
	OnDemandMarket int       `json:"on_demand_market"`
	ReturnAt       time.Time `json:"return_at,omitzero"` // when a member may go back to spot
	FailedReturns  int       `json:"failed_returns,omitempty"`

	Unchanged bool `json:"unchanged,omitempty"` // group pause, resume and update: it was so before
}

// A Market is how a group's capacity is bought.
type Market struct {
	Type          nstance.MarketType `json:"type"`
	MaxPrice      string             `json:"max_price,omitempty"`
	Fallback      nstance.MarketType `json:"fallback,omitempty"` // absent: none
	FallbackAfter string             `json:"fallback_after,omitempty"`
	ReturnAfter   string             `json:"return_after,omitempty"`
	OnDemandBase  string             `json:"on_demand_base,omitempty"`
}

// A Pace bounds what a group's rollouts do at once.
type Pace struct {
	MaxSurge  string `json:"max_surge"`
	MinReady  string `json:"min_ready"`
	HaltAfter int    `json:"halt_after"`
}

// A Hold says what a group waits for.
type Hold struct {
	Kind   string    `json:"kind"`
	Reason string    `json:"reason"`
	Since  time.Time `json:"since,omitzero"`
	Until  time.Time `json:"until,omitzero"`
}

func groupOf(w *apiv1.Group) Group {
	g := Group{
		Tenant: nstance.TenantID(w.GetTenant()), Group: nstance.GroupID(w.GetGroup()), Template: w.GetTemplate(),
		Size: int(w.GetSize()), Ready: int(w.GetReady()), Booting: int(w.GetBooting()), Leaving: int(w.GetLeaving()),
		Stale: int(w.GetStale()), Static: w.GetIsStatic(), InfraHash: w.GetInfraHash(),
		InstanceTypes: w.GetInstanceTypes(), Vars: w.GetVars(),
		Paused: w.GetPaused(), Halted: w.GetHalted(), Frozen: w.GetFrozen(), RolledBack: w.GetRolledBack(),
		LastGoodHash: w.GetLastGoodHash(), Failures: int(w.GetFailures()),
	}
	g.Kind, g.HasOverlay, g.Protect, g.Removing = nstance.Kind(w.GetKind()), w.GetHasOverlay(), w.GetProtect(), w.GetRemoving()
	g.SubnetPool, g.Args, g.LoadBalancers, g.OnDemand = w.GetSubnetPool(), w.GetArgs(), w.GetLoadBalancers(), int(w.GetOnDemand())
	g.Gone, g.SpotMarket, g.OnDemandMarket = int(w.GetGone()), int(w.GetSpotMarket()), int(w.GetOnDemandMarket())
	g.ReturnAt, g.FailedReturns = wire.TimeOf(w.GetReturnAt()), int(w.GetFailedReturns())
	if d := w.GetDrainTimeout(); d != nil {
		g.DrainTimeout = d.AsDuration().String()
	}
	if r := w.GetRollout(); r != nil {
		g.Rollout = &Pace{MaxSurge: r.GetMaxSurge(), MinReady: r.GetMinReady().AsDuration().String(), HaltAfter: int(r.GetHaltAfter())}
	}
	if m := w.GetMarket(); m != nil {
		g.Market = &Market{Type: nstance.MarketType(m.GetType()), MaxPrice: m.GetMaxPrice(), Fallback: nstance.MarketType(m.GetFallback())}
		if d := m.GetFallbackAfter(); d != nil {
			g.Market.FallbackAfter = d.AsDuration().String()
		}
		if d := m.GetReturnAfter(); d != nil {
			g.Market.ReturnAfter = d.AsDuration().String()
		}
		g.Market.OnDemandBase = m.GetOnDemandBase()
	}
	g.Holds = holdsFrom(w.GetHolds())
	return g
}

func holdsFrom(list []*apiv1.Hold) (out []Hold) {
	for _, h := range list {
		out = append(out, Hold{h.GetKind(), h.GetReason(), wire.TimeOf(h.GetSince()), wire.TimeOf(h.GetUntil())})
	}
	return out
}

func (g Group) key() nstance.GroupKey { return nstance.GroupKey{Tenant: g.Tenant, Group: g.Group} }

// An Instance is an instance as instance list prints it.
type Instance struct {
	ID           nstance.InstanceID `json:"id"`
	Tenant       nstance.TenantID   `json:"tenant"`
	Group        nstance.GroupID    `json:"group"`
	State        nstance.State      `json:"state"`
	Conditions   []string           `json:"conditions,omitempty"`
	OnDemand     bool               `json:"on_demand"`
	Connected    bool               `json:"connected"`        // its agent, to the server
	Drifted      bool               `json:"drifted"`          // of an older definition than its group's
	Reason       string             `json:"reason,omitempty"` // why it was created
	ProviderID   string             `json:"provider_id,omitempty"`
	InstanceType string             `json:"instance_type,omitempty"`
	Market       nstance.MarketType `json:"market,omitempty"`       // that it is in, as the provider says
	MarketAsked  nstance.MarketType `json:"market_asked,omitempty"` // for, if it is another
	Addresses    []string           `json:"addresses,omitempty"`
	InfraHash    string             `json:"infra_hash,omitempty"`
	RuntimeHash  string             `json:"runtime_hash,omitempty"` // of the variables and files in place
	CreatedAt    time.Time          `json:"created_at,omitzero"`
	RegisteredAt time.Time          `json:"registered_at,omitzero"`
	LastReportAt time.Time          `json:"last_report_at,omitzero"`
	LastReport   *nstance.Report    `json:"last_report,omitempty"`
	Drain        *nstance.Drain     `json:"drain,omitempty"`

	PreservedUntil time.Time      `json:"preserved_until,omitzero"`
	Drift          []PlannedField `json:"drift,omitempty"` // instance get: where it differs from what its group desires
}

func instanceOf(w *apiv1.Instance) Instance {
	i := Instance{
		ID: nstance.InstanceID(w.GetId()), Tenant: nstance.TenantID(w.GetTenant()), Group: nstance.GroupID(w.GetGroup()),
		State: nstance.State(w.GetState()), Conditions: w.GetConditions(), OnDemand: w.GetOnDemand(),
		Connected: w.GetConnected(), Drifted: w.GetDrifted(), Reason: w.GetReason(), ProviderID: w.GetProviderId(),
		InstanceType: w.GetInstanceType(), Market: nstance.MarketType(w.GetMarket()), MarketAsked: nstance.MarketType(w.GetMarketAsked()), Addresses: w.GetAddresses(),
		InfraHash: w.GetInfraHash(), RuntimeHash: w.GetRuntimeHash(), CreatedAt: wire.TimeOf(w.GetCreatedAt()), RegisteredAt: wire.TimeOf(w.GetRegisteredAt()),
		LastReportAt: wire.TimeOf(w.GetLastReportAt()), Drain: wire.DrainOf(w.GetDrain()),
		PreservedUntil: wire.TimeOf(w.GetPreservedUntil()), Drift: fieldsOf(w.GetDrift()),
	}
	if w.GetLastReport() != nil {
		r := wire.ReportOf(i.ID, 0, w.GetLastReport())
		i.LastReport = &r
	}
	return i
}

func (i Instance) key() nstance.GroupKey { return nstance.GroupKey{Tenant: i.Tenant, Group: i.Group} }

// A Story is an instance with what happened to it, oldest first, as instance
// get prints it.
type Story struct {
	Instance
	Events []nstance.Event `json:"events"`
}

// A ShardStatus is what status prints.
type ShardStatus struct {
	Cluster         nstance.ClusterID `json:"cluster"`
	Shard           nstance.ShardID   `json:"shard"`
	Server          string            `json:"server"` // the address that answered
	Version         string            `json:"version"`
	Leader          bool              `json:"leader"`
	LeaderAddress   string            `json:"leader_address,omitempty"` // operator API address that the leader tells others
	Standbys        []Standby         `json:"standbys"`                 // the shard's other servers
	Epoch           uint64            `json:"epoch"`
	TermStartedAt   time.Time         `json:"term_started_at,omitzero"`
	Groups          int               `json:"groups"`
	Instances       int               `json:"instances"`
	AgentsConnected int               `json:"agents_connected"`
	Frozen          string            `json:"frozen,omitempty"` // why the whole shard is; absent: it is not
	FrozenAt        time.Time         `json:"frozen_at,omitzero"`
	Holds           []Hold            `json:"holds,omitempty"` // of the whole shard
	Problems        []string          `json:"problems"`
	Attention       []Attention       `json:"attention"`                   // what needs attention, by kind
	Omitted         int               `json:"attention_omitted,omitempty"` // how much more does
}

// An Attention is one thing that needs attention.
type Attention struct {
	Kind    string           `json:"kind"`             // such as short, halted, frozen, orphan or clock
	Subject string           `json:"subject"`          // a group, an instance, a record, the shard
	Tenant  nstance.TenantID `json:"tenant,omitempty"` // absent: it concerns the shard
	Group   nstance.GroupID  `json:"group,omitempty"`
	Since   time.Time        `json:"since,omitzero"` // absent: not known
	Until   time.Time        `json:"until,omitzero"` // when it ends, or is tried again, by itself
	Why     string           `json:"why"`
	Remedy  string           `json:"remedy,omitempty"` // what to do
}

// A Standby is a server that would lead if the present leader did not.
type Standby struct {
	Address       string    `json:"address,omitempty"` // operator API address; absent: its version does not tell
	Version       string    `json:"version,omitempty"`
	AddressFailed bool      `json:"address_failed,omitempty"` // it could not take the shard's movable address
	Since         time.Time `json:"since,omitzero"`           // when the leader heard it first
}

// A ConfigStatus is what config status prints.
type ConfigStatus struct {
	Digest        string    `json:"digest"`
	LoadedAt      time.Time `json:"loaded_at,omitzero"`
	RejectedAt    time.Time `json:"rejected_at,omitzero"` // absent: the latest configuration is in force
	RejectedError string    `json:"rejected_error,omitempty"`
	HeldDigest    string    `json:"held_digest,omitempty"` // waits for config confirm
	HeldAt        time.Time `json:"held_at,omitzero"`
	HeldReason    string    `json:"held_reason,omitempty"`
}

// A ConfigConfirmation is what config confirm prints.
type ConfigConfirmation struct {
	Digest string `json:"digest"`
	Reason string `json:"reason"` // why it was held
	DryRun bool   `json:"dry_run"`
}

// A ConfigValidation is what config validate prints.
type ConfigValidation struct {
	File   string          `json:"file"`
	Digest string          `json:"digest"`
	Shard  nstance.ShardID `json:"shard"`
	Groups int             `json:"groups"`
}

// A ConfigRefresh is what config refresh prints.
type ConfigRefresh struct {
	Digest  string `json:"digest"`
	Changed bool   `json:"changed"`
	DryRun  bool   `json:"dry_run"`
}

// A Scaling is what group scale prints.
type Scaling struct {
	Tenant       nstance.TenantID `json:"tenant"`
	Group        nstance.GroupID  `json:"group"`
	Size         int              `json:"size"`
	PreviousSize int              `json:"previous_size"`
	DryRun       bool             `json:"dry_run"`
}

// A Rollout is what group rollout prints: how far a group is.
type Rollout struct {
	Time       time.Time        `json:"time"`
	Tenant     nstance.TenantID `json:"tenant"`
	Group      nstance.GroupID  `json:"group"`
	State      string           `json:"state"`            // moving, held, halted or done
	Reason     string           `json:"reason,omitempty"` // why it is held or halted
	Size       int              `json:"size"`
	Fresh      int              `json:"fresh"` // ready members of the desired definition
	Ready      int              `json:"ready"`
	Booting    int              `json:"booting"`
	Leaving    int              `json:"leaving"`
	Stale      int              `json:"stale"` // members of an older definition
	RolledBack bool             `json:"rolled_back,omitempty"`
	Holds      []Hold           `json:"holds,omitempty"`
}

// A Freeze is what freeze and thaw print.
type Freeze struct {
	Action string           `json:"action"` // freeze or thaw
	Shard  nstance.ShardID  `json:"shard"`
	Tenant nstance.TenantID `json:"tenant,omitempty"` // absent: the whole shard
	Group  nstance.GroupID  `json:"group,omitempty"`
	DryRun bool             `json:"dry_run"`

	Unchanged bool `json:"unchanged,omitempty"` // it was so before
}

// A Plan is what plan prints: what would happen.
type Plan struct {
	Digest string      `json:"digest"` // of the configuration
	Held   bool        `json:"held"`   // it would wait until it is confirmed
	Groups []GroupPlan `json:"groups"` // only those that something would happen to

	GroupsOmitted int `json:"groups_omitted,omitempty"` // that did not fit into the answer
}

// A GroupPlan is what would happen to one group.
type GroupPlan struct {
	Tenant          nstance.TenantID  `json:"tenant"`
	Group           nstance.GroupID   `json:"group"`
	Change          string            `json:"change"` // added, changed or released
	SizeBefore      int               `json:"size_before"`
	SizeAfter       int               `json:"size_after"`
	Creates         int               `json:"creates"`
	Fields          []PlannedField    `json:"fields,omitempty"`
	Instances       []PlannedInstance `json:"instances,omitempty"`
	EstimateSeconds float64           `json:"estimate_seconds,omitempty"` // at most
	EstimateBasis   string            `json:"estimate_basis,omitempty"`
	Holds           []Hold            `json:"holds,omitempty"` // what would keep it from happening

	InstancesOmitted int `json:"instances_omitted,omitempty"` // that did not fit into the answer
}

// A PlannedField is one field that differs.
type PlannedField struct {
	Path   string `json:"path"`
	Before string `json:"before"`
	After  string `json:"after"`
	Effect string `json:"effect"` // replace, push or none
}

// A PlannedInstance is what would happen to one instance.
type PlannedInstance struct {
	ID     nstance.InstanceID `json:"id"`
	Action string             `json:"action"` // replace, drain, delete or push
	Reason string             `json:"reason"`
}

// A Removal is what instance delete and instance drain print.
type Removal struct {
	Instance nstance.InstanceID `json:"instance"`
	Action   string             `json:"action"` // delete or drain
	DryRun   bool               `json:"dry_run"`
	NoDrain  bool               `json:"no_drain,omitempty"`
	Drain    *nstance.Drain     `json:"drain,omitempty"` // the one that has begun
}

// An Orphan is a machine without a record as orphan list prints it.
type Orphan struct {
	ID           nstance.InstanceID    `json:"id"`
	Tenant       nstance.TenantID      `json:"tenant"`
	Group        nstance.GroupID       `json:"group"`
	ProviderID   string                `json:"provider_id"`
	Status       nstance.MachineStatus `json:"status"` // what the provider says
	InstanceType string                `json:"instance_type,omitempty"`
	Market       nstance.MarketType    `json:"market,omitempty"`
	Addresses    []string              `json:"addresses,omitempty"`
	CreatedAt    time.Time             `json:"created_at,omitzero"`
	SeenAt       time.Time             `json:"seen_at,omitzero"` // first, by the server that leads now
	Spared       string                `json:"spared,omitempty"` // why it is not deleted; absent: it will be
}

// An OrphanDecision is what orphan adopt and orphan delete print, one for each
// machine.
type OrphanDecision struct {
	Orphan
	Action string `json:"action"` // adopt or delete
	DryRun bool   `json:"dry_run"`
}

// A Preservation is what instance preserve prints.
type Preservation struct {
	Instance nstance.InstanceID `json:"instance"`
	Until    time.Time          `json:"until,omitzero"` // absent: it is drained and deleted now
	DryRun   bool               `json:"dry_run"`
}

// A Record is what record show prints.
type Record struct {
	Key     string `json:"key"`
	Version string `json:"version"`
	Data    string `json:"data"`
	Error   string `json:"error,omitempty"` // why it cannot be read; absent: it can
}

// A RecordRepair is what record repair prints.
type RecordRepair struct {
	Key    string `json:"key"`
	Action string `json:"action"` // replace or remove
	DryRun bool   `json:"dry_run"`
}

// An Interruption is one notice and what became of it, as interruption list and
// interruption show print it. Absent times have not come.
type Interruption struct {
	EventID                string             `json:"event_id"`
	Tenant                 nstance.TenantID   `json:"tenant"`
	Group                  nstance.GroupID    `json:"group"`
	Instance               nstance.InstanceID `json:"instance"`
	Kind                   nstance.NoticeKind `json:"kind"`
	Source                 string             `json:"source"`
	Deadline               time.Time          `json:"deadline,omitzero"`
	Rehearsal              bool               `json:"rehearsal"`
	Withdrawn              bool               `json:"withdrawn"`
	DetectedAt             time.Time          `json:"detected_at,omitzero"` // by the agent
	ReceivedAt             time.Time          `json:"received_at,omitzero"` // by the server
	ReplacementRequestedAt time.Time          `json:"replacement_requested_at,omitzero"`
	Replacement            nstance.InstanceID `json:"replacement,omitempty"`
	ReplacementReadyAt     time.Time          `json:"replacement_ready_at,omitzero"`
	DrainStartedAt         time.Time          `json:"drain_started_at,omitzero"`
	DrainedAt              time.Time          `json:"drained_at,omitzero"`
	DrainOutcome           string             `json:"drain_outcome,omitempty"` // drained, failed, cut short, cancelled
	DeletedAt              time.Time          `json:"deleted_at,omitzero"`
}
