package reconcile

import (
	"context"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// load reads the shard's truth and reports whether that succeeded before ctx
// ended. Until it has, nothing is planned.
func (r *Reconciler) load(ctx context.Context) bool {
	for {
		recs, problems, err := r.records.Load(ctx)
		var states shardState
		if err == nil {
			states, err = r.states.Load(ctx)
		}
		if err == nil {
			r.install(ctx, recs, problems, states)
			r.survey(ctx)
			r.begin()
			return true
		}
		r.log.Error("shard not loaded yet", "shard", r.opts.Owner.Shard, "code", nstance.CodeOf(err), "err", err)
		if !sleep(ctx, time.Second) {
			return false
		}
	}
}

func (r *Reconciler) install(ctx context.Context, recs []storage.Instance, problems []storage.Problem, states shardState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.began, r.broken = r.opts.Now(), problems
	for _, rec := range recs {
		r.admit(r.groupOf(nstance.GroupKey{Tenant: rec.Tenant, Group: rec.Group}), r.recovered(rec))
		if rec.Drain != nil && rec.Deleting == nil {
			if err := r.opts.Drains.Start(ctx, *rec.Drain); err != nil {
				r.log.Warn("drain not announced again", "instance_id", rec.ID, "err", err)
			}
		}
	}
	for _, p := range problems {
		if p.Tenant != "" && p.Group != "" {
			r.groupOf(nstance.GroupKey{Tenant: p.Tenant, Group: p.Group}).unreadable++
		}
		r.opts.Journal(nstance.Event{
			Time: r.began.UTC(), Type: nstance.EventRecordUnreadable, Tenant: p.Tenant, Group: p.Group, Instance: p.ID,
			Reason: p.Key, Code: nstance.CodeOf(p.Err), Error: p.Err.Error(),
		})
	}
	for key, g := range r.groups {
		g.history = states.Groups[key.String()]
	}
}

// recovered returns the member of a record that an earlier term wrote.
func (r *Reconciler) recovered(rec storage.Instance) *member {
	m := &member{id: rec.ID, rec: rec, durable: true, asked: r.began, notices: rec.Notices}
	switch {
	case rec.Deleting != nil:
		m.state, m.step, m.why = nstance.Deleting, stepDelete, []nstance.Cause{rec.Deleting.Why}
	case rec.Drain != nil:
		m.state, m.drain = nstance.Draining, rec.Drain
	case m.registered():
		m.state = nstance.Booting
	default:
		m.state, m.step = nstance.Provisioning, stepCreate
	}
	if m.registered() {
		m.track = r.health.Begin(r.began, true)
		m.graceUntil = r.began.Add(r.health.Interval + r.health.Jitter)
	}
	return m
}

func (r *Reconciler) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loaded = true
	for key := range r.groups {
		r.queue.add(key, false)
	}
}

// survey asks the provider for everything that is ours and takes the answer as
// facts. An error means that nothing was learned about what was not listed.
func (r *Reconciler) survey(ctx context.Context) {
	listed := map[nstance.InstanceID]bool{}
	began := r.opts.Now()
	for mach, err := range r.provider.List(ctx, r.opts.Owner) {
		if err != nil {
			r.log.Warn("machines not listed", "code", nstance.CodeOf(err), "err", err)
			return
		}
		listed[mach.ID] = true
		r.Observe(nstance.Seen{Machine: mach})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, m := range r.members {
		if !listed[id] && m.hasMach && m.machSince.Before(began) || !listed[id] && m.registered() && m.rec.RegisteredAt.Before(began) {
			r.missing(m, began)
		}
	}
	for id := range r.orphans {
		if !listed[id] {
			delete(r.orphans, id)
		}
	}
}
