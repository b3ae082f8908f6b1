package reconcile

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/groupspec"
	"github.com/nstance-go/nstance/reconcile/internal/admission"
	"github.com/nstance-go/nstance/reconcile/internal/avoid"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// A Pool is capacity that machines are made from: of a zone, of an instance type, in a
// market, or of several of these together. An empty field stands for all.
type Pool struct {
	Zone         string             `json:"zone,omitempty"`
	InstanceType string             `json:"instance_type,omitempty"`
	Market       nstance.MarketType `json:"market,omitempty"`
}

// String returns the pool as nstance-admin pool takes it, such as "zone=a market=spot".
func (p Pool) String() string { return avoid.Pool(p).String() }

// An AvoidedPool is a pool in which no machine is made for a while.
type AvoidedPool struct {
	Pool
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until,omitzero"` // zero: the cloud does not say
	Reason string    `json:"reason,omitempty"`
	By     string    `json:"by,omitempty"`    // the identity that asked for it
	Drain  bool      `json:"drain,omitempty"` // members that were made there before are replaced, as a rollout does
	Cloud  bool      `json:"cloud,omitempty"` // the cloud asks for it: it is not stored, and not for operators to end
}

func (p *AvoidedPool) entry() avoid.Entry {
	return avoid.Entry{Pool: avoid.Pool(p.Pool), Since: p.Since, Until: p.Until, Reason: p.Reason, By: p.By, Drain: p.Drain, Cloud: p.Cloud}
}

func avoidedPool(e avoid.Entry) AvoidedPool {
	return AvoidedPool{Pool: Pool(e.Pool), Since: e.Since, Until: e.Until, Reason: e.Reason, By: e.By, Drain: e.Drain, Cloud: e.Cloud}
}

// poolHold returns the hold of the whole shard that e is.
func poolHold(e *avoid.Entry) HoldView {
	return HoldView{Hold: plan.Hold{Kind: plan.HoldAvoided, Reason: e.Why(), Until: e.Until}, Since: e.Since}
}

// AvoidPool has no machine made in a pool until p.Until, in no group, not even to replace a
// loss. With p.Drain members that are there are replaced, as a rollout does, unless nothing
// else is permitted for them. For a pool that is avoided already it replaces duration,
// reason and drain; one that differs by less than a minute changes nothing. It returns what
// is avoided and whether that has changed, once it is durable. Fails with Invalid for a pool
// that makes no sense or more than 30 days, with Conflict when 64 pools are avoided already,
// and with Unavailable as Pause does. A dry run only checks.
func (r *Admin) AvoidPool(ctx context.Context, p AvoidedPool, dryRun bool) (stands AvoidedPool, changed bool, err error) {
	err = r.change(ctx, func() error {
		e, changes, err := r.avoided.Check(p.entry(), r.opts.Now())
		stands, changed = avoidedPool(e), changes
		if err != nil || !changed || dryRun {
			return err
		}
		r.avoided.Put(e)
		r.publishShard(nstance.Event{Type: nstance.EventHoldStarted, Reason: poolHold(&e).text()})
		r.saver.Changed()
		r.avoidPools()
		return nil
	})
	return stands, changed, err
}

// ReleasePool ends the avoidance of a pool, and returns once that is durable. It reports
// whether it was avoided. The reason is for the journal. Fails with Invalid for a pool that
// makes no sense, with Conflict when only the cloud avoids it, and with Unavailable as Pause does. A dry run only checks.
func (r *Admin) ReleasePool(ctx context.Context, p Pool, reason string, dryRun bool) (released bool, err error) {
	pool := avoid.Pool(p)
	if err := pool.Validate(); err != nil {
		return false, err
	}
	err = r.change(ctx, func() error {
		e, known, err := r.avoided.Find(pool)
		if released = known; err != nil || !released || dryRun {
			return err
		}
		r.publishReleased(e, r.opts.Now(), reason)
		r.avoided.Remove(pool)
		r.saver.Changed()
		r.avoidPools()
		return nil
	})
	return released, err
}

// AvoidedPools returns the pools that are avoided, those of operators first.
func (r *Admin) AvoidedPools() (out []AvoidedPool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.avoided.Standing(r.reachedBy(r.opts.Now())) {
		out = append(out, avoidedPool(e))
	}
	return out
}

// recordShifts replaces what the cloud avoids.
func (r *Reconciler) recordShifts(shifts []nstance.ZoneShift) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.opts.Now()
	began, ended, changed := r.avoided.Shift(shifts, now, r.reachedBy(now))
	for _, e := range ended {
		r.publishReleased(e, now, "the cloud has ended it")
	}
	for _, e := range began {
		r.publishShard(nstance.Event{Type: nstance.EventHoldStarted, Reason: poolHold(&e).text()})
	}
	if changed {
		r.avoidPools()
	}
}

// avoidPools has everything that depends on it look at what is avoided now.
func (s *shard) avoidPools() {
	var all []admission.Avoidance
	for _, e := range s.avoided.All() {
		a := avoidanceOf(e.Pool, e.Until, e.Name())
		if s.clock.Distrust() != "" {
			a.Until = time.Time{} // the queue compares it with the time
		}
		all = append(all, a)
	}
	s.admission.Avoid(all)
	for _, m := range s.members {
		s.refuseAvoided(m)
	}
	for key := range s.groups {
		s.queue.Add(key, true)
	}
	select {
	case s.poolWake <- struct{}{}:
	default:
	}
}

func avoidanceOf(p avoid.Pool, until time.Time, name string) admission.Avoidance {
	return admission.Avoidance{Zone: p.Zone, InstanceType: p.InstanceType, Market: p.Market, Until: until, Name: name}
}

// refuseAvoided has the create of m refused that was throttled, and would be repeated as it
// was, if its pool is avoided now: its group demands another.
func (s *shard) refuseAvoided(m *member) {
	if m.throttled && m.grant == grantWanted && m.step == stepCreate && s.admission.Avoided(capacityShape(m.shape), s.opts.Now()) {
		m.grant, m.throttled, m.retryDue = granted, false, time.Time{}
	}
}

// expireAvoided ends what is avoided when its time is over, until ctx ends.
func (r *Reconciler) expireAvoided(ctx context.Context) {
	end := time.NewTimer(time.Hour)
	defer end.Stop()
	for {
		end.Reset(max(0, r.endAvoided()))
		select {
		case <-ctx.Done():
			return
		case <-r.poolWake:
		case <-end.C:
		}
	}
}

// endAvoided ends what is avoided when its time is over. It returns how long to wait until
// it is to be called again.
func (r *Reconciler) endAvoided() (wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.opts.Now()
	ended := r.avoided.End(r.reachedBy(now))
	for _, e := range ended {
		r.publishReleased(e.Entry, now, e.Why)
	}
	if slices.ContainsFunc(ended, func(e avoid.Ending) bool { return !e.Cloud }) {
		r.saver.Changed()
	}
	if len(ended) > 0 {
		r.avoidPools()
	}
	return r.avoided.NextEnd(now)
}

func (s *shard) publishReleased(p avoid.Entry, now time.Time, why string) {
	text := string(plan.HoldAvoided) + ": " + p.String() + ", after " + now.Sub(p.Since).Round(time.Second).String() + withMessage(why)
	s.publishShard(nstance.Event{Type: nstance.EventHoldEnded, Reason: text})
}

// publishShard writes an event about the whole shard to the journal.
func (s *shard) publishShard(e nstance.Event) {
	e.Time = s.opts.Now().UTC()
	s.opts.Journal(e)
}

// restoreAvoided restores what operators avoid. Another leader's clock may have been ahead.
func (s *shard) restoreAvoided(all []avoid.Entry) {
	var latest time.Time
	if s.clockRight() {
		latest = s.opts.Now().Add(avoid.Longest)
	}
	s.avoided.Restore(all, latest)
	s.avoidPools()
}

// errAvoided refuses a create whose pool is avoided since it was granted.
var errAvoided error = &nstance.Error{Code: nstance.Capacity, Msg: "the granted shape is in a pool that is avoided meanwhile"}

// avoidedAttention lists the pools that are avoided.
func (s *shard) avoidedAttention() (out []Attention) {
	for _, e := range s.avoided.Standing(s.reachedBy(s.opts.Now())) {
		out = append(out, Attention{Kind: AttentionKind(plan.HoldAvoided), Subject: "shard", Since: e.Since, Until: e.Until, Why: e.Why(), Remedy: e.Remedy()})
	}
	return out
}

// inPool reports whether the machine of m is in a pool: by what the provider says, else by
// what was asked for.
func (s *shard) inPool(m *member, p avoid.Pool) bool {
	return (p.Zone == "" || p.Zone == cmp.Or(m.zone(), s.admission.ZoneOf(m.rec.Shape.Subnet))) &&
		(p.InstanceType == "" || p.InstanceType == cmp.Or(m.machine.InstanceType, m.rec.Shape.InstanceType)) &&
		(p.Market == "" || p.Market == m.market())
}

// poolToLeave returns the pool that m, as a member of g, is to leave; nil: none. What is
// made while a pool is avoided is not replaced for it: where the zone of a subnet is not
// known, its replacement could be there again.
func (s *shard) poolToLeave(m *member, now time.Time) *avoid.Entry {
	requested := s.avoided.Requested()
	for i := range requested {
		p := &requested[i]
		if p.Drain && !s.reached(p.Until, now) && !m.rec.CreatedAt.After(p.Since) && s.inPool(m, p.Pool) {
			return p
		}
	}
	return nil
}

// hasPlaceFor reports whether g permits a shape for the replacement of m that is not
// avoided, and certainly not in the pool that m is to leave.
func (s *shard) hasPlaceFor(g *group, m *member, p *avoid.Entry, now time.Time) bool {
	def := g.spec.Definition
	if def.Market.Type == nstance.Spot && m.market() == nstance.OnDemand && groupspec.OnDemandBase(&g.spec, g.spec.Size) > 0 {
		def = inMarket(def, nstance.OnDemand)
	}
	return s.admission.OpenOutside(p.Zone, s.requestFor(g, def), now)
}

// eligibleAt returns when m, as a member of g, may be replaced for its age, for what its
// cloud advises or for an avoided pool; zero: never. Then why says so.
func (s *shard) eligibleAt(g *group, m *member, now time.Time) (at time.Time, why string) {
	at, why = s.advisedAt(g, m, now)
	p := s.poolToLeave(m, now)
	if p == nil || !at.IsZero() && at.Before(p.Since) || !s.hasPlaceFor(g, m, p, now) {
		return at, why
	}
	return p.Since, "it is in an avoided pool: " + p.Cause()
}

// leaveHold returns the hold of members of g that are to leave a pool while nothing else is
// permitted.
func (s *shard) leaveHold(g *group, now time.Time) (plan.Hold, bool) {
	if len(s.avoided.Requested()) == 0 { // it would cost each plan a look at every member
		return plan.Hold{}, false
	}
	var held []*avoid.Entry
	stay := 0
	for _, m := range g.members {
		if m.extra() || m.state.Leaving() || m.gone || s.preserved(m, now) {
			continue
		}
		p := s.poolToLeave(m, now)
		if p == nil || s.hasPlaceFor(g, m, p, now) {
			continue
		}
		stay++
		if !slices.Contains(held, p) {
			held = append(held, p)
		}
	}
	if stay == 0 {
		return plan.Hold{}, false
	}
	names := make([]string, len(held))
	for i, p := range held {
		names[i] = p.Name()
	}
	return plan.Hold{
		Kind: plan.HoldAvoided, Until: held[0].Until,
		Reason: "members stay in an avoided pool, because the group permits nothing else: " + strings.Join(names, "; "),
	}, true
}

// A PoolImpact is what the avoidance of a pool does to a group.
type PoolImpact struct {
	Key      nstance.GroupKey `json:"key"`
	Lost     []ShapePlan      `json:"lost,omitempty"` // permitted shapes that are in the pool, and not avoided already
	Left     int              `json:"left"`           // permitted shapes that are not avoided then
	Members  int              `json:"members"`        // that are in the pool
	Replaced int              `json:"replaced"`       // of them, those that leave if the pool is drained
}

// A PoolOutlook is what the avoidance of a pool would do.
type PoolOutlook struct {
	Groups      []PoolImpact `json:"groups,omitempty"`       // that it concerns, sorted
	ZoneUnknown []string     `json:"zone_unknown,omitempty"` // subnets of groups whose zone is not known, and groups without a subnet, if the pool names a zone: they are not avoided
}

// PoolOutlook returns what the avoidance of a pool would do now. It changes nothing.
func (r *Admin) PoolOutlook(p Pool) PoolOutlook {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out PoolOutlook
	now := r.opts.Now()
	for _, g := range r.groups {
		if !g.defined() || g.spec.Removing {
			continue
		}
		if i := r.poolImpact(g, avoid.Pool(p), now); len(i.Lost) > 0 || i.Members > 0 {
			out.Groups = append(out.Groups, i)
		}
		if p.Zone != "" && len(g.spec.Definition.Subnets) == 0 {
			out.ZoneUnknown = append(out.ZoneUnknown, "any of group "+g.key.String())
		}
		for _, subnet := range g.spec.Definition.Subnets {
			if p.Zone != "" && r.admission.ZoneOf(subnet) == "" && !slices.Contains(out.ZoneUnknown, subnet) {
				out.ZoneUnknown = append(out.ZoneUnknown, subnet)
			}
		}
	}
	slices.Sort(out.ZoneUnknown)
	slices.SortFunc(out.Groups, func(a, b PoolImpact) int { return cmp.Compare(a.Key.String(), b.Key.String()) })
	return out
}

// poolImpact divides the shapes that the definition of g permits in any market, its base
// included, and counts its members.
func (s *shard) poolImpact(g *group, p avoid.Pool, now time.Time) PoolImpact {
	out := PoolImpact{Key: g.key}
	def := g.spec.Definition
	if groupspec.OnDemandBase(&g.spec, g.spec.Size) > 0 {
		def.Market.Fallback = nstance.OnDemand
	}
	lost, left := s.admission.Divide(s.requestFor(g, def), avoidanceOf(p, time.Time{}, ""), now)
	out.Left = len(left)
	outside := slices.ContainsFunc(left, func(shape admission.Shape) bool { return p.Zone == "" || s.admission.ZoneOf(shape.Subnet) != "" })
	for _, shape := range lost {
		out.Lost = append(out.Lost, ShapePlan{InstanceType: shape.InstanceType, Subnet: shape.Subnet, Market: shape.Market})
	}
	for _, m := range g.members {
		if m.extra() || m.state.Leaving() || m.gone || !s.inPool(m, p) {
			continue
		}
		out.Members++
		out.Replaced += oneIf(outside && !s.preserved(m, now))
	}
	return out
}
