package reconcile

import (
	"errors"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/groupspec"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/reconcile/internal/admission"
	"github.com/nstance-go/nstance/reconcile/internal/cloudfacts"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// maxGrants is how many creates one pass begins before it gives the lock back.
const maxGrants = 64

func capacityShape(s records.Shape) admission.Shape {
	return admission.Shape{InstanceType: s.InstanceType, Subnet: s.Subnet, Market: s.Market}
}

// pricedShape adds the price of a definition: capacity has none.
func pricedShape(s admission.Shape, def nstance.Definition) records.Shape {
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
			requests = append(requests, s.memberRequest(m))
		}
	}
	g.creates, g.createsHash = g.creates[:0], g.hash
	spread := g.spread()
	for _, a := range actions {
		if a.Kind != plan.Create {
			continue
		}
		def, why := s.createDefinition(g, a)
		if why != "" {
			hold = &plan.Hold{Kind: plan.HoldDefinition, Reason: why}
			continue
		}
		request := s.requestFor(g, def)
		if a.LastGood {
			request.Definition = definitionKey(g.key, g.history.GoodHash, g.runtime, def.Image, g.spec.BootstrapData)
		}
		request.Class, request.Count, request.Index, request.Spread = admission.Growth, a.Count, len(g.creates), spread
		if a.Reason == plan.ReasonReplace {
			request.Class = admission.Loss
		}
		requests = append(requests, request)
		g.creates = append(g.creates, a)
	}
	s.admission.Demand(g.key, requests...)
	return hold
}

// createDefinition returns what the members that an action creates are made from,
// or why it is not known.
func (s *shard) createDefinition(g *group, a plan.Action) (nstance.Definition, string) {
	def := g.spec.Definition
	if a.LastGood {
		var why string
		if def, why = s.definitions.Get(g.key, g.history.GoodDigest); why != "" {
			return def, "the last good definition " + why
		}
	}
	only := a.Market
	if only == "" && def.Market.Type == nstance.Spot && s.reclaimsStand(g, s.opts.Now()) {
		only = nstance.OnDemand
	}
	return inMarket(def, only), ""
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

// memberRequest is what m asks the admission queue for.
func (s *shard) memberRequest(m *member) admission.Request {
	request := s.requestFor(m.group, inMarket(m.definition(), m.requiredMarket))
	request.Definition = m.definitionKey()
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

// requestFor returns what a member of g with this definition asks the admission queue for.
func (s *shard) requestFor(g *group, def nstance.Definition) admission.Request {
	request := admission.Request{
		Count: 1, InstanceTypes: def.InstanceTypes, Subnets: def.Subnets, Market: def.Market, Order: groupspec.Order(&g.spec),
		Definition: definitionKey(g.key, g.hash, g.runtime, def.Image, g.spec.BootstrapData),
	}
	if request.Order == nstance.OrderSteadiest {
		request.Scores = s.zoneScores[cloudfacts.TypesKey(def.InstanceTypes)]
	}
	return request
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
	if s.admission.AddressesOld() {
		s.cloud.CountAddresses()
	}
	select {
	case s.admitWake <- struct{}{}:
	default:
	}
}

// beginCreate has the create of a member begin: of one that waits, or of a new
// one, which counts from now on.
func (s *shard) beginCreate(a admission.Grant, now time.Time) {
	m, err := s.grantedMember(a, now)
	if m == nil {
		s.admission.Ended(a.Shape, now)
		s.admission.ReturnAddress(a.Shape.Subnet)
		if err != nil {
			s.log.Error("no instance ID", "group", a.Group.String(), "err", err)
		}
		return
	}
	def := m.definition()
	s.admission.ReturnAddress(m.subnet) // of an earlier grant
	m.createGrant = createGrant{grant: granted, grantedAt: now, shape: pricedShape(a.Shape, def), price: s.admission.Price(a.Shape, now), choice: a.Choice, inFlight: true, subnet: a.Shape.Subnet}
	if m.requiredMarket == "" && def.Market.Type == nstance.Spot && a.Shape.Market == nstance.OnDemand {
		if a.Request.Market.Type == nstance.OnDemand {
			m.choice = choiceReclaims
		}
		s.recordFallback(m, now)
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

// createWaits returns the holds for what a group waits to be granted. That a first
// create is in flight is none, nor are first prices: these waits end within moments.
func (s *shard) createWaits(g *group, now time.Time) (holds []plan.Hold) {
	for _, w := range s.admission.Waits(g.key, now) {
		switch w.Kind {
		case admission.WaitCapacity:
			holds = append(holds, plan.Hold{Kind: plan.HoldCapacity, Reason: "every permitted shape is sold out" + orAvoided(w), Until: w.Until})
		case admission.WaitAvoided:
			holds = append(holds, plan.Hold{Kind: plan.HoldAvoided, Reason: allAvoidedReason(w), Until: w.Until})
		case admission.WaitRefused:
			holds = append(holds, plan.Hold{Kind: plan.HoldRefused, Reason: clip.Text("every permitted shape is refused or sold out"+orAvoided(w)+"; "+w.Refused, maxReason), Until: w.Until})
		case admission.WaitBudget:
			holds = append(holds, plan.Hold{Kind: plan.HoldBudget, Reason: budgetReason(w.Before), Until: w.Until})
		case admission.WaitAnswer, admission.WaitPrices:
		}
	}
	return holds
}

func allAvoidedReason(w admission.Wait) string {
	return "every permitted shape is in an avoided pool: " + w.Avoided
}

// orAvoided names what else keeps creates from shapes beside a lack of capacity.
func orAvoided(w admission.Wait) string {
	if w.Avoided == "" {
		return ""
	}
	return " or in an avoided pool: " + w.Avoided
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

// createEndedWith tells the admission queue how an attempt at the create of m
// ended.
func (s *shard) createEndedWith(m *member, err error) {
	now := s.opts.Now()
	if m.inFlight {
		m.inFlight = false
		s.admission.Ended(capacityShape(m.shape), now)
	}
	shape, definition := capacityShape(m.rec.Shape), m.definitionKey()
	switch {
	case m.createSent.IsZero() || errors.Is(err, errSoldOut) || errors.Is(err, errAvoided):
	case err == nil:
		s.admission.Accepted(shape, m.createSent, now)
		s.admission.AcceptedFor(definition, shape, m.createSent)
	case errors.Is(err, nstance.Capacity):
		s.admission.Refused(shape, m.createSent, now)
		s.admission.Explain(shape, clip.Words(err.Error()), now)
	case errors.Is(err, nstance.Quota):
		s.admission.RefusedQuota(shape, m.definition().Subnets, m.createSent, now)
		s.admission.Explain(shape, clip.Words(err.Error()), now)
	case refused(err) && err == m.answeredWith: //nolint:errorlint // the provider's answer itself
		s.admission.RefusedFor(definition, shape, m.createSent, clip.Words(err.Error()), now)
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

// forgiveRefusals forgets what the provider refused of what g is made from.
func (s *shard) forgiveRefusals(g *group) {
	request := s.requestFor(g, g.spec.Definition)
	s.admission.Forgive(request.Definition, admission.Shape{})
	for _, m := range g.members {
		s.admission.Forgive(m.definitionKey(), admission.Shape{})
	}
}

// shapesLeft reports whether the definition of m permits a shape that the provider has not
// refused. Then the refusal of one is no failure of the definition.
func (s *shard) shapesLeft(m *member) bool {
	return !s.admission.Hopeless(s.memberRequest(m), s.opts.Now())
}

// wantGrant has the create of m wait for another grant.
func (s *shard) wantGrant(m *member) {
	s.admission.ReturnAddress(m.subnet)
	m.createGrant = createGrant{grant: grantWanted, inFlight: m.inFlight, shape: m.shape, throttled: m.throttled}
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
	def, why := s.createDefinition(g, a)
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

// launchRetryable reports whether the loss of the machine of m, an instance on
// demand, is a late refusal of its create after which it is worth another: the provider had
// accepted it, and had no capacity or quota to start it, or refuses this shape alone.
func (s *shard) launchRetryable(m *member, cause nstance.LossCause, now time.Time) bool {
	if !m.rec.OnDemand {
		return false
	}
	refusedLate := cause == nstance.LossCapacity || cause == nstance.LossQuota || cause == nstance.LossThrottled ||
		cause == nstance.LossInvalid && s.admission.AnotherThan(capacityShape(m.rec.Shape), s.memberRequest(m), now)
	leaving := m.rec.Deleting != nil || m.drain != nil || m.removalCause != nil
	return refusedLate && !leaving && !m.registered() && m.state == nstance.Booting && !s.launchOver(m, now)
}
