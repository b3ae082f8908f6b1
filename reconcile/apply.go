package reconcile

import (
	"cmp"
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/storage"
)

// apply puts a decision into the shard's state and hands its steps to the
// lanes, all before the lock is released: the next plan sees granted creates
// as pending members, and leaving members as leaving. It returns when to look again.
func (r *Reconciler) apply(g *group, c *plan.Census, d plan.Decision, now time.Time) time.Time {
	for _, a := range d.Actions {
		if a.Kind != plan.Create {
			r.applyTo(r.members[a.ID], a, now)
		}
	}
	if d.Halt {
		r.recordHalt(g)
	}
	holds := d.Holds
	if h := r.demand(g, d.Actions); h != nil {
		holds = append(holds, *h)
	}
	delete(r.unplanned, g.key)
	r.admitCreates(now, g)
	waits := r.createWaits(g, now)
	if h, held := g.definitionHold(); held {
		holds = append(holds, h)
	}
	g.holds = r.holdViews(g, append(holds, waits...), now)
	r.publishHolds(g, r.withPending(g, g.holds), now)
	r.recordStandingNotices(g, now)
	next := earliest(capacityDue(waits), r.reassignDrains(g, now))
	r.resume(g, c, now)
	return next
}

// capacityDue is when a hold for capacity may end. The create budget serves
// the first in the queue without another plan.
func capacityDue(waits []plan.Hold) (due time.Time) {
	for _, h := range waits {
		if h.Kind == plan.HoldCapacity {
			due = earliest(due, h.Until)
		}
	}
	return due
}

// addPending makes a pending member, which counts from now on.
func (r *Reconciler) addPending(g *group, a plan.Action, now time.Time) (*member, error) {
	def, why := r.createDefinition(g, a)
	if why != "" {
		return nil, nstance.Errorf(nstance.Unavailable, "%s", why)
	}
	rec := storage.Instance{
		Tenant: g.key.Tenant, Group: g.key.Group, Reason: string(a.Reason), CreatedAt: now.UTC().Truncate(time.Millisecond),
		CreatedEpoch: r.opts.Epoch, InfraHash: g.hash, RuntimeHash: g.runtime,
		LaunchTimeout: def.LaunchTimeout, RegistrationTimeout: def.RegistrationTimeout,
	}
	kind := def.Kind
	if a.LastGood {
		h := &g.history
		rec.InfraHash, rec.Definition, kind = h.LastGoodHash, h.LastGood, h.LastGoodKind
		if h.LastGoodLaunch > 0 || h.LastGoodRegistration > 0 {
			rec.LaunchTimeout, rec.RegistrationTimeout = h.LastGoodLaunch, h.LastGoodRegistration
		}
	}
	id, err := nstance.NewInstanceID(kind, rec.CreatedAt)
	if err != nil {
		return nil, err
	}
	rec.ID = id
	m := &member{id: id, rec: rec, state: nstance.Pending, lastGood: a.LastGood, replaces: a.Replaces, step: stepCreate, requiredMarket: a.Market}
	if a.LastGood {
		m.requestedDefinition = &def
	}
	if lost := r.members[a.Replaces]; lost != nil {
		lost.answered = true
	}
	r.addMember(g, m)
	return m, nil
}

// applyTo puts an action on a present member into the state.
func (r *Reconciler) applyTo(m *member, a plan.Action, now time.Time) {
	if m == nil {
		return
	}
	switch a.Kind {
	case plan.StartDrain:
		m.state, m.step = nstance.Draining, stepDrain
		m.drain, m.drainDeadline = r.newDrain(m, a, now), a.Deadline
		m.drainEnded, m.formerExecutor, m.operatorGoneAt = false, "", time.Time{}
		r.publishCauses(m, a)
	case plan.Tighten:
		d := *m.drain
		d.Deadline, d.Causes, d.Voluntary = a.Deadline.UTC(), a.Causes, a.Voluntary
		m.drain, m.drainDeadline, m.step = &d, a.Deadline, stepDrain
	case plan.CancelDrain:
		m.state, m.step, m.drain, m.drainDeadline, m.drainEnded = nstance.Booting, stepCancel, nil, time.Time{}, false
	case plan.Delete:
		if m.state == nstance.Deleting {
			return // the step goes on by itself
		}
		if m.drain == nil {
			r.publishCauses(m, a)
		}
		if m.drain != nil && !m.drainEnded && !m.gone {
			r.publish(m, nstance.Event{Type: nstance.EventDrainCutShort, Drain: m.drain})
		}
		m.state, m.step, m.deleteCauses = nstance.Deleting, stepDelete, a.Causes
	case plan.Create: // has no member yet
	}
	if m.state.Leaving() && !plan.AllVoluntary(a.Causes) {
		r.recordReturn(m, false)
	}
	m.retryDue, m.attempts = time.Time{}, 0
	m.planRevision++
	r.rebalance(m.group)
}

func (r *Reconciler) newDrain(m *member, a plan.Action, now time.Time) *nstance.Drain {
	return &nstance.Drain{
		Instance: m.id, Group: m.group.key, ProviderID: m.machine.ProviderID,
		Generation: m.rec.Generation + 1, StartedAt: now.UTC(), Deadline: a.Deadline.UTC(),
		Causes: a.Causes, Voluntary: a.Voluntary, Executor: r.executor(m),
	}
}

// publishCauses journals the causes that this leader found out itself, and
// counts failed creations.
func (r *Reconciler) publishCauses(m *member, a plan.Action) {
	for _, c := range a.Causes {
		switch c.Kind {
		case nstance.CauseUnhealthy:
			r.publish(m, nstance.Event{Type: nstance.EventUnhealthy, Reason: c.Message})
		case nstance.CauseTimeout:
			r.publish(m, nstance.Event{Type: nstance.EventCreateFailed, Reason: c.Message})
		}
	}
	if a.Failure {
		r.failedToBecomeReady(m, cmp.Or(a.Causes[0].Message, string(a.Causes[0].Kind)))
	}
}

func (r *Reconciler) recordHalt(g *group) {
	if g.history.HaltedHash == g.hash {
		return
	}
	g.history.HaltedHash, g.history.HaltedAt = g.hash, r.opts.Now().UTC()
	g.history.HaltReason = fmt.Sprintf("%d replacements in a row did not become ready", g.history.Failures)
	if why := g.history.LastFailure; why != "" {
		g.history.HaltReason += "; the latest: " + why
	}
	r.publishGroup(g, nstance.Event{Type: nstance.EventRolloutHalted, Reason: g.history.HaltReason})
	r.saveSoon()
}

// resume hands every due step to a lane. While surplus members stay because a new
// leader has not heard from all members yet, an intent of a former leader among them
// is not made a machine.
func (r *Reconciler) resume(g *group, c *plan.Census, now time.Time) {
	surplus, frozen := c.Surplus(), r.freezeOf(g) != nil
	for _, m := range g.members {
		if frozen && m.step == stepCreate {
			continue
		}
		if (surplus > 0 || !g.defined()) && r.inherited(m) && !r.lapsed(m, now) { // without a definition all are surplus
			surplus--
			continue
		}
		if m.step != stepNone && !m.running && (m.step != stepCreate || m.grant != grantWanted) && !m.retryDue.After(now) {
			r.submit(m)
		}
	}
}

// inherited reports whether m is an intent of a former leader for which no
// machine is known.
func (r *Reconciler) inherited(m *member) bool {
	return m.step == stepCreate && !m.rec.OnDemand && !m.machineKnown() && m.rec.CreatedEpoch < r.opts.Epoch
}

// lapsed deletes m, an intent for a group without a definition, once its
// registration timeout has passed, and reports whether it has: such a group is not
// planned, so no plan does.
func (r *Reconciler) lapsed(m *member, now time.Time) bool {
	by := r.registerBy(m)
	if m.group.defined() || by.IsZero() || now.Before(by) || !r.clockRight() {
		return false
	}
	r.applyTo(m, plan.Action{Kind: plan.Delete, ID: m.id, Causes: []nstance.Cause{{Kind: nstance.CauseTimeout, Message: "its group had no definition until its registration timeout"}}}, now)
	return true
}

func (r *Reconciler) submit(m *member) {
	m.running = true
	to := r.urgent
	switch {
	case m.step == stepDelete:
		to = r.deletions
	case voluntary(m):
		to = r.ordinary
	}
	to.submit(m)
}

// voluntary reports whether the next step of m can wait for others.
func voluntary(m *member) bool {
	switch m.step {
	case stepCreate:
		return m.rec.Reason != string(plan.ReasonReplace)
	case stepDrain:
		return m.drain.Voluntary
	}
	return false
}
