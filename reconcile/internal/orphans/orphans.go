// Package orphans decides what becomes of orphans: machines that carry a shard's
// marks and have no record.
//
// An orphan costs money for nothing, but to delete a member by mistake would be
// worse. So every doubt spares it: what is spared is listed, and an operator may
// adopt or delete it.
package orphans

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/generation"
	"github.com/nstance-go/nstance/internal/validate"
)

// A Rule says when an orphan may be deleted without asking.
type Rule struct {
	Interval time.Duration // between two listings that must both show it
	MinAge   time.Duration // of its machine
	MinTerm  time.Duration // that the leader must have led
}

// An Orphan is a machine without a record, as long as every whole listing shows it.
type Orphan struct {
	Machine     nstance.Machine // as last listed
	FirstListed time.Time       // when the first listing in a row that showed it began
	LastListed  time.Time
}

// A Shard is what the rule needs to know beside the orphans.
type Shard struct {
	Now           time.Time
	TermBegan     time.Time
	Members       int    // but for orphans that are being deleted
	Live          int    // members whose record exists and is not marked for deletion
	Deleting      int    // orphans that are being deleted
	FoundNoRecord bool   // storage held no live record when the term began
	Epoch         uint64 // of the term
	ClockWrong    string // why the time cannot be trusted; empty: it can

	// Frozen returns an error while a freeze forbids to delete machines of a group.
	Frozen func(nstance.GroupKey) error
}

// A Book holds the orphans of a shard. It is not safe for concurrent use.
type Book struct {
	rule    Rule
	orphans map[nstance.InstanceID]*Orphan
}

// New returns an empty book.
func New(rule Rule) *Book {
	return &Book{rule: rule, orphans: map[nstance.InstanceID]*Orphan{}}
}

// SetRule changes the rule for decisions from now on.
func (b *Book) SetRule(rule Rule) { b.rule = rule }

// List replaces the orphans by those of a whole listing that began at the given
// time, and returns the machines that are new.
func (b *Book) List(machines []nstance.Machine, began time.Time) (added []nstance.Machine) {
	listed := map[nstance.InstanceID]*Orphan{}
	for _, mach := range machines {
		o := b.orphans[mach.ID]
		if o == nil || !SameMachine(o.Machine, mach) {
			o = &Orphan{FirstListed: began}
			added = append(added, mach)
		}
		o.Machine = mach
		if began.After(o.LastListed) {
			o.LastListed = began
		}
		listed[mach.ID] = o
	}
	b.orphans = listed
	return added
}

// SameMachine reports whether two answers of a provider are about one machine.
func SameMachine(a, b nstance.Machine) bool {
	return a.ID == b.ID && a.ProviderID == b.ProviderID && a.Owner == b.Owner && a.CreatedAt.Equal(b.CreatedAt)
}

// Get returns an orphan, and whether there is one with this ID.
func (b *Book) Get(id nstance.InstanceID) (Orphan, bool) {
	if o := b.orphans[id]; o != nil {
		return *o, true
	}
	return Orphan{}, false
}

// All returns the orphans, sorted by ID.
func (b *Book) All() (out []Orphan) {
	for _, id := range slices.Sorted(maps.Keys(b.orphans)) {
		out = append(out, *b.orphans[id])
	}
	return out
}

// Newer returns the first orphan that a later term than epoch has made, by ID, and whether there
// is one. The leader of epoch cannot have it in its own storage: another server leads from a copy.
func (b *Book) Newer(epoch uint64) (found Orphan, ok bool) {
	for _, o := range b.orphans {
		if o.Machine.Epoch > epoch && (!ok || o.Machine.ID < found.Machine.ID) {
			found, ok = *o, true
		}
	}
	return found, ok
}

// Forget drops a machine that is gone, or has a record.
func (b *Book) Forget(id nstance.InstanceID) { delete(b.orphans, id) }

// Spared returns why an orphan is not deleted; empty: it will be.
func (b *Book) Spared(o Orphan, s Shard) string {
	return cmp.Or(b.foreign(o, s), b.tooEarly(o, s), b.doubt(o, s))
}

// Due returns the machines that the rule does not spare, sorted by ID, and why
// others that are old enough are spared until an operator decides; empty: none is.
func (b *Book) Due(s Shard) (machines []nstance.Machine, doubt string) {
	for _, o := range b.All() {
		if b.tooEarly(o, s) != "" {
			continue
		}
		if why := b.doubt(o, s); why != "" {
			doubt = why
			continue
		}
		machines = append(machines, o.Machine)
	}
	return machines, doubt
}

// tooEarly returns what spares an orphan for now; empty: nothing does.
func (b *Book) tooEarly(o Orphan, s Shard) string {
	key := nstance.GroupKey{Tenant: o.Machine.Owner.Tenant, Group: o.Machine.Group}
	born := o.Machine.CreatedAt
	if id := o.Machine.ID.Time(); id.After(born) {
		born = id
	}
	frozen := s.Frozen(key)
	switch {
	case frozen != nil:
		return frozen.Error()
	case s.ClockWrong != "":
		return s.ClockWrong
	case s.Now.Sub(s.TermBegan) < b.rule.MinTerm:
		return fmt.Sprintf("this leader has not led for %s yet", b.rule.MinTerm)
	case o.LastListed.Sub(o.FirstListed) < b.rule.Interval:
		return fmt.Sprintf("two listings %s apart have not shown it yet", b.rule.Interval)
	case s.Now.Sub(born) < b.rule.MinAge:
		return fmt.Sprintf("it is younger than %s", b.rule.MinAge)
	}
	return ""
}

// foreign returns why an orphan may be of another storage than this one: it stays until an
// operator decides; empty: it is of this one.
func (b *Book) foreign(o Orphan, s Shard) string {
	_, overtaken := b.Newer(s.Epoch)
	switch epoch := o.Machine.Epoch; {
	case overtaken:
		return "another server leads this shard from a copy of its storage"
	case epoch > 0 && generation.Of(epoch) != generation.Of(s.Epoch):
		return fmt.Sprintf("term %d has made it, of a storage that this one is a copy of", epoch)
	}
	return ""
}

// doubt returns what spares an orphan until an operator decides; empty: nothing does.
// Many orphans mean that something is wrong with the records rather than with the
// machines.
func (b *Book) doubt(o Orphan, s Shard) string {
	orphans, most := len(b.orphans)+s.Deleting, max(1, s.Members/5)
	switch foreign := b.foreign(o, s); {
	case foreign != "":
		return foreign
	case s.Live == 0:
		return "storage holds no live record: its records may be lost"
	case s.FoundNoRecord && o.Machine.ID.Time().Before(s.TermBegan):
		return "storage held no live record when this leader began: its records may be lost"
	case orphans > most:
		return fmt.Sprintf("%d machines without a record are more than %d, the larger of one and a fifth of the shard", orphans, most)
	case validate.Name("tenant", o.Machine.Owner.Tenant) != nil:
		return "its marks name no tenant"
	}
	return ""
}
