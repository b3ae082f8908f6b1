package nstance

import (
	"encoding/json"
	"net/netip"
	"time"
)

// An Owner is the metadata on every machine that says which shard and tenant it
// belongs to.
// Two installations never touch each other's machines, even when their cluster
// names are equal, because the installation ID is random.
type Owner struct {
	Installation string    `json:"installation"` // made once, together with the certificate authorities
	Cluster      ClusterID `json:"cluster_id"`
	Shard        ShardID   `json:"shard"`
	Tenant       TenantID  `json:"tenant,omitempty"` // empty in a filter: every tenant of the shard
}

// Owns reports whether a machine marked m falls under the filter o.
func (o Owner) Owns(m Owner) bool {
	return o.Installation == m.Installation && o.Cluster == m.Cluster && o.Shard == m.Shard &&
		(o.Tenant == "" || o.Tenant == m.Tenant)
}

// An Arch is a processor architecture.
type Arch string

// The architectures a template may name.
const (
	AMD64 Arch = "amd64"
	ARM64 Arch = "arm64"
)

// A Market is how capacity is bought.
type Market struct {
	Type          MarketType    `json:"type,omitempty"`           // empty: on-demand
	MaxPrice      string        `json:"max_price,omitempty"`      // decimal string, the cloud's currency per hour; empty: the cloud's default
	Fallback      MarketType    `json:"fallback,omitempty"`       // on-demand, or empty for none
	FallbackAfter time.Duration `json:"fallback_after,omitempty"` // how long spot must be sold out first
	ReturnAfter   time.Duration `json:"return_after,omitempty"`   // how long after a fallback a member is replaced by spot, doubling after each failure; 0: 30 minutes
	OnDemandBase  Count         `json:"on_demand_base,omitzero"`  // members of a spot group that are on-demand in any case
	FallbackWhen  ReclaimLimit  `json:"fallback_when,omitzero"`   // creates fall back to on-demand while it is reached; zero: never for that
}

// A ReclaimLimit is a number of reclaims within a time.
type ReclaimLimit struct {
	Reclaims int           `json:"reclaims"` // of spot members of one group
	Window   time.Duration `json:"window"`
}

// A MarketType names a kind of capacity.
type MarketType string

// The markets.
const (
	OnDemand MarketType = "on-demand"
	Spot     MarketType = "spot" // may be reclaimed by the cloud at any second
)

// A MachineSpec is everything a provider needs to launch one machine. Equal
// specs produce equal requests, byte for byte, so that a repeat is recognised.
// HostLimit is a preference about where a new machine goes: a repeat may have
// another one. A provider that chooses hosts reports them as Machine.Zone; one that
// does not refuses a HostLimit as Invalid.
type MachineSpec struct {
	ID           InstanceID      `json:"id"`
	Owner        Owner           `json:"owner"`
	Group        GroupID         `json:"group"` // annotation, for display only
	CreatedAt    time.Time       `json:"created_at"`
	Epoch        uint64          `json:"epoch"` // of the leader that wrote the intent
	Arch         Arch            `json:"arch"`
	Image        string          `json:"image"`
	InstanceType string          `json:"instance_type,omitempty"`
	Subnet       string          `json:"subnet,omitempty"`
	Market       MarketType      `json:"market,omitempty"`
	MaxPrice     string          `json:"max_price,omitempty"`
	Park         ParkMode        `json:"park,omitempty"`       // how it will be parked; empty: never
	HostLimit    int             `json:"host_limit,omitempty"` // machines of its group on one host, as far as others have room; 0: any number
	Args         json.RawMessage `json:"args,omitempty"`       // provider-specific, decoded strictly by the provider; may be nil
	UserData     []byte          `json:"userdata,omitempty"`
	Token        string          `json:"token,omitempty"` // idempotency token: the ID and a digest of the shape
}

// A ParkMode is how a machine is kept for later without running.
type ParkMode string

// The modes. A stopped machine boots again when it is woken; a hibernated one
// goes on where it was.
const (
	ParkStopped    ParkMode = "stopped"
	ParkHibernated ParkMode = "hibernated"
	ParkRunning    ParkMode = "running" // it runs on without work; providers are not asked for it
)

// A MachineStatus is what the provider says a machine is doing.
type MachineStatus string

// The statuses. A status that a provider cannot name is StatusUnknown, which
// decides nothing.
const (
	StatusUnknown  MachineStatus = "unknown"
	StatusPending  MachineStatus = "pending" // accepted by the cloud, not running yet
	StatusRunning  MachineStatus = "running"
	StatusStopping MachineStatus = "stopping"
	StatusStopped  MachineStatus = "stopped"
	StatusDeleting MachineStatus = "deleting"
	StatusFailed   MachineStatus = "failed"
)

// Known reports whether s is one of the statuses above.
func (s MachineStatus) Known() bool {
	switch s {
	case StatusUnknown, StatusPending, StatusRunning:
		return true
	}
	return s.Dead()
}

// Dead reports whether no workload can be running on such a machine, now or
// later without being started again: there is nothing left to drain.
func (s MachineStatus) Dead() bool {
	switch s {
	case StatusStopping, StatusStopped, StatusDeleting, StatusFailed:
		return true
	}
	return false
}

// A Machine is the provider's view of one machine.
type Machine struct {
	ID           InstanceID    `json:"id"`
	ProviderID   string        `json:"provider_id"` // the provider's handle, not an identity
	Owner        Owner         `json:"owner"`
	Group        GroupID       `json:"group,omitempty"`
	CreatedAt    time.Time     `json:"created_at"`
	Epoch        uint64        `json:"epoch"`
	Status       MachineStatus `json:"status"`
	InstanceType string        `json:"instance_type,omitempty"`
	Cause        LossCause     `json:"cause,omitempty"`      // why it is dead, as far as the cloud says
	CauseText    string        `json:"cause_text,omitempty"` // what the cloud says of that, or of why a pending machine does not start yet, in its own words; empty: nothing
	Zone         string        `json:"zone,omitempty"`
	Market       MarketType    `json:"market,omitempty"` // the actual one
	Addresses    []netip.Addr  `json:"addresses,omitempty"`

	// ReclaimWarning is how long before the end of this machine a reclaim is announced,
	// where announcements name no deadline and the cloud says it of the machine; 0: it
	// does not.
	ReclaimWarning time.Duration `json:"reclaim_warning,omitempty"`
}
