package reconcile

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/groupspec"
	"github.com/nstance-go/nstance/reconcile/internal/admission"
	"github.com/nstance-go/nstance/reconcile/internal/avoid"
	"github.com/nstance-go/nstance/reconcile/plan"
)

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
