package reconcile

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/storage"
)

// load reads the shard's state from storage. Nothing is planned before. It fails when
// ctx ends, and when the provider uses another account than the shard's machines.
func (r *Reconciler) load(ctx context.Context) error {
	for {
		recs, problems, err := r.records.Load(ctx)
		var states shardState
		if err == nil {
			states, err = r.states.Load(ctx)
		}
		if err == nil {
			err = r.checkAccount(ctx, states, len(recs)+len(problems) > 0)
			if errors.Is(err, nstance.Invalid) {
				return err
			}
		}
		var backs map[string]desiredSpec
		if err == nil {
			backs, err = r.readRollbacks(ctx, states)
		}
		if err == nil {
			r.install(recs, problems, states, backs)
			r.queryProvider(ctx)
			r.begin()
			return nil
		}
		r.recordUnread(err)
		r.log.Error("shard not loaded yet", "shard", r.opts.Owner.Shard, "code", nstance.CodeOf(err), "err", err)
		if !sleep.For(ctx, time.Second) {
			return ctx.Err()
		}
	}
}

// queryProvider asks the provider for machines and free addresses, which the first
// plans use.
func (r *Reconciler) queryProvider(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, firstCount)
		defer cancel()
		r.addresses.count(ctx, r.subnetsInUse(r.opts.Subnets))
	})
	r.reconcileMachines(ctx)
}

// recordUnread records why the shard could not be read yet.
func (r *Reconciler) recordUnread(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loadError = err
}

func (r *Reconciler) install(recs []storage.Instance, problems []storage.Problem, states shardState, backs map[string]desiredSpec) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.began, r.foundNoRecord = r.opts.Now(), len(problems) == 0
	for _, rec := range recs {
		r.addRecovered(r.groupOf(nstance.GroupKey{Tenant: rec.Tenant, Group: rec.Group}), rec, r.began)
		r.foundNoRecord = r.foundNoRecord && rec.Deleting != nil
	}
	r.recordProblems(problems)
	r.restoreStates(states, backs)
}

// addRecovered makes a member of a record that this term finds. It needs the lock.
func (r *Reconciler) addRecovered(g *group, rec storage.Instance, since time.Time) *member {
	m := r.recovered(rec, since)
	r.addMember(g, m)
	if m.state == nstance.Draining {
		m.step = stepDrain // announces it again; nothing is left to write
	}
	return m
}

// recordProblems replaces the list of records that cannot be read. It needs the
// lock.
func (r *Reconciler) recordProblems(problems []storage.Problem) {
	known := map[string]bool{}
	for _, p := range r.unreadableRecords {
		known[p.Key] = true
	}
	r.unreadableRecords = problems
	for key, g := range r.groups {
		if g.unreadable > 0 {
			g.unreadable = 0
			r.queue.add(key, false)
		}
	}
	for _, p := range problems {
		if p.Tenant != "" && p.Group != "" {
			r.groupOf(nstance.GroupKey{Tenant: p.Tenant, Group: p.Group}).unreadable++
		}
		if known[p.Key] {
			continue
		}
		r.opts.Journal(nstance.Event{
			Time: r.opts.Now().UTC(), Type: nstance.EventRecordUnreadable, Tenant: p.Tenant, Group: p.Group, Instance: p.ID,
			Reason: p.Key, Code: nstance.CodeOf(p.Err), Error: p.Err.Error(),
		})
	}
}

// recovered returns the member of a record that an earlier term wrote, as of
// the time when this one found it.
func (r *Reconciler) recovered(rec storage.Instance, since time.Time) *member {
	m := &member{id: rec.ID, rec: rec, durable: true, machineCalls: machineCalls{foundAt: since}, notices: slices.Clone(rec.Notices), preserve: rec.Preserve}
	switch {
	case rec.Deleting != nil:
		m.state, m.step, m.deleteCauses, m.leftBefore = nstance.Deleting, stepDelete, []nstance.Cause{rec.Deleting.Why}, true
	case rec.Drain != nil:
		m.state, m.drain, m.leftBefore = nstance.Draining, rec.Drain, true
	case m.registered():
		m.state = nstance.Booting
	default:
		m.state, m.step = nstance.Provisioning, stepCreate
	}
	if m.registered() {
		m.healthTrack = r.health.Begin(since, true)
		m.graceUntil = since.Add(r.health.Interval + r.health.Jitter)
	}
	return m
}

func (r *Reconciler) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.balance.CompareAll(true)
	r.loaded, r.loadError = true, nil
	close(r.known)
	for key := range r.groups {
		r.unplanned[key] = true
		r.queue.add(key, false)
	}
}

// reconcileMachines asks the provider for everything that is ours and handles the answer as
// facts. After an error nothing is known about what was not listed.
func (r *Reconciler) reconcileMachines(ctx context.Context) {
	_ = r.listMachines(ctx) // which has logged it; the next pass asks again
}

// listMachines is reconcileMachines, and returns its error.
func (r *Reconciler) listMachines(ctx context.Context) error {
	listed := map[nstance.InstanceID]bool{}
	var strangers []nstance.Machine
	began := r.opts.Now()
	for mach, err := range r.provider.List(ctx, r.opts.Owner) {
		if err != nil {
			r.log.Warn("machines not listed", "code", nstance.CodeOf(err), "err", err)
			return err
		}
		listed[mach.ID] = true
		if !r.handleListed(mach, began) {
			strangers = append(strangers, mach)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, m := range r.members {
		if !listed[id] && m.machineKnown() && m.machineSince.Before(began) || !listed[id] && m.registered() && m.rec.RegisteredAt.Before(began) {
			r.handleMissing(m, "", began)
		}
	}
	r.recordOrphans(strangers, began)
	return nil
}

// handleListed handles a listed machine as a fact about its member, if it has one.
func (r *Reconciler) handleListed(mach nstance.Machine, asked time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.handleMachine(mach, asked)
}

// askMachine asks the provider for one machine, and handles the answer as a fact.
func (r *Reconciler) askMachine(ctx context.Context, id nstance.InstanceID) error {
	asked := r.opts.Now()
	mach, err := r.provider.Get(ctx, id)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
		r.handleMachine(mach, asked)
	case errors.Is(err, nstance.NotFound):
		r.withMember(id, func(m *member) { r.handleMissing(m, nstance.LossCauseOf(err), asked) })
	case ctx.Err() == nil:
		r.log.Warn("provider did not say how a machine is", "instance_id", id, "code", nstance.CodeOf(err), "err", err)
		return err
	}
	return nil
}

// planMembers plans the groups of the given members.
func (r *Reconciler) planMembers(ids []nstance.InstanceID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ids {
		r.withMember(id, func(m *member) { r.queue.add(m.group.key, true) })
	}
}
