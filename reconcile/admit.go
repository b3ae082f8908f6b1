package reconcile

import (
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/groupspec"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/reconcile/internal/admission"
	"github.com/nstance-go/nstance/reconcile/internal/place"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// maxGrants is how many creates one pass begins before it gives the lock back.
const maxGrants = 64

func capacityShape(s records.Shape) place.Shape {
	return place.Shape{InstanceType: s.InstanceType, Subnet: s.Subnet, Market: s.Market}
}

// pricedShape adds the price of a definition: capacity has none.
func pricedShape(s place.Shape, def nstance.Definition) records.Shape {
	out := records.Shape{InstanceType: s.InstanceType, Subnet: s.Subnet, Market: s.Market}
	if s.Market == nstance.Spot {
		out.MaxPrice = def.Market.MaxPrice
	}
	return out
}

// demand states what a group wants created, in place of what it wanted before, and
// returns why some of it cannot be stated.
func (s *shard) demand(g *group, actions []plan.Action) *plan.Hold {
	var requests []admission.Request
	var hold *plan.Hold
	for _, m := range g.members {
		if s.wantsGrant(m) {
			requests = append(requests, m.admissionRequest())
		}
	}
	g.creates, g.createsHash = g.creates[:0], g.hash
	spread := g.spread()
	for _, a := range actions {
		if a.Kind != plan.Create {
			continue
		}
		_, permits, why := s.createRequest(g, a, s.opts.Now())
		if why != "" {
			hold = &plan.Hold{Kind: plan.HoldDefinition, Reason: why}
			continue
		}
		permits.Spread = spread
		request := admission.Request{Request: permits, Class: admission.Growth, Count: a.Count, Index: len(g.creates)}
		if a.Reason == plan.ReasonReplace {
			request.Class = admission.Loss
		}
		requests = append(requests, request)
		g.creates = append(g.creates, a)
	}
	s.admission.Demand(g.key, requests...)
	return hold
}

// createRequest returns what the members that an action creates are made from and what they
// permit, or why that is not known.
func (s *shard) createRequest(g *group, a plan.Action, now time.Time) (def nstance.Definition, permits place.Request, why string) {
	def, hash := g.spec.Definition, g.hash
	if a.LastGood {
		if def, why = s.definitions.Get(g.key, g.history.GoodDigest); why != "" {
			return def, permits, "the last good definition " + why
		}
		hash = g.history.GoodHash
	}
	only, instead := a.Market, place.Choice("")
	if only == "" && def.Market.Type == nstance.Spot && s.reclaimsStand(g, now) {
		only, instead = nstance.OnDemand, place.ChoiceReclaims
	}
	def = inMarket(def, only)
	permits = g.request(def)
	permits.Definition, permits.Instead = definitionKey(g.key, hash, g.runtime, def.Image, g.spec.BootstrapData), instead
	return def, permits, ""
}

// wantsGrant reports whether the create of m waits for a grant. What is created by
// request may have one before its intent is durable.
func (s *shard) wantsGrant(m *member) bool {
	switch {
	case m.step != stepCreate || s.frozenOut(m.group, stepCreate):
		return false
	case m.grant == grantWanted:
		return true
	}
	return m.rec.OnDemand && m.grant == grantNotNeeded && !m.durable
}

// admissionRequest is what m asks the admission queue for.
func (m *member) admissionRequest() admission.Request {
	request := admission.Request{Request: m.request(), Class: admission.Growth, Count: 1, Instance: m.id}
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

// request returns what the create of m permits.
func (m *member) request() place.Request {
	request := m.group.request(inMarket(m.definition(), m.requiredMarket))
	request.Definition = m.definitionKey()
	return request
}

// request returns what a create of g with this definition permits.
func (g *group) request(def nstance.Definition) place.Request {
	return place.Request{
		InstanceTypes: def.InstanceTypes, Subnets: def.Subnets, Market: def.Market, Order: groupspec.Order(&g.spec),
		Definition: definitionKey(g.key, g.hash, g.runtime, def.Image, g.spec.BootstrapData),
	}
}

// admitCreates begins the creates that are permitted, of all groups, and has
// itself called when there may be more. Groups with new members are planned again,
// but for the one that is being planned.
func (s *shard) admitCreates(now time.Time, planned *group) {
	budget := func() (bool, time.Time) { return s.reserve(now) }
	s.nextGrants = s.admission.Pass(now, maxGrants, len(s.unplanned) > 0, budget, func(a admission.Grant) {
		s.beginCreate(a, now)
		if planned == nil || a.Group != planned.key {
			s.queue.Add(a.Group, false)
		}
	})
	if s.places.AddressesOld() {
		s.cloud.CountAddresses()
	}
	wake(s.admitWake)
}

// beginCreate has the create of a member begin: of one that waits, or of a new
// one, which counts from now on.
func (s *shard) beginCreate(a admission.Grant, now time.Time) {
	m, err := s.grantedMember(a, now)
	if m == nil {
		s.places.Ended(a.Shape, now)
		s.places.ReturnAddress(a.Shape.Subnet)
		if err != nil {
			s.log.Error("no instance ID", "group", a.Group.String(), "err", err)
		}
		return
	}
	def := m.definition()
	s.places.ReturnAddress(m.subnet) // of an earlier grant
	m.createGrant = createGrant{grant: granted, grantedAt: now, shape: pricedShape(a.Shape, def), price: s.places.Price(a.Shape, now), choice: a.Choice, inFlight: true, subnet: a.Shape.Subnet}
	if m.requiredMarket == "" && def.Market.Type == nstance.Spot && a.Shape.Market == nstance.OnDemand {
		if !m.rec.OnDemand { // its group does not go back to spot soon
			m.group.history.WaitForSpot(now)
			s.saver.Changed()
		}
	}
	if !m.durable {
		m.rec.Shape, m.rec.PricePerHour = m.shape, m.price
		m.rec.ShapeChoice = m.choiceOnRecord()
	}
	m.retryDue, m.attempts = time.Time{}, 0
	if !m.running {
		s.submit(m)
	}
}

// grantedMember returns the member that a grant is for; nil: it is not wanted any
// more.
func (s *shard) grantedMember(a admission.Grant, now time.Time) (*member, error) {
	if id := a.Request.Instance; id != "" {
		m := s.members[id]
		if m == nil || !s.wantsGrant(m) {
			return nil, nil
		}
		return m, nil
	}
	g := s.groups[a.Group]
	if g == nil || s.frozenOut(g, stepCreate) || g.spec.Removing || g.createsHash != g.hash || a.Request.Index >= len(g.creates) {
		return nil, nil // it is planned again
	}
	return s.addPending(g, g.creates[a.Request.Index], now)
}

// createWaits returns the holds for what a group waits to be granted, and when one for capacity, a
// refusal or an avoided pool may end. That a first create is in flight is no hold, nor are first
// prices: these waits end within moments. The create budget serves the first in the queue
// without another plan.
func (s *shard) createWaits(g *group, now time.Time) (holds []plan.Hold, due time.Time) {
	for _, w := range s.admission.Waits(g.key, now) {
		if why := w.Reason(); why != "" {
			holds = append(holds, plan.Hold{Kind: plan.HoldKind(w.Kind), Reason: why, Until: w.Until})
		}
		if w.Wait.Reason() != "" {
			due = earliest(due, w.Until)
		}
	}
	return holds, due
}

// errSoldOut keeps a create from being sent: since it was granted, its shape has
// sold out. Nothing of it is durable.
var errSoldOut error = &nstance.Error{Code: nstance.Capacity, Msg: "the granted shape has sold out meanwhile"}

// createEndedWith records how an attempt at the create of m ended.
func (s *shard) createEndedWith(m *member, err error) {
	now, shape := s.opts.Now(), capacityShape(m.rec.Shape)
	if m.inFlight {
		m.inFlight = false
		s.places.Ended(capacityShape(m.shape), now)
	}
	if !m.createSent.IsZero() && (err == nil || refused(err) && err == m.answeredWith) { //nolint:errorlint // the provider's answer itself
		s.places.Answered(m.request(), shape, m.createSent, err, now)
	}
}

// definitionKey names what machines are made from, as far as a provider may refuse it.
func definitionKey(group nstance.GroupKey, infra, runtime, image, bootstrapData string) string {
	return strings.Join([]string{group.String(), infra, runtime, image, bootstrapData}, "\x00")
}

// definitionKey names what m is made from.
func (m *member) definitionKey() string {
	image, bootstrap := m.rec.Image, m.rec.BootstrapData
	if m.rec.Token == "" { // its intent is not written yet
		image = m.definition().Image
		if !m.rec.OnDemand {
			bootstrap = m.group.spec.BootstrapData
		}
	}
	return definitionKey(m.group.key, m.rec.InfraHash, m.rec.RuntimeHash, image, bootstrap)
}

// shapesLeft reports whether the definition of m permits a shape that the provider has not
// refused. Then the refusal of one is no failure of the definition.
func (s *shard) shapesLeft(m *member) bool {
	return !s.places.Candidates(m.request(), s.opts.Now()).Hopeless()
}

// reopenLoss has the loss that m was to replace replaced by another one, unless m
// failed for what it was made from.
func (s *shard) reopenLoss(m *member) {
	if lost := s.members[m.replaces]; lost != nil && m.replacement != replacementNotOwed {
		lost.replacement = replacementOwed
	}
}

// addPending makes a pending member, which counts from now on.
func (s *shard) addPending(g *group, a plan.Action, now time.Time) (*member, error) {
	def, _, why := s.createRequest(g, a, now)
	if why != "" {
		return nil, nstance.Errorf(nstance.Unavailable, "%s", why)
	}
	rec := records.Instance{
		Tenant: g.key.Tenant, Group: g.key.Group, Reason: string(a.Reason), Replaces: a.Replaces, CreatedAt: now.UTC().Truncate(time.Millisecond),
		CreatedEpoch: s.opts.Epoch, InfraHash: g.hash, RuntimeHash: g.runtime,
		LaunchTimeout: def.LaunchTimeout, RegistrationTimeout: def.RegistrationTimeout,
	}
	if a.Reason == plan.ReasonStandby {
		rec.Standby = &records.Standby{Mode: g.spec.WarmPool.Mode}
	}
	kind := def.Kind
	if a.LastGood {
		last := &g.history.LastGood
		rec.InfraHash, rec.Definition, kind = last.GoodHash, last.GoodDigest, last.Kind
		if last.Launch > 0 || last.Registration > 0 {
			rec.LaunchTimeout, rec.RegistrationTimeout = last.Launch, last.Registration
		}
	}
	id, err := nstance.NewInstanceID(kind, rec.CreatedAt)
	if err != nil {
		return nil, err
	}
	rec.ID = id
	m := &member{id: id, rec: rec, state: nstance.Pending, stepState: stepState{step: stepCreate}, origin: origin{
		lastGood: a.LastGood, replaces: a.Replaces, requiredMarket: a.Market,
	}}
	if a.LastGood {
		m.requestedDefinition = &def
	}
	if lost := s.members[a.Replaces]; lost != nil {
		lost.replacement = replacementCreated
	}
	s.addMember(g, m)
	return m, nil
}
