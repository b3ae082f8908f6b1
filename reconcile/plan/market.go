package plan

import (
	"cmp"
	"slices"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/groupspec"
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
	misplaced      map[nstance.InstanceID]bool
	returns        bool // a member may go back to spot now
}

// dividesMarkets reports whether members may be in the wrong market.
func (c *Census) dividesMarkets() bool {
	if c.Group.Definition.Market.Type != nstance.Spot || c.undefined() {
		return false
	}
	c.market.base = groupspec.OnDemandBase(&c.Group, c.size)
	return c.market.base > 0 || slices.ContainsFunc(c.Members, func(m Member) bool { return m.Market == nstance.OnDemand && !m.extra() })
}

// shareMarkets compares the markets of the members that stay with what the group
// wants.
func (c *Census) shareMarkets() {
	c.countMarkets()
	if c.size == 0 {
		return
	}
	wrong := c.wrongSpot()
	if len(wrong) == 0 {
		wrong = c.wrongOnDemand()
	}
	for _, m := range wrong {
		if c.market.misplaced == nil {
			c.market.misplaced = map[nstance.InstanceID]bool{}
		}
		c.market.misplaced[m.ID] = true
	}
}

func (c *Census) countMarkets() {
	for i := range c.Members {
		switch m := &c.Members[i]; {
		case c.counts(m):
			c.countMarket(m, 1)
		case !m.extra() && !m.excluded():
			c.market.going++
		}
	}
}

// countMarket adds a member to its market, or takes it out.
func (c *Census) countMarket(m *Member, n int) {
	s, booting, outdated := &c.market, oneIf(!c.ready(m)), oneIf(c.outdated(m))
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
func (c *Census) wrongSpot() []*Member {
	s := &c.market
	n := min(s.spot-(c.size-s.base), max(0, s.base-s.fresh)+s.booting)
	if n <= 0 || s.base == 0 {
		return nil
	}
	return c.first(n, c.soonerMoved, func(m *Member) bool { return m.Market != nstance.OnDemand })
}

// wrongOnDemand returns the on-demand members beyond the base in whose place a
// spot member is on its way, or may be made now. Only a ready one is replaced:
// one that boots was just bought. Without surge there is no way back, and none
// begins while another member leaves.
func (c *Census) wrongOnDemand() []*Member {
	s := &c.market
	beyond := s.onDemand - s.base
	if beyond <= 0 || c.surge == 0 || s.outdated > 0 {
		return nil
	}
	n := min(s.onDemand+s.spot-c.size, s.arriving)
	if s.onDemand+s.spot == c.size && s.arriving+s.going == 0 && c.SpotFree && c.due(c.History.ReturnAt) {
		n = 1
	}
	if n <= 0 {
		return nil
	}
	wrong := c.first(min(n, beyond), olderFirst, func(m *Member) bool { return m.Market == nstance.OnDemand && c.ready(m) })
	s.returns = len(wrong) > 0
	return wrong
}

// first returns the first n counted members that pass.
func (c *Census) first(n int, order func(a, b *Member) int, pass func(*Member) bool) []*Member {
	var out []*Member
	for i := range c.Members {
		if m := &c.Members[i]; c.counts(m) && pass(m) {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, order)
	return out[:min(n, len(out))]
}

// soonerMoved orders members of the wrong market: those that are replaced in any
// case first, then those that the group misses least.
func (c *Census) soonerMoved(a, b *Member) int {
	return cmp.Or(oneIf(c.outdated(b))-oneIf(c.outdated(a)), cmp.Compare(c.surplusRank(a), c.surplusRank(b)), olderFirst(a, b))
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
	case s.base > 0 && have+p.baseCreates < s.base:
		p.baseCreates++
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
func (c *Census) spareBase(lacking int) baseSpare {
	s := &c.market
	return baseSpare{made: s.made - s.base + lacking, all: s.onDemand - s.base + lacking}
}

// take reports whether m may go, and notes that it does.
func (b *baseSpare) take(c *Census, m *Member) bool {
	switch {
	case m.Market != nstance.OnDemand || c.market.base == 0:
		return true
	case b.all <= 0 || m.HasMachine && b.made <= 0:
		return false
	}
	b.all--
	b.made -= oneIf(m.HasMachine)
	return true
}

// baseMembers is how many members may be passed over for the base.
func (c *Census) baseMembers() int {
	if c.market.base == 0 {
		return 0
	}
	return c.market.onDemand
}

// holdsBase reports whether a rollout must not remove m before another on-demand
// member is there.
func (c *Census) holdsBase(m *Member) bool {
	spare := c.spareBase(oneIf(c.surge == 0))
	return !spare.take(c, m)
}
