package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/validate"
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
	_, unreadable := s.unreadableGroup(id)
	return s.members[id] != nil || unreadable
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

// orphanViews returns all orphans, sorted by ID.
func (s *shard) orphanViews() []OrphanView {
	out, all := []OrphanView{}, s.orphans.All()
	if len(all) == 0 { // the rule counts every member
		return out
	}
	shard := s.orphanShard()
	for _, o := range all {
		out = append(out, OrphanView{Machine: o.Machine, Since: o.FirstListed, Spared: s.orphans.Spared(o, shard)})
	}
	return out
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

// collectOrphans looks for machines without a record and collects those that
// the rule does not spare.
func (r *Reconciler) collectOrphans(ctx context.Context) {
	for r.restUntilCollection(ctx) {
		r.reconcileMachines(ctx)
		if err := r.collect(ctx); err != nil && ctx.Err() == nil {
			r.log.Warn("orphans not collected, tried again later", "code", nstance.CodeOf(err), "err", err)
		}
	}
}

// restUntilCollection waits until orphans are to be looked for again, and
// reports whether ctx goes on. The interval counts from the beginning of the
// wait, also when it is changed meanwhile.
func (r *Reconciler) restUntilCollection(ctx context.Context) bool {
	for began := time.Now(); ; {
		r.mu.Lock()
		wait, tuned := r.opts.GC.Interval-time.Since(began), r.tuned
		r.mu.Unlock()
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-tuned:
			timer.Stop()
		case <-timer.C:
			return true
		}
	}
}

// collect collects what is due. All records are read first: what has one after
// all is a member.
func (r *Reconciler) collect(ctx context.Context) error {
	if len(r.dueOrphans()) == 0 {
		return nil
	}
	release, err := r.acquireOrphans(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := r.readRecordsAgain(ctx); err != nil {
		return err
	}
	var failed error
	for _, mach := range r.dueOrphans() {
		why := nstance.Cause{Kind: nstance.CauseOrphan, Message: "a machine with our marks and without a record"}
		if err := r.deleteOrphan(ctx, mach, why); err != nil {
			failed = errors.Join(failed, fmt.Errorf("machine %s (%s): %w", mach.ProviderID, mach.ID, err))
		}
	}
	return failed
}

// acquireOrphans waits until no other call changes orphans; release lets the next one.
func (r *Reconciler) acquireOrphans(ctx context.Context) (release func(), err error) {
	select {
	case r.orphanLock <- struct{}{}:
		return func() { <-r.orphanLock }, nil
	case <-ctx.Done():
		return nil, nstance.Errorf(nstance.Unavailable, "other orphans are being adopted or deleted: %w", ctx.Err())
	}
}

// dueOrphans returns what the rule does not spare, and publishes when it begins to
// spare machines until an operator decides, and when it ends.
func (r *Reconciler) dueOrphans() []nstance.Machine {
	r.mu.Lock()
	defer r.mu.Unlock()
	due, doubt := r.orphans.Due(r.orphanShard())
	publish := func(typ nstance.EventType, reason string) {
		r.opts.Journal(nstance.Event{Time: r.opts.Now().UTC(), Type: typ, Reason: reason})
	}
	switch doubted := doubt != ""; {
	case doubted && !r.doubtPublished:
		publish(nstance.EventAlarm, "machines without a record are kept until they are adopted or deleted on request: "+doubt)
		publish(nstance.EventHoldStarted, holdOrphans+": "+doubt)
	case !doubted && r.doubtPublished:
		publish(nstance.EventHoldEnded, holdOrphans)
	}
	r.doubtPublished = doubt != ""
	return due
}

// deleteOrphan takes a machine on its way out: once more it is looked at, then a record
// makes its deletion durable, and from there on it goes like any other. If a
// record stands there by now, the machine is a member.
func (r *Reconciler) deleteOrphan(ctx context.Context, listed nstance.Machine, why nstance.Cause) error {
	mach, err := r.lookAtOrphan(ctx, listed)
	if err == nil {
		err = r.internals().Thawed(nstance.GroupKey{Tenant: mach.Owner.Tenant, Group: mach.Group})
	}
	if err != nil {
		return err
	}
	rec := recordOf(mach, reasonOrphan)
	rec.Deleting = &records.Deletion{At: r.opts.Now().UTC(), Why: why}
	m, err := r.writeOrphanRecord(ctx, mach, rec)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.publish(m, nstance.Event{Type: nstance.EventDeleteRequested, Reason: string(why.Kind) + withMessage(why.Message)})
	return nil
}

// lookAtOrphan asks for the machine again, which must be the one that was
// listed, mark by mark.
func (r *Reconciler) lookAtOrphan(ctx context.Context, listed nstance.Machine) (nstance.Machine, error) {
	mach, err := r.provider.Get(ctx, listed.ID)
	if errors.Is(err, nstance.NotFound) {
		r.mu.Lock()
		r.forgetOrphan(listed.ID)
		r.mu.Unlock()
	}
	if err != nil {
		return mach, err
	}
	if !orphans.SameMachine(mach, listed) || !r.opts.Owner.Owns(mach.Owner) {
		return mach, nstance.Errorf(nstance.Conflict, "machine %s is not the one that was listed: it was left alone", mach.ProviderID)
	}
	return mach, nil
}

// recordOf returns what a machine's marks say about it.
func recordOf(mach nstance.Machine, why plan.Reason) records.Instance {
	rec := records.Instance{
		ID: mach.ID, Tenant: mach.Owner.Tenant, Group: mach.Group, Reason: string(why), CreatedEpoch: mach.Epoch,
		CreatedAt: mach.ID.Time().UTC(), ProviderID: mach.ProviderID, Addresses: mach.Addresses,
		Shape: records.Shape{InstanceType: mach.InstanceType, Market: mach.Market},
	}
	if validate.Name("group", rec.Group) != nil {
		rec.Group = orphanGroup
	}
	return rec
}

// writeOrphanRecord writes the record, which must be new, and makes the machine its member.
func (r *Reconciler) writeOrphanRecord(ctx context.Context, mach nstance.Machine, rec records.Instance) (*member, error) {
	written, err := r.records.Create(ctx, rec)
	if errors.Is(err, nstance.Conflict) {
		if rerr := r.readRecordsAgain(ctx); rerr != nil {
			return nil, rerr
		}
		return nil, nstance.Errorf(nstance.Conflict, "instance %s has a record by now: it is a member", rec.ID)
	}
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgetOrphan(mach.ID)
	now := r.opts.Now()
	g := r.groupOf(nstance.GroupKey{Tenant: written.Tenant, Group: written.Group})
	m := r.addRecovered(g, written, now)
	m.machine, m.machineSince = mach, now
	r.queue.Add(g.key, true)
	return m, nil
}

// Orphans returns the machines with our marks that have no record, sorted by ID.
func (r *Admin) Orphans() []OrphanView { return r.readShard().orphans }

// orphan returns one of them, or NotFound.
func (r *Admin) orphan(id nstance.InstanceID) (OrphanView, error) {
	for _, o := range r.Orphans() {
		if o.Machine.ID == id {
			return o, nil
		}
	}
	return OrphanView{}, nstance.Errorf(nstance.NotFound, "no machine without a record is %s", id)
}

// DeleteOrphan deletes a machine without a record on request, whatever the
// rule says: its marks, and that it has no record, are checked again all the same. It returns once the deletion is durable. Fails with
// NotFound when there is no such orphan, Conflict when it has a record after
// all, is another machine by now, or a freeze forbids it.
func (r *Admin) DeleteOrphan(ctx context.Context, id nstance.InstanceID, reason string) error {
	return r.withOrphan(ctx, id, func(mach nstance.Machine) error {
		return r.deleteOrphan(ctx, mach, nstance.Cause{Kind: nstance.CauseRequest, Message: reason})
	})
}

// AdoptOrphan makes a machine without a record a member of the group that its
// mark names, and returns once its record is durable. What it was made
// from is unknown, which is no drift; it is taken for registered, with whatever
// certificate its agent shows first, and judged like any member that this term
// has not heard of yet. The reason is for the journal. Fails like DeleteOrphan.
func (r *Admin) AdoptOrphan(ctx context.Context, id nstance.InstanceID, reason string) error {
	var m *member
	err := r.withOrphan(ctx, id, func(listed nstance.Machine) error {
		mach, err := r.lookAtOrphan(ctx, listed)
		if err != nil {
			return err
		}
		rec := recordOf(mach, records.ReasonAdopted)
		rec.RegisteredAt = rec.CreatedAt
		m, err = r.writeOrphanRecord(ctx, mach, rec)
		return err
	})
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.publish(m, nstance.Event{Type: eventtype.OrphanAdopted, Reason: "its record was made from its marks" + withMessage(reason)})
	return nil
}

// withOrphan runs do with a machine of which storage, read again, holds no record.
func (r *Admin) withOrphan(ctx context.Context, id nstance.InstanceID, do func(nstance.Machine) error) error {
	known, err := r.orphan(id)
	if err == nil {
		err = r.internals().Thawed(nstance.GroupKey{Tenant: known.Machine.Owner.Tenant, Group: known.Machine.Group})
	}
	if err != nil {
		return err
	}
	release, err := r.acquireOrphans(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := r.readRecordsAgain(ctx); err != nil {
		return err
	}
	o, err := r.orphan(id)
	if err != nil {
		return nstance.Errorf(nstance.Conflict, "%s has a record by now: it is no orphan", id)
	}
	if err := validate.Name("tenant", o.Machine.Owner.Tenant); err != nil {
		return nstance.Errorf(nstance.Invalid, "the marks of machine %s name no tenant; delete it at the provider: %w", o.Machine.ProviderID, err)
	}
	return do(o.Machine)
}
