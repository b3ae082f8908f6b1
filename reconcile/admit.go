package reconcile

import (
	"context"
	"errors"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/admission"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/storage"
)

// maxGrants is how many creates one pass begins before it gives the lock back.
const maxGrants = 64

// A grantState says whether the create of a member may be sent.
type grantState int

const (
	grantNotNeeded grantState = iota // nothing is to be sent yet, or an earlier leader had the grant
	grantWanted                      // the create waits for one
	granted
)

// A createGrant is what a member may do with its create. It needs the lock.
type createGrant struct {
	grant     grantState
	grantedAt time.Time
	shape     storage.Shape // granted, or to be repeated; the zero shape: none yet
	inFlight  bool          // the admission queue counts it
	throttled bool          // the last create was refused for its rate alone: it is repeated as it was
	subnet    string        // in which an address is counted for it
}

func capacityShape(s storage.Shape) admission.Shape {
	return admission.Shape{InstanceType: s.InstanceType, Subnet: s.Subnet, Market: s.Market}
}

// pricedShape adds the price of a definition: capacity has none.
func pricedShape(s admission.Shape, def nstance.Definition) storage.Shape {
	out := storage.Shape{InstanceType: s.InstanceType, Subnet: s.Subnet, Market: s.Market}
	if s.Market == nstance.Spot {
		out.MaxPrice = def.Market.MaxPrice
	}
	return out
}

func requestFor(def nstance.Definition) admission.Request {
	return admission.Request{Count: 1, InstanceTypes: def.InstanceTypes, Subnets: def.Subnets, Market: def.Market}
}

// demand states what a group wants created, in place of what it wanted before, and
// returns why some of it cannot be stated. It needs the lock.
func (r *Reconciler) demand(g *group, actions []plan.Action) *plan.Hold {
	var requests []admission.Request
	var hold *plan.Hold
	for _, m := range g.members {
		if r.wantsGrant(m) {
			requests = append(requests, m.request())
		}
	}
	g.creates, g.createsHash = g.creates[:0], g.hash
	for _, a := range actions {
		if a.Kind != plan.Create {
			continue
		}
		def, why := r.createDefinition(g, a)
		if why != "" {
			hold = &plan.Hold{Kind: plan.HoldDefinition, Reason: why}
			continue
		}
		request := requestFor(def)
		request.Class, request.Count, request.Index = admission.Growth, a.Count, len(g.creates)
		if a.Reason == plan.ReasonReplace {
			request.Class = admission.Loss
		}
		requests = append(requests, request)
		g.creates = append(g.creates, a)
	}
	r.admission.Demand(g.key, requests...)
	return hold
}

// createDefinition returns what the members that an action creates are made from,
// or why it is not known.
func (r *Reconciler) createDefinition(g *group, a plan.Action) (nstance.Definition, string) {
	def := g.spec.Definition
	if a.LastGood {
		var why string
		if def, why = r.definitions.get(g.key, g.history.LastGood); why != "" {
			return def, "the last good definition " + why
		}
	}
	return inMarket(def, a.Market), ""
}

// wantsGrant reports whether the create of m waits for a grant. What is created by
// request may have one before its intent is durable.
func (r *Reconciler) wantsGrant(m *member) bool {
	switch {
	case m.step != stepCreate || r.freezeOf(m.group) != nil:
		return false
	case m.grant == grantWanted:
		return true
	}
	return m.rec.OnDemand && m.grant == grantNotNeeded && !m.durable
}

// request is what m asks the admission queue for.
func (m *member) request() admission.Request {
	request := requestFor(m.definition())
	request.Class, request.Instance = admission.Growth, m.id
	switch {
	case m.rec.OnDemand:
		request.Class = admission.Single
	case m.rec.Reason == string(plan.ReasonReplace):
		request.Class = admission.Loss
	}
	if m.throttled {
		shape := capacityShape(m.shape)
		request.Repeats = &shape
	}
	return request
}

// admitCreates begins the creates that are permitted, of all groups, and has
// itself called when there may be more. Groups with new members are planned again,
// but for the one that is being planned. It needs the lock.
func (r *Reconciler) admitCreates(now time.Time, planned *group) {
	budget := func() (bool, time.Time) { return r.reserve(now) }
	r.nextGrants = r.admission.Pass(now, maxGrants, len(r.unplanned) > 0, budget, func(a admission.Grant) {
		r.beginCreate(a, now)
		if planned == nil || a.Group != planned.key {
			r.queue.add(a.Group, false)
		}
	})
	if r.admission.AddressesOld() {
		r.addresses.ask()
	}
	select {
	case r.admitWake <- struct{}{}:
	default:
	}
}

// admit calls admitCreates when time permits more.
func (r *Reconciler) admit(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(r.admitDue())
		select {
		case <-ctx.Done():
			return
		case <-r.admitWake:
		case <-timer.C:
		}
	}
}

// admitDue calls admitCreates if that is due, and returns how long to wait.
func (r *Reconciler) admitDue() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.opts.Now()
	if !r.nextGrants.IsZero() && !r.nextGrants.After(now) {
		r.admitCreates(now, nil)
	}
	if r.nextGrants.IsZero() {
		return time.Hour
	}
	return max(0, r.nextGrants.Sub(now))
}

// beginCreate has the create of a member begin: of one that waits, or of a new
// one, which counts from now on. It needs the lock.
func (r *Reconciler) beginCreate(a admission.Grant, now time.Time) {
	m, err := r.grantedMember(a, now)
	if m == nil {
		r.admission.Ended(a.Shape, now)
		r.admission.ReturnAddress(a.Shape.Subnet)
		if err != nil {
			r.log.Error("no instance ID", "group", a.Group.String(), "err", err)
		}
		return
	}
	def := m.definition()
	r.admission.ReturnAddress(m.subnet) // of an earlier grant
	m.createGrant = createGrant{grant: granted, grantedAt: now, shape: pricedShape(a.Shape, def), inFlight: true, subnet: a.Shape.Subnet}
	if !m.durable {
		m.rec.Shape = m.shape
	}
	if m.requiredMarket == "" && def.Market.Type == nstance.Spot && a.Shape.Market == nstance.OnDemand {
		r.recordFallback(m, now)
	}
	m.retryDue, m.attempts = time.Time{}, 0
	if !m.running {
		r.submit(m)
	}
}

// grantedMember returns the member that a grant is for; nil: it is not wanted any
// more.
func (r *Reconciler) grantedMember(a admission.Grant, now time.Time) (*member, error) {
	if id := a.Request.Instance; id != "" {
		m := r.members[id]
		if m == nil || !r.wantsGrant(m) {
			return nil, nil
		}
		return m, nil
	}
	g := r.groups[a.Group]
	if g == nil || r.freezeOf(g) != nil || g.spec.Removing || g.createsHash != g.hash || a.Request.Index >= len(g.creates) {
		return nil, nil // it is planned again
	}
	return r.addPending(g, g.creates[a.Request.Index], now)
}

// createWaits returns the holds for what a group waits to be granted. That a first
// create is in flight is none: it ends within moments.
func (r *Reconciler) createWaits(g *group, now time.Time) (holds []plan.Hold) {
	for _, w := range r.admission.Waits(g.key, now) {
		switch w.Kind {
		case admission.WaitCapacity:
			holds = append(holds, plan.Hold{Kind: plan.HoldCapacity, Reason: "every permitted shape is sold out", Until: w.Until})
		case admission.WaitBudget:
			holds = append(holds, plan.Hold{Kind: plan.HoldBudget, Reason: budgetReason(w.Before), Until: w.Until})
		case admission.WaitAnswer:
		}
	}
	return holds
}

func budgetReason(first admission.Precedent) string {
	const empty = "the create budget is used up"
	switch first {
	case admission.LossesFirst:
		return empty + ": replacements of lost instances go first"
	case admission.TenantsFirst:
		return empty + ": tenants take turns"
	case admission.GroupsFirst:
		return empty + ": other creates of the tenant go first"
	}
	return empty
}

// errSoldOut keeps a create from being sent: since it was granted, its shape has
// sold out. Nothing of it is durable.
var errSoldOut error = &nstance.Error{Code: nstance.Capacity, Msg: "the granted shape has sold out meanwhile"}

// checkGrant fails with errSoldOut when a create that has just been granted is not
// worth sending.
func (r *Reconciler) checkGrant(m *member) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !m.durable && m.grant == granted && r.admission.SoldOut(capacityShape(m.shape), m.grantedAt, r.opts.Now()) {
		return errSoldOut
	}
	return nil
}

// createEndedWith tells the admission queue how an attempt at the create of m
// ended. It needs the lock.
func (r *Reconciler) createEndedWith(m *member, err error) {
	now := r.opts.Now()
	if m.inFlight {
		m.inFlight = false
		r.admission.Ended(capacityShape(m.shape), now)
	}
	shape := capacityShape(m.rec.Shape)
	switch {
	case m.createSent.IsZero() || errors.Is(err, errSoldOut):
	case err == nil:
		r.admission.Accepted(shape, m.createSent, now)
	case errors.Is(err, nstance.Capacity):
		r.admission.Refused(shape, m.createSent, now)
	case errors.Is(err, nstance.Quota):
		r.admission.RefusedQuota(shape, m.definition().Subnets, m.createSent, now)
	}
}

// wantGrant has the create of m wait for another grant. It needs the lock.
func (r *Reconciler) wantGrant(m *member) {
	r.admission.ReturnAddress(m.subnet)
	m.createGrant = createGrant{grant: grantWanted, inFlight: m.inFlight, shape: m.shape, throttled: m.throttled}
}

// reopenLoss has the loss that m was to replace replaced by another one, unless m
// failed for what it was made from. It needs the lock.
func (r *Reconciler) reopenLoss(m *member) {
	if lost := r.members[m.replaces]; lost != nil && !m.creationFailed {
		lost.answered = false
	}
}
