package reconcile

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/groupspec"
	"github.com/nstance-go/nstance/reconcile/internal/avoid"
	"github.com/nstance-go/nstance/reconcile/internal/place"
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
		now := r.opts.Now()
		e, changes, err := r.places.AvoidedPools.Check(p.entry(), now)
		stands, changed = avoidedPool(e), changes
		if err != nil || !changed || dryRun {
			return err
		}
		r.places.AvoidedPools.Put(e)
		r.avoidanceChanged(now, avoid.Change{Entry: e})
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
		e, known, err := r.places.AvoidedPools.Find(pool)
		if released = known; err != nil || !released || dryRun {
			return err
		}
		r.places.AvoidedPools.Remove(pool)
		r.avoidanceChanged(r.opts.Now(), avoid.Change{Entry: e, Ended: true, Why: reason})
		return nil
	})
	return released, err
}

// AvoidedPools returns the pools that are avoided, those of operators first.
func (r *Admin) AvoidedPools() (out []AvoidedPool) {
	for _, e := range r.readShard().avoided {
		out = append(out, avoidedPool(e))
	}
	return out
}

// recordShifts replaces what the cloud avoids.
func (r *Reconciler) recordShifts(shifts []nstance.ZoneShift) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.opts.Now()
	if changes, changed := r.places.AvoidedPools.Shift(shifts, now, r.reachedBy(now)); changed {
		r.avoidanceChanged(now, changes...)
	}
}

// avoidanceChanged publishes what began and ended, and has everything that depends on it look at
// what is avoided now.
func (s *shard) avoidanceChanged(now time.Time, changes ...avoid.Change) {
	for _, c := range changes {
		e := nstance.Event{Type: nstance.EventHoldStarted, Reason: poolHold(&c.Entry).text()}
		if c.Ended {
			e.Type, e.Reason = nstance.EventHoldEnded, string(plan.HoldAvoided)+": "+c.String()+", after "+now.Sub(c.Since).Round(time.Second).String()+withMessage(c.Why)
		}
		s.publishShard(e)
		if !c.Cloud {
			s.saver.Changed()
		}
	}
	for _, m := range s.members {
		s.refuseAvoided(m)
	}
	for key := range s.groups {
		s.queue.Add(key, true)
	}
	wake(s.admitWake)
}

// refuseAvoided has the create of m refused that was throttled, and would be repeated as it
// was, if its pool is avoided now: its group demands another.
func (s *shard) refuseAvoided(m *member) {
	if m.throttled && m.grant == grantWanted && m.step == stepCreate && s.places.Avoided(capacityShape(m.shape), s.opts.Now()) {
		m.grant, m.throttled, m.retryDue = granted, false, time.Time{}
	}
}

// publishShard writes an event about the whole shard to the journal.
func (s *shard) publishShard(e nstance.Event) {
	e.Time = s.opts.Now().UTC()
	s.opts.Journal(e)
}

// errAvoided refuses a create whose pool is avoided since it was granted.
var errAvoided error = &nstance.Error{Code: nstance.Capacity, Msg: "the granted shape is in a pool that is avoided meanwhile"}

// poolToLeave returns the avoided pool that m, as a member of g, is to leave, and whether g
// permits another place for its replacement, certainly not in that pool; nil: there is none.
func (s *shard) poolToLeave(g *group, m *member, now time.Time) (p *avoid.Entry, elsewhere bool) {
	if len(s.places.AvoidedPools.Requested()) > 0 {
		p = s.places.ToLeave(m.resident(), s.reachedBy(now))
	}
	if p == nil {
		return nil, false
	}
	def := g.spec.Definition
	if def.Market.Type == nstance.Spot && m.market() == nstance.OnDemand && groupspec.OnDemandBase(&g.spec, g.spec.Size) > 0 {
		def = inMarket(def, nstance.OnDemand)
	}
	return p, s.places.Candidates(g.request(def), now).OpenOutside(p.Zone)
}

// resident returns where the machine of m is.
func (m *member) resident() place.Resident {
	shape := place.Shape{InstanceType: cmp.Or(m.machine.InstanceType, m.rec.Shape.InstanceType), Subnet: m.rec.Shape.Subnet, Market: m.market()}
	return place.Resident{Shape: shape, Zone: m.zone(), CreatedAt: m.rec.CreatedAt}
}

// leaveHold returns the hold of members of g that are to leave a pool while nothing else is
// permitted.
func (s *shard) leaveHold(g *group, now time.Time) (plan.Hold, bool) {
	if len(s.places.AvoidedPools.Requested()) == 0 { // it would cost each plan a look at every member
		return plan.Hold{}, false
	}
	var held []*avoid.Entry
	for _, m := range g.members {
		if m.extra() || m.state.Leaving() || m.gone || s.preserved(m, now) {
			continue
		}
		p, elsewhere := s.poolToLeave(g, m, now)
		if p == nil || elsewhere {
			continue
		}
		if !slices.Contains(held, p) {
			held = append(held, p)
		}
	}
	if len(held) == 0 {
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
	var out PoolOutlook
	now := r.opts.Now()
	r.eachGroup(func(g *group) {
		if !g.defined() || g.spec.Removing {
			return
		}
		if i := r.poolImpact(g, avoid.Pool(p), now); len(i.Lost) > 0 || i.Members > 0 {
			out.Groups = append(out.Groups, i)
		}
		if p.Zone != "" && len(g.spec.Definition.Subnets) == 0 {
			out.ZoneUnknown = append(out.ZoneUnknown, "any of group "+g.key.String())
		}
		for _, subnet := range g.spec.Definition.Subnets {
			if p.Zone != "" && r.places.ZoneOf(subnet) == "" && !slices.Contains(out.ZoneUnknown, subnet) {
				out.ZoneUnknown = append(out.ZoneUnknown, subnet)
			}
		}
	})
	slices.Sort(out.ZoneUnknown)
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
	outside := false
	for _, c := range s.places.Candidates(g.request(def), now) {
		switch {
		case len(c.Avoided) > 0:
		case c.In(p):
			out.Lost = append(out.Lost, ShapePlan{InstanceType: c.InstanceType, Subnet: c.Subnet, Market: c.Market})
		default:
			out.Left++
			outside = outside || p.Zone == "" || c.Zone != ""
		}
	}
	for _, m := range g.members {
		if m.extra() || m.state.Leaving() || m.gone || !s.places.In(m.resident(), p) {
			continue
		}
		out.Members++
		out.Replaced += oneIf(outside && !s.preserved(m, now))
	}
	return out
}
