package reconcile

import (
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/reconcile/internal/orphans"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// reasonOrphan is why the record of an orphan exists: to make its deletion
// durable before it begins.
const reasonOrphan plan.Reason = "orphan"

// orphanGroup takes the orphans whose mark names no group, which is for display
// only.
const orphanGroup nstance.GroupID = "orphaned"

// orphanRule is the rule by the present settings.
func (s *shard) orphanRule() orphans.Rule {
	return orphans.Rule{Interval: s.opts.GC.Interval, MinAge: s.opts.GC.RegistrationTimeout, MinTerm: s.opts.FullPass}
}

// recordOrphans records the machines of one whole listing that are not members.
func (s *shard) recordOrphans(unknown []nstance.Machine, listedAt time.Time) {
	unknown = slices.DeleteFunc(unknown, func(mach nstance.Machine) bool {
		return s.hasRecord(mach.ID) || !s.opts.Owner.Owns(mach.Owner) || mach.Status == nstance.StatusDeleting
	})
	before := s.overtaken()
	defer func() { s.publishOvertaken(before) }()
	for _, mach := range s.orphans.List(unknown, listedAt) {
		s.opts.Journal(nstance.Event{
			Time: s.opts.Now().UTC(), Type: nstance.EventOrphanSeen, Instance: mach.ID, Tenant: mach.Owner.Tenant, Group: mach.Group,
			Reason: "a machine with our marks has no record",
		})
	}
}

// hasRecord reports whether an instance is a member, or has a record that cannot be
// read.
func (s *shard) hasRecord(id nstance.InstanceID) bool {
	return s.members[id] != nil || slices.ContainsFunc(s.unreadableRecords, func(p records.Problem) bool { return p.ID == id })
}

// orphanShard returns what the rule needs to know of the shard.
func (s *shard) orphanShard() orphans.Shard {
	s.updateClock()
	view := orphans.Shard{Now: s.opts.Now(), TermBegan: s.began, FoundNoRecord: s.foundNoRecord, Epoch: s.opts.Epoch, ClockWrong: s.clock.Distrust(), Frozen: s.thawed}
	for _, m := range s.members {
		switch {
		case m.rec.Deleting != nil && plan.Reason(m.rec.Reason) == reasonOrphan:
			view.Deleting++
			continue
		case m.durable && m.rec.Deleting == nil:
			view.Live++
		}
		view.Members++
	}
	return view
}

func (s *shard) orphanView(o orphans.Orphan, shard orphans.Shard) OrphanView {
	return OrphanView{Machine: o.Machine, Since: o.FirstListed, Spared: s.orphans.Spared(o, shard)}
}

// holdOrphans is the hold, in the journal, while machines without a record are
// spared until an operator decides. It concerns the shard and no group.
const holdOrphans = "orphans"

// forgetOrphan drops a machine that is gone, or has a record.
func (s *shard) forgetOrphan(id nstance.InstanceID) {
	before := s.overtaken()
	s.orphans.Forget(id)
	s.publishOvertaken(before)
}
