package reconcile

import (
	"cmp"
	"slices"

	"github.com/nstance-go/nstance"
)

// A marketShare is how a spot group divides into markets. Its on-demand base is
// a floor. Members beyond it, for which spot capacity could not be had, go back
// to spot one at a time. Both ways are a rollout: a member in the wrong market
// is stale.
type marketShare struct {
	divided        bool
	base           int // on-demand members that the group keeps
	onDemand, spot int // counted members, as before this pass's actions
	made           int // on-demand members that have a machine
	fresh          int // on-demand members that are not outdated
	booting        int // on-demand members that are not ready
	arriving       int // spot members that are not ready
	outdated       int // members of either market
	going          int // members that leave, or must
	creates        int // of this pass that are on-demand for the base
	misplaced      map[nstance.InstanceID]bool
	returns        bool // a member may go back to spot now
}

// dividesMarkets reports whether members may be in the wrong market.
func (p *planner) dividesMarkets() bool {
	market := &p.Group.Definition.Market
	if market.Type != nstance.Spot || p.Frozen {
		return false
	}
	p.market.base = market.Base(p.size)
	return p.market.base > 0 || slices.ContainsFunc(p.Members, func(m Member) bool { return m.Market == nstance.OnDemand && !m.OnDemand })
}

// shareMarkets compares the markets of the members that stay with what the group
// wants.
func (p *planner) shareMarkets() {
	p.countMarkets()
	if p.size == 0 {
		return
	}
	wrong := p.wrongSpot()
	if len(wrong) == 0 {
		wrong = p.wrongOnDemand()
	}
	for _, m := range wrong {
		if p.market.misplaced == nil {
			p.market.misplaced = map[nstance.InstanceID]bool{}
		}
		p.market.misplaced[m.ID] = true
	}
}

func (p *planner) countMarkets() {
	for i := range p.Members {
		switch m := &p.Members[i]; {
		case p.counts(m):
			p.countMarket(m, 1)
		case !m.OnDemand && !memberApart(m):
			p.market.going++
		}
	}
}

// countMarket adds a member to its market, or takes it out.
func (p *planner) countMarket(m *Member, n int) {
	s, booting, outdated := &p.market, oneIf(!p.ready(m)), oneIf(p.outdated(m))
	s.outdated += n * outdated
	if m.Market != nstance.OnDemand {
		s.spot += n
		s.arriving += n * booting
		return
	}
	s.onDemand += n
	s.made += n * oneIf(m.HasMachine)
	s.booting += n * booting
	s.fresh += n * (1 - outdated)
}

func oneIf(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// wrongSpot returns the spot members in whose place the group wants, or already
// makes, on-demand ones for its base.
func (p *planner) wrongSpot() []*Member {
	s := &p.market
	n := min(s.spot-(p.size-s.base), max(0, s.base-s.fresh)+s.booting)
	if n <= 0 || s.base == 0 {
		return nil
	}
	return p.first(n, p.soonerMoved, func(m *Member) bool { return m.Market != nstance.OnDemand })
}

// wrongOnDemand returns the on-demand members beyond the base in whose place a
// spot member is on its way, or may be made now. Only a ready one is replaced:
// one that boots was just bought. Without surge there is no way back, and none
// begins while another member leaves.
func (p *planner) wrongOnDemand() []*Member {
	s := &p.market
	beyond := s.onDemand - s.base
	if beyond <= 0 || p.surge == 0 || s.outdated > 0 {
		return nil
	}
	n := min(s.onDemand+s.spot-p.size, s.arriving)
	if s.onDemand+s.spot == p.size && s.arriving+s.going == 0 && p.SpotFree && p.passed(p.History.ReturnAt) {
		n = 1
	}
	if n <= 0 {
		return nil
	}
	wrong := p.first(min(n, beyond), memberOlder, func(m *Member) bool { return m.Market == nstance.OnDemand && p.ready(m) })
	s.returns = len(wrong) > 0
	return wrong
}

// first returns the first n counted members that pass.
func (p *planner) first(n int, order func(a, b *Member) int, pass func(*Member) bool) []*Member {
	var out []*Member
	for i := range p.Members {
		if m := &p.Members[i]; p.counts(m) && pass(m) {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, order)
	return out[:min(n, len(out))]
}

// soonerMoved orders members of the wrong market: those that are replaced in any
// case first, then those that the group misses least.
func (p *planner) soonerMoved(a, b *Member) int {
	return cmp.Or(oneIf(p.outdated(b))-oneIf(p.outdated(a)), cmp.Compare(p.surplusRank(a), p.surplusRank(b)), memberOlder(a, b))
}

// nextMarket returns the market that the next create must be in: on-demand while
// the base is not complete without members that are to be replaced, and spot for
// a member that goes back.
func (p *planner) nextMarket(reason Reason) nstance.MarketType {
	s := &p.market
	have := s.fresh
	if p.held() {
		have = s.onDemand
	}
	switch {
	case s.base > 0 && have+s.creates < s.base:
		s.creates++
		return nstance.OnDemand
	case s.returns && reason == ReasonRollout:
		return nstance.Spot
	}
	return ""
}

// A baseSpare is how many on-demand members the group can do without: of those
// that have a machine, and of all.
type baseSpare struct{ made, all int }

// spareBase returns that for a base that may lack some members for a while: where
// a group permits no surge, one is missing while it is replaced.
func (p *planner) spareBase(lacking int) baseSpare {
	s := &p.market
	return baseSpare{made: s.made - s.base + lacking, all: s.onDemand - s.base + lacking}
}

// take reports whether m may go, and notes that it does.
func (b *baseSpare) take(p *planner, m *Member) bool {
	switch {
	case m.Market != nstance.OnDemand || p.market.base == 0:
		return true
	case b.all <= 0 || m.HasMachine && b.made <= 0:
		return false
	}
	b.all--
	b.made -= oneIf(m.HasMachine)
	return true
}

// baseMembers is how many members may be passed over for the base.
func (p *planner) baseMembers() int {
	if p.market.base == 0 {
		return 0
	}
	return p.market.onDemand
}

// holdsBase reports whether a rollout must not remove m before another on-demand
// member is there.
func (p *planner) holdsBase(m *Member) bool {
	spare := p.spareBase(oneIf(p.surge == 0))
	return !spare.take(p, m)
}
