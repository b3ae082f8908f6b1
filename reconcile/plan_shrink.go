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
	spare := p.market.onDemand - p.market.base
	idle := p.n.idle
	if p.market.base > 0 {
		idle -= max(0, p.n.idleBase-max(0, spare))
	}
	if p.n.ready < p.size && idle < excess {
		p.holdSurplus(excess - idle)
		excess = idle
	}
	p.discard(excess, spare)
	return true
}

// discard removes n surplus members, and as many of the on-demand ones as can be
// spared. A ready one stays while another, which the base needs, is not ready.
func (p *planner) discard(n, onDemand int) {
	ready := p.n.ready
	for _, m := range p.pick(n+p.market.base, p.lessUseful) {
		switch {
		case n == 0:
			return
		case p.inBase(m) && onDemand <= 0:
			continue
		case p.ready(m) && p.n.ready >= p.size && ready <= p.size:
			p.holdSurplus(n)
			return
		}
		n--
		ready -= oneIf(p.ready(m))
		onDemand -= oneIf(p.inBase(m))
		p.remove(m, []nstance.Cause{surplusCause()}, false)
	}
}

func (p *planner) holdSurplus(n int) {
	p.holdf(HoldSettling, "%d surplus members stay until enough others are known to be ready", n)
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
