package reconcile

import (
	"cmp"
	"slices"

	"github.com/nstance-go/nstance"
)

// settled reports whether voluntary work may be planned at all: the whole group
// is known, and every member has had the time to make itself heard since this
// term began.
func (p *planner) settled() bool {
	if p.n.returning > 0 {
		return false
	}
	if p.Unreadable > 0 {
		p.holdf(HoldUnreadable, "%d records of the group could not be read", p.Unreadable)
		return false
	}
	if p.n.unheard > 0 {
		p.hold(HoldSettling, "members have not been heard of since this leader took over", p.n.graceEnd)
		return false
	}
	return true
}

// rollingOut reports whether stale members may be replaced.
func (p *planner) rollingOut() bool { return p.size > 0 && p.n.stale > 0 && !p.held() }

// allowance is how many members more than its size a group may have: never more
// than are still to be replaced, or P4 would take back what P5 creates.
func (p *planner) allowance() int {
	if !p.rollingOut() {
		return 0
	}
	return min(p.surge, p.n.stale)
}

// shrink is P4: what is more than the group wants leaves, the least useful
// first. It reports whether there was anything, even if it has to wait: while
// fewer members are known to be ready than the group wants, others that may be
// serving are not touched. Soon it will be known which of them do.
func (p *planner) shrink() bool {
	excess := p.n.counted - p.size - p.allowance()
	if excess <= 0 {
		return false
	}
	if left := p.discard(excess); left > 0 {
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
		if n == 0 || serving && p.n.ready < p.size || p.ready(m) && ready <= p.size || !spare.take(p, m) {
			continue
		}
		n--
		ready -= oneIf(p.ready(m))
		p.remove(m, []nstance.Cause{surplusCause()}, false)
	}
	return n
}

// pick returns the first n counted members in the given order, which is total.
// It keeps little more than n of them, however large the group is.
func (p *planner) pick(n int, order func(a, b *Member) int) []*Member {
	out := make([]*Member, 0, min(2*n+16, len(p.Members)))
	for i := range p.Members {
		m := &p.Members[i]
		if !p.counts(m) {
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

// lessUseful orders members by how little the group loses with them. Among
// those not ready the youngest has come the least far; among the others the
// oldest goes. On-demand members beyond the base go before spot ones.
func (p *planner) lessUseful(a, b *Member) int {
	rank := p.surplusRank(a)
	if c := cmp.Compare(rank, p.surplusRank(b)); c != 0 {
		return c
	}
	if sa, sb := p.stale(a), p.stale(b); sa != sb {
		if sa {
			return -1
		}
		return 1
	}
	if p.market.onDemand > p.market.base && a.Market != b.Market {
		return oneIf(b.Market == nstance.OnDemand) - oneIf(a.Market == nstance.OnDemand)
	}
	if rank < surplusSilent {
		return memberOlder(b, a)
	}
	return memberOlder(a, b)
}

// The order in which surplus goes.
const (
	surplusNoMachine = iota
	surplusUnregistered
	surplusNotWell
	surplusOnTrial // well, but not for min_ready yet
	surplusSilent
	surplusReady
)

func (p *planner) surplusRank(m *Member) int {
	switch {
	case memberRegistered(m):
	case !m.HasMachine:
		return surplusNoMachine
	default:
		return surplusUnregistered
	}
	switch {
	case memberSilent(m):
		return surplusSilent
	case m.GoodSince.IsZero():
		return surplusNotWell
	case !p.ready(m):
		return surplusOnTrial
	}
	return surplusReady
}
