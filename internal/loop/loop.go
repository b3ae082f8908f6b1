// Package loop is what the server of this module asks of its reconciler and other programs
// have no use for: the records as they are stored, what files and metrics are made from, and
// questions that only save it work.
package loop

import (
	"context"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider"
)

// Internals are the parts of a reconciler that no version promises. reconcile.Admin has them.
// The methods may be called concurrently.
type Internals interface {
	// Records gives access to the instance records, for components that own other fields
	// of them: registration. Tell the reconciler with a fact afterwards.
	Records() *records.Records

	// LivingRecords returns the records of all instances, with what this term knows of them
	// that is not durable yet.
	LivingRecords() []records.Instance

	// Reread reads the records again, after one was repaired.
	Reread(ctx context.Context) error

	// DesireGroup replaces the desired values of one group. Observe with a Desired would
	// cost every group. What it refuses needs attention, as there.
	DesireGroup(g nstance.Group)

	// OnEnd has keep called with each instance of which the provider has nothing left,
	// before its record is deleted.
	// The record stays until keep has called done, once, without an error; after an error
	// keep is called again. So an instance is passed to keep again after a crash. keep is
	// called outside of the reconciler's lock, must not block, and may call done at once.
	// OnEnd is called before Run.
	OnEnd(keep LifeKeeper)

	// Await blocks until the shard's records have been read, or ctx ends.
	Await(ctx context.Context) error

	// Abilities returns what the provider can do beside its own methods, within the
	// bounds that reconcile.Options.Provider sets.
	Abilities() provider.Abilities

	// GroupKeys returns the key of every group, in the order of Groups.
	GroupKeys() []nstance.GroupKey

	// InstanceIDs returns the IDs of the instances whose group keep accepts, sorted.
	// keep must not call the reconciler.
	InstanceIDs(keep func(nstance.GroupKey) bool) []nstance.InstanceID

	// Removable returns nil if Drain and Delete would begin now. Else it fails as Instance
	// does, or with Conflict when a freeze forbids it or the instance is preserved.
	Removable(id nstance.InstanceID) error

	// OnDemand returns how many instances on demand a tenant has.
	OnDemand(tenant nstance.TenantID) int

	// CountPools returns how many machines run in each pool, those made by request too.
	CountPools() map[MemberPool]int

	// SetPoolRates replaces what is known of how often pools are reclaimed, in the last month
	// or so. A group's order of shapes uses it, and so does the time for which a
	// reclaimed pool comes last, by former leaders too. Without a call all pools count alike.
	SetPoolRates(rates []PoolRate)

	// QueueAge returns how long the group has waited that has waited longest to be
	// planned, for metrics.
	QueueAge() time.Duration

	// Runtime returns what an instance should have now, by its group. It fails with
	// NotFound when there is no such instance, or its group has no
	// definition. The caller must not change it.
	Runtime(id nstance.InstanceID) (Runtime, error)

	// RuntimeHashes returns what every group wants.
	RuntimeHashes() map[nstance.GroupKey]string

	// Frozen returns since when the shard is frozen and why, and whether it is.
	Frozen() (Freeze, bool)

	// FrozenGroups returns the groups that a freeze keeps from being changed.
	FrozenGroups() map[nstance.GroupKey]bool

	// Thawed returns nil unless a freeze forbids to change machines of a group: then
	// Conflict, with what is frozen, since when, and how to end it. The zero key asks
	// about the shard alone.
	Thawed(key nstance.GroupKey) error

	// ClockRight looks at the clock, and reports whether the time in what is stored
	// may decide something. Whatever now that is about is to be read before.
	ClockRight() bool

	// Rehearse describes what Plan would do if a notice for some members of a group arrived
	// now. Nothing is done.
	Rehearse(key nstance.GroupKey, ids []nstance.InstanceID, n nstance.Notice) []string

	// ExpectRehearsal has the next reclaim that each of some instances announces within a
	// time be a rehearsal by source, as one that was not announced by its machine is. It
	// returns once that is durable, or with the errors of storage.
	ExpectRehearsal(ctx context.Context, ids []nstance.InstanceID, source string, within time.Duration) error

	// DrillDue reports whether a regular drill of a group is to be carried out now: the latest
	// one began so long ago, and the group is healthy and has so many members. The first call
	// begins the wait for the first drill. Fails as Pause does.
	DrillDue(ctx context.Context, key nstance.GroupKey, every time.Duration, count nstance.Count) (due bool, err error)
	// BeginDrill makes durable that a drill begins: no leader repeats it. Fails as Pause does.
	BeginDrill(ctx context.Context, key nstance.GroupKey, every time.Duration) error
}

// A LifeKeeper gets the last state of an instance's record, the instance that replaces
// it, if there is one by then, and the time.
type LifeKeeper = func(last records.Instance, replacedBy nstance.InstanceID, at time.Time, done func(error))

// A MemberPool is what machines of one group share: a cloud takes capacity back by type,
// zone and market. An empty field is not known.
type MemberPool struct {
	Group        nstance.GroupKey
	InstanceType string
	Zone         string
	Market       nstance.MarketType // the actual one, as far as it is known
}

// A PoolRate is how often the cloud took machines of one pool back: those of one type in
// one zone and market.
type PoolRate struct {
	InstanceType string
	Zone         string
	Market       nstance.MarketType
	MachineTime  time.Duration // that machines ran, all together
	Reclaims     int
	LastReclaim  time.Time // zero: none
}

// A Freeze is a freeze: since when, and why.
type Freeze struct {
	Since  time.Time
	Reason string
}

// A Runtime is what an instance should have that can be changed while it runs.
type Runtime struct {
	Machine    nstance.Machine // as last seen
	Seen       bool            // this term has seen the machine
	Definition nstance.Definition
	Hash       string // runtime hash of Definition
	Frozen     bool   // a freeze forbids to change the machine
}
