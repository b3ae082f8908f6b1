package ledger

import (
	"cmp"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
)

// An Entry is one line of the ledger. One field is set; a reader skips lines whose
// field it does not know.
type Entry struct {
	Life    *Life    `json:"life,omitempty"`
	Ready   *Ready   `json:"ready,omitempty"`
	Ignored *Ignored `json:"ignored,omitempty"`
	Action  *Action  `json:"action,omitempty"`
}

// An Action is a call of the API that changed something, or may have.
type Action struct {
	ID      string           `json:"id"` // random
	At      time.Time        `json:"at"` // when it had ended
	By      string           `json:"by"` // the caller's name
	Role    nstance.Role     `json:"role"`
	Tenant  nstance.TenantID `json:"tenant"`
	Method  string           `json:"method"`
	Request string           `json:"request"` // JSON, without what may be secret
	Code    nstance.Code     `json:"code,omitempty"`
	Error   string           `json:"error,omitempty"`
	Omitted int              `json:"omitted,omitempty"` // of the tenant's before this one, beyond what is recorded
}

// A Life is the story of an instance that has ended. Zero times are not known, or
// there was no such moment.
type Life struct {
	ID         nstance.InstanceID `json:"id"`
	Tenant     nstance.TenantID   `json:"tenant"`
	Group      nstance.GroupID    `json:"group"`
	OnDemand   bool               `json:"on_demand,omitempty"`
	Reason     string             `json:"reason,omitempty"` // why it was created
	Epoch      uint64             `json:"epoch"`            // of its creation
	Pool       Pool               `json:"pool"`
	Subnet     string             `json:"subnet,omitempty"`
	Price      float64            `json:"price_per_hour,omitempty"` // of its shape when it was created, in the cloud's currency; 0: not known
	Image      string             `json:"image,omitempty"`
	InfraHash  string             `json:"infra_hash,omitempty"`
	ProviderID string             `json:"provider_id,omitempty"`
	Hostname   string             `json:"hostname,omitempty"`

	CreatedAt    time.Time `json:"created_at"`
	LaunchedAt   time.Time `json:"launched_at,omitzero"` // by the provider's clock
	RegisteredAt time.Time `json:"registered_at,omitzero"`
	ReadyAt      time.Time `json:"ready_at,omitzero"`

	Replaces   nstance.InstanceID `json:"replaces,omitempty"`
	ReplacedBy nstance.InstanceID `json:"replaced_by,omitempty"` // empty: none was made before its end
	Drifted    []string           `json:"drifted,omitempty"`     // fields whose change it was replaced for

	Notices   []nstance.Notice    `json:"notices,omitempty"` // that stood at its end
	Drain     *nstance.Drain      `json:"drain,omitempty"`
	Drained   *records.DrainEnd   `json:"drained,omitempty"`
	Cancelled []records.PastDrain `json:"cancelled,omitempty"` // drains that did not end it

	GoneAt    time.Time         `json:"gone_at,omitzero"` // when the provider said that it does not run, before its deletion
	Loss      nstance.LossCause `json:"loss,omitempty"`
	DeleteAt  time.Time         `json:"delete_at,omitzero"` // when its deletion became durable
	Why       nstance.Cause     `json:"why,omitzero"`
	DeletedAt time.Time         `json:"deleted_at"`
	Outcome   Outcome           `json:"outcome"`
}

// A Pool is what a cloud takes capacity back from: machines of one type in one zone and
// market. Empty fields are not known.
type Pool struct {
	InstanceType string             `json:"instance_type,omitempty"`
	Zone         string             `json:"zone,omitempty"`
	Market       nstance.MarketType `json:"market,omitempty"`
}

// An Outcome says how an instance ended.
type Outcome string

// The outcomes.
const (
	Drained       Outcome = "drained"             // its drain ended before its deadline and before the machine
	CutShort      Outcome = "cut short"           // the deadline, or the end of the machine, came before the end of its drain
	DrainFailed   Outcome = "drain failed"        // the executor gave the drain up
	NotDrained    Outcome = "not drained"         // deleted without a drain
	Gone          Outcome = "gone without notice" // the machine ended by itself
	GoneNoDrain   Outcome = "gone before drain"   // the machine ended after its notice, before a drain began
	NeverLaunched Outcome = "never launched"      // no machine is known to have been made
)

// A Ready says when an instance became ready.
type Ready struct {
	ID       nstance.InstanceID `json:"id"`
	Replaces nstance.InstanceID `json:"replaces,omitempty"`
	At       time.Time          `json:"at"`
}

// An Ignored is a notice that dooms nothing.
type Ignored struct {
	ID     nstance.InstanceID `json:"id"`
	Tenant nstance.TenantID   `json:"tenant"`
	Group  nstance.GroupID    `json:"group"`
	Notice nstance.Notice     `json:"notice"`
	Reason string             `json:"reason,omitempty"`
	At     time.Time          `json:"at"`
}

// LifeOf returns the life of an instance, from the last state of its record. Equal
// records give equal lives but for the last two arguments.
func LifeOf(rec records.Instance, replacedBy nstance.InstanceID, at time.Time) Life {
	end := rec.End
	if end == nil { // the record of an orphan, or of an older version
		end = &records.End{}
	}
	l := Life{
		ID: rec.ID, Tenant: rec.Tenant, Group: rec.Group, OnDemand: rec.OnDemand, Reason: rec.Reason, Epoch: rec.CreatedEpoch,
		Pool: PoolOf(rec), Subnet: rec.Shape.Subnet, Price: rec.PricePerHour, Image: rec.Image, InfraHash: rec.InfraHash, ProviderID: rec.ProviderID, Hostname: rec.Hostname,
		CreatedAt: rec.CreatedAt, LaunchedAt: end.LaunchedAt, RegisteredAt: rec.RegisteredAt, ReadyAt: rec.ReadyAt,
		Replaces: rec.Replaces, ReplacedBy: replacedBy, Drifted: rec.Drifted,
		Notices: rec.Notices, Drain: rec.Drain, Drained: end.Drained, Cancelled: rec.Cancelled,
		GoneAt: end.GoneAt, Loss: end.Loss, DeletedAt: at,
	}
	if rec.Deleting != nil {
		l.DeleteAt, l.Why = rec.Deleting.At, rec.Deleting.Why
	}
	l.Outcome = l.outcome(rec.CutShort)
	return l
}

// PoolOf returns the pool of an instance, as far as its record says.
func PoolOf(rec records.Instance) Pool {
	p := Pool{InstanceType: rec.Shape.InstanceType, Zone: rec.Zone, Market: rec.Shape.Market}
	if end := rec.End; end != nil {
		p = Pool{cmp.Or(end.InstanceType, p.InstanceType), cmp.Or(p.Zone, end.Zone), cmp.Or(end.Market, p.Market)}
	}
	return p
}

func (l *Life) outcome(cutShort bool) Outcome {
	drained := l.Drained != nil && l.Drained.Outcome == nstance.OutcomeDrained
	switch {
	case drained:
		return Drained
	case cutShort, l.Drain != nil && !l.GoneAt.IsZero():
		return CutShort
	case l.Drain != nil && l.Drained != nil:
		return DrainFailed
	case !l.GoneAt.IsZero() && len(l.Notices) > 0:
		return GoneNoDrain
	case !l.GoneAt.IsZero():
		return Gone
	case !l.launched():
		return NeverLaunched
	}
	return NotDrained
}

// launched reports whether a machine is known to have been made.
func (l *Life) launched() bool {
	return !l.LaunchedAt.IsZero() || !l.RegisteredAt.IsZero() || l.ProviderID != ""
}
