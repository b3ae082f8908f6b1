package plan

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nstance-go/nstance"
)

// settled reports whether voluntary work may be planned at all: every record of
// the group is read, and each member has had the time to report since this term
// began.
func (p *planner) settled() bool {
	switch {
	case p.n.returning > 0:
		return false
	case p.Unreadable > 0:
		p.holdf(HoldUnreadable, "%d records of the group could not be read", p.Unreadable)
		return false
	case p.n.unheard > 0:
		p.hold(HoldSettling, fmt.Sprintf("%d members have not reported since this leader took over", p.n.unheard), p.n.graceEnd)
		return false
	}
	return true
}

// rollingOut reports whether stale members may be replaced.
func (c *Census) rollingOut() bool { return c.size > 0 && c.n.stale > 0 && !c.held() }

// allowance is how many members more than its size a group may have: never more
// than are still to be replaced, or P4 would take back what P5 creates.
func (c *Census) allowance() int {
	if !c.rollingOut() {
		return 0
	}
	return min(c.surge, c.n.stale)
}

// shrink is P4: surplus members leave, the least useful first. It reports whether
// there were any, even if they have to wait: while fewer members are known to be
// ready than the group's size, others that may be serving are not touched.
func (p *planner) shrink() bool {
	surplus := p.surplus()
	if surplus <= 0 {
		return false
	}
	if left := p.discard(surplus); left > 0 {
		p.holdf(HoldSettling, "%d surplus members stay until enough others are known to be ready", left)
	}
	return true
}

// discard removes up to n surplus members and returns how many of n must wait:
// no ready one goes that the group's size needs, and no on-demand one that its
// base needs.
func (p *planner) discard(n int) int {
	ready, spare := p.n.ready, p.spareBase(0)
	for _, m := range p.pick(n+p.baseMembers(), p.lessUseful) {
		serving := p.surplusRank(m) > surplusNotWell
		if n == 0 || serving && p.n.ready < p.size || p.ready(m) && ready <= p.size || !spare.take(p.Census, m) {
			continue
		}
		n--
		ready -= oneIf(p.ready(m))
		p.remove(m, []nstance.Cause{p.surplusCause()}, false)
	}
	return n
}

// pick returns the first n counted members in the given order, which is total.
// It keeps little more than n of them in memory, however large the group is.
func (c *Census) pick(n int, order func(a, b *Member) int) []*Member {
	out := make([]*Member, 0, min(2*n+16, len(c.Members)))
	for i := range c.Members {
		m := &c.Members[i]
		if !c.counts(m) {
			continue
		}
		if out = append(out, m); len(out) >= 2*n+16 {
			slices.SortFunc(out, order)
			out = out[:n]
		}
	}
	slices.SortFunc(out, order)
	return out[:min(n, len(out))]
}

// lessUseful orders members by how little the group loses with them, after those that
// were named to go first. Equals go from the most crowded place. Among
// those not ready the youngest has come the least far; among the others the
// oldest goes.
func (c *Census) lessUseful(a, b *Member) int {
	return cmp.Or(c.byWorth(a, b), c.fromCrowdedPlace(a, b), c.byProgress(a, b))
}

// byWorth orders members by their worth alone. On-demand members beyond the base go
// before spot ones.
func (c *Census) byWorth(a, b *Member) int {
	if a.GoesFirst != b.GoesFirst {
		return oneIf(b.GoesFirst) - oneIf(a.GoesFirst)
	}
	rank := c.surplusRank(a)
	if c := cmp.Compare(rank, c.surplusRank(b)); c != 0 {
		return c
	}
	if sa, sb := c.stale(a), c.stale(b); sa != sb {
		if sa {
			return -1
		}
		return 1
	}
	if c.market.onDemand > c.market.base && a.Market != b.Market {
		return oneIf(b.Market == nstance.OnDemand) - oneIf(a.Market == nstance.OnDemand)
	}
	return 0
}

func (c *Census) byProgress(a, b *Member) int {
	if c.surplusRank(a) < surplusSilent {
		return olderFirst(b, a)
	}
	return olderFirst(a, b)
}

// The order in which surplus goes.
const (
	surplusFormerIntent = iota // a former leader's create, which made no machine that is known
	surplusNoMachine
	surplusUnregistered
	surplusNotWell
	surplusOnTrial // well, but not for min_ready yet
	surplusSilent
	surplusReady
)

func (c *Census) surplusRank(m *Member) int {
	switch {
	case m.registered():
	case !m.HasMachine && m.Inherited:
		return surplusFormerIntent
	case !m.HasMachine:
		return surplusNoMachine
	default:
		return surplusUnregistered
	}
	switch {
	case m.unreachable():
		return surplusSilent
	case m.GoodSince.IsZero():
		return surplusNotWell
	case !c.ready(m):
		return surplusOnTrial
	}
	return surplusReady
}
