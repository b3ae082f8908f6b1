package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/storage"
)

// GC says when a machine that carries our marks and has no record, an orphan,
// is collected. It costs money for nothing, but to mistake a
// member for one would be worse, so every doubt spares it: what is spared is
// listed, and a person may adopt or delete it.
type GC struct {
	Interval            time.Duration // between two listings that must both show it; 2 min
	RegistrationTimeout time.Duration // how old it must be; 5 min
}

// ReasonOrphan is why the record of an orphan exists: to make its deletion
// durable before it begins.
const ReasonOrphan plan.Reason = "orphan"

// ReasonAdopted is why a record exists that was made for an orphan.
const ReasonAdopted plan.Reason = "adopted"

// orphanGroup takes the orphans whose mark names no group, which is for display
// only.
const orphanGroup nstance.GroupID = "orphaned"

// An orphan is a machine with our marks and without a record, as long as every
// whole listing shows it.
type orphan struct {
	machine     nstance.Machine // as last listed
	first, last time.Time       // when the listings that showed it began
}

// recordOrphans takes the machines of one whole listing that are no members'. It
// needs the lock.
func (r *Reconciler) recordOrphans(strangers []nstance.Machine, listedAt time.Time) {
	standing := map[nstance.InstanceID]*orphan{}
	for _, mach := range strangers {
		if r.accounted(mach.ID) || !r.opts.Owner.Owns(mach.Owner) || mach.Status == nstance.StatusDeleting {
			continue
		}
		o := r.orphans[mach.ID]
		if o == nil || !sameMachine(o.machine, mach) {
			o = &orphan{first: listedAt}
			r.publishOrphan(mach, nstance.Event{Type: nstance.EventOrphanSeen, Reason: "a machine with our marks has no record"})
		}
		o.machine = mach
		o.last = latest(o.last, listedAt)
		standing[mach.ID] = o
	}
	r.orphans = standing
}

// accounted reports whether a machine belongs to a member, or to a record that
// exists and cannot be read. It needs the lock.
func (r *Reconciler) accounted(id nstance.InstanceID) bool {
	return r.members[id] != nil || slices.ContainsFunc(r.broken, func(p storage.Problem) bool { return p.ID == id })
}

func sameMachine(a, b nstance.Machine) bool {
	return a.ID == b.ID && a.ProviderID == b.ProviderID && a.Owner == b.Owner && a.CreatedAt.Equal(b.CreatedAt)
}

// latest returns the later of two times.
func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (r *Reconciler) publishOrphan(mach nstance.Machine, e nstance.Event) {
	e.Time, e.Instance, e.Tenant, e.Group = r.opts.Now().UTC(), mach.ID, mach.Owner.Tenant, mach.Group
	r.opts.Journal(e)
}

// A census is what the rule needs to know of the whole shard.
type census struct {
	now     time.Time
	members int // orphans on their way out apart
	live    int // of them, those with a record that is not on its way out
	orphans int // those on their way out included
}

// census counts. It needs the lock.
func (r *Reconciler) census() census {
	c := census{now: r.opts.Now(), orphans: len(r.orphans)}
	r.noticeClock()
	for _, m := range r.members {
		switch {
		case m.rec.Deleting != nil && plan.Reason(m.rec.Reason) == ReasonOrphan:
			c.orphans++
			continue
		case m.durable && m.rec.Deleting == nil:
			c.live++
		}
		c.members++
	}
	return c
}

// share is how many orphans may be collected without asking: the larger of one
// and a fifth of the shard. More of them mean that something is wrong with the
// records rather than with the machines.
func (c census) share() int { return max(1, c.members/5) }

// young says why time alone spares an orphan still; empty: it does not.
func (r *Reconciler) young(o *orphan, c census) string {
	gc := r.opts.GC
	key := nstance.GroupKey{Tenant: o.machine.Owner.Tenant, Group: o.machine.Group}
	switch born := latest(o.machine.CreatedAt, o.machine.ID.Time()); {
	case r.thawed(key) != nil:
		return r.thawed(key).Error()
	case r.clock.why != "":
		return r.clock.why
	case c.now.Sub(r.began) < r.opts.FullPass:
		return fmt.Sprintf("this leader has not led for %s yet", r.opts.FullPass)
	case o.last.Sub(o.first) < gc.Interval:
		return fmt.Sprintf("two listings %s apart have not shown it yet", gc.Interval)
	case c.now.Sub(born) < gc.RegistrationTimeout:
		return fmt.Sprintf("it is younger than %s", gc.RegistrationTimeout)
	}
	return ""
}

// doubtful says why an orphan that is old enough is spared until a person
// decides; empty: nothing spares it.
func (r *Reconciler) doubtful(o *orphan, c census) string {
	switch {
	case c.live == 0:
		return "storage holds no live record: its records may be lost"
	case r.blank && o.machine.ID.Time().Before(r.began):
		return "storage held no live record when this leader began: its records may be lost"
	case c.orphans > c.share():
		return fmt.Sprintf("%d machines without a record are more than %d, the larger of one and a fifth of the shard", c.orphans, c.share())
	case o.machine.Owner.Tenant.Validate("tenant") != nil:
		return "its marks name no tenant"
	}
	return ""
}

// spared is why an orphan is not collected; empty: it will be.
func (r *Reconciler) spared(o *orphan, c census) string {
	if why := r.young(o, c); why != "" {
		return why
	}
	return r.doubtful(o, c)
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

// collect collects what is due. All records are read first: what has one after
// all is a member.
func (r *Reconciler) collect(ctx context.Context) error {
	if len(r.due()) == 0 {
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
	for _, mach := range r.due() {
		why := nstance.Cause{Kind: nstance.CauseOrphan, Message: "a machine with our marks and without a record"}
		if err := r.deleteOrphan(ctx, mach, why); err != nil {
			failed = errors.Join(failed, fmt.Errorf("machine %s (%s): %w", mach.ProviderID, mach.ID, err))
		}
	}
	return failed
}

// acquireOrphans waits for the turn to deal with orphans; giveOrphans gives it back.
func (r *Reconciler) acquireOrphans(ctx context.Context) error {
	select {
	case r.orphanLock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return nstance.Errorf(nstance.Unavailable, "orphans are being dealt with: %w", ctx.Err())
	}
}

func (r *Reconciler) releaseOrphans() { <-r.orphanLock }

// due returns what the rule does not spare, oldest first, and raises an alarm
// when it begins to spare machines for lack of certainty.
func (r *Reconciler) due() []nstance.Machine {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, doubt := r.census(), ""
	var out []nstance.Machine
	for _, o := range r.orphans {
		if r.young(o, c) != "" {
			continue
		}
		if why := r.doubtful(o, c); why != "" {
			doubt = why
			continue
		}
		out = append(out, o.machine)
	}
	r.publishDoubt(doubt, c.now)
	slices.SortFunc(out, func(a, b nstance.Machine) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// publishDoubt journals that machines begin to be spared for lack of certainty, with
// an alarm, and that none is any more. It needs the lock.
func (r *Reconciler) publishDoubt(doubt string, now time.Time) {
	say := func(typ nstance.EventType, reason string) {
		r.opts.Journal(nstance.Event{Time: now.UTC(), Type: typ, Reason: reason})
	}
	switch doubted := doubt != ""; {
	case doubted && !r.doubtPublished:
		say(nstance.EventAlarm, "machines without a record are kept until they are adopted or deleted on request: "+doubt)
		say(nstance.EventHoldStarted, holdOrphans+": "+doubt)
	case !doubted && r.doubtPublished:
		say(nstance.EventHoldEnded, holdOrphans)
	}
	r.doubtPublished = doubt != ""
}

// readRecordsAgain reads what storage has and memory has not. A former leader's late
// write may have made a record after this term had read them all. An error
// means that nothing was learned.
func (r *Reconciler) readRecordsAgain(ctx context.Context) error {
	_, problems, err := r.records.Load(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recordProblems(problems)
	for _, rec := range r.records.All() {
		r.absorbed(rec)
	}
	for id := range r.orphans {
		if r.accounted(id) {
			delete(r.orphans, id)
		}
	}
	return nil
}

// absorbed makes a member of a record that has none. It needs the lock.
func (r *Reconciler) absorbed(rec storage.Instance) {
	if _, standing := r.records.Get(rec.ID); !standing || r.members[rec.ID] != nil {
		return
	}
	g := r.groupOf(nstance.GroupKey{Tenant: rec.Tenant, Group: rec.Group})
	r.addRecovered(g, rec, r.opts.Now())
	if o := r.orphans[rec.ID]; o != nil {
		delete(r.orphans, rec.ID)
		r.handleMachine(o.machine, r.opts.Now())
	}
	r.queue.add(g.key, true)
}

// deleteOrphan takes a machine on its way out: once more it is looked at, then a record
// makes its deletion durable, and from there on it goes like any other. If a
// record stands there by now, the machine is a member.
func (r *Reconciler) deleteOrphan(ctx context.Context, listed nstance.Machine, why nstance.Cause) error {
	mach, err := r.lookAtOrphan(ctx, listed)
	if err == nil {
		err = r.Thawed(nstance.GroupKey{Tenant: mach.Owner.Tenant, Group: mach.Group})
	}
	if err != nil {
		return err
	}
	rec := r.recordOf(mach, ReasonOrphan)
	rec.Deleting = &storage.Deletion{At: r.opts.Now().UTC(), Why: why}
	m, err := r.enter(ctx, mach, rec)
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
		delete(r.orphans, listed.ID)
		r.mu.Unlock()
	}
	if err != nil {
		return mach, err
	}
	if !sameMachine(mach, listed) || !r.opts.Owner.Owns(mach.Owner) {
		return mach, nstance.Errorf(nstance.Conflict, "machine %s is not the one that was listed: it was left alone", mach.ProviderID)
	}
	return mach, nil
}

// recordOf returns what a machine's marks say about it.
func (r *Reconciler) recordOf(mach nstance.Machine, why plan.Reason) storage.Instance {
	rec := storage.Instance{
		ID: mach.ID, Tenant: mach.Owner.Tenant, Group: mach.Group, Reason: string(why), CreatedEpoch: mach.Epoch,
		CreatedAt: mach.ID.Time().UTC(), ProviderID: mach.ProviderID, Addresses: mach.Addresses,
		Shape: storage.Shape{InstanceType: mach.InstanceType, Market: mach.Market},
	}
	if rec.Group.Validate("group") != nil {
		rec.Group = orphanGroup
	}
	return rec
}

// enter writes the record, which must be new, and makes the machine its member.
func (r *Reconciler) enter(ctx context.Context, mach nstance.Machine, rec storage.Instance) (*member, error) {
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
	delete(r.orphans, mach.ID)
	now := r.opts.Now()
	g := r.groupOf(nstance.GroupKey{Tenant: written.Tenant, Group: written.Group})
	m := r.addRecovered(g, written, now)
	m.machine, m.machineKnown, m.machineSince = mach, true, now
	r.queue.add(g.key, true)
	return m, nil
}
