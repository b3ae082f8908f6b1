package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/validate"
	"github.com/nstance-go/nstance/reconcile/internal/orphans"
	"github.com/nstance-go/nstance/reconcile/plan"
)

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
	if err := r.acquireOrphans(ctx); err != nil {
		return err
	}
	defer r.releaseOrphans()
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

// acquireOrphans waits until no other call changes orphans; releaseOrphans lets the
// next one.
func (r *Reconciler) acquireOrphans(ctx context.Context) error {
	select {
	case r.orphanLock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return nstance.Errorf(nstance.Unavailable, "other orphans are being adopted or deleted: %w", ctx.Err())
	}
}

func (r *Reconciler) releaseOrphans() { <-r.orphanLock }

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

// readRecordsAgain reads what storage has and memory has not. A former leader's late
// write may have made a record, or changed one, after this term had read them all. An
// error means that nothing was learned.
func (r *Reconciler) readRecordsAgain(ctx context.Context) error {
	_, problems, err := r.records.Load(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recordProblems(problems)
	for _, rec := range r.records.All() {
		r.addLateRecord(rec)
		r.trustLateWrite(rec.ID)
	}
	for _, o := range r.orphans.All() {
		if r.hasRecord(o.Machine.ID) {
			r.forgetOrphan(o.Machine.ID)
		}
	}
	return nil
}

// addLateRecord makes a member of a record that has none. It needs the lock.
func (r *Reconciler) addLateRecord(rec records.Instance) {
	if _, standing := r.records.Get(rec.ID); !standing || r.members[rec.ID] != nil {
		return
	}
	g := r.groupOf(nstance.GroupKey{Tenant: rec.Tenant, Group: rec.Group})
	r.addRecovered(g, rec, r.opts.Now())
	g.restoreGoingFirst()
	for _, m := range g.members { // it may be either
		r.linkReplacement(m)
	}
	if o, ok := r.orphans.Get(rec.ID); ok {
		r.forgetOrphan(rec.ID)
		r.handleMachine(o.Machine, r.opts.Now())
	}
	r.queue.Add(g.key, true)
}

// trustLateWrite has a member that rests be what its record says, if that was changed by
// another leader: it is in force now, not when the next leader reads it. It needs the lock.
func (r *Reconciler) trustLateWrite(id nstance.InstanceID) {
	m := r.members[id]
	if m == nil || m.step != stepNone || m.running {
		return
	}
	known := m.rec
	if r.refreshRecord(m); sameDecisions(&known, &m.rec) {
		return
	}
	r.trustRecord(m)
	r.queue.Add(m.group.key, true)
}

// sameDecisions reports whether two versions of a record say the same of deletion, drain and
// sleep.
func sameDecisions(a, b *records.Instance) bool {
	generation := func(rec *records.Instance) (n uint64) {
		if rec.Drain != nil {
			n = rec.Drain.Generation
		}
		return n
	}
	phase := func(rec *records.Instance) (p nstance.State) {
		if rec.Standby != nil {
			p = rec.Standby.Phase
		}
		return p
	}
	return (a.Deleting == nil) == (b.Deleting == nil) && generation(a) == generation(b) && phase(a) == phase(b)
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
	rec := r.recordOf(mach, reasonOrphan)
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
func (s *shard) recordOf(mach nstance.Machine, why plan.Reason) records.Instance {
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

func (r internals) Reread(ctx context.Context) error { return r.readRecordsAgain(ctx) }
