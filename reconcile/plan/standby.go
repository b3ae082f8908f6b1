package plan

import (
	"cmp"
	"slices"

	"github.com/nstance-go/nstance"
)

// A warmPool is the stand-by members of a group that are neither doomed nor being
// deleted.
type warmPool struct {
	members   []*Member
	awake     []*Member // that serve in place of others, or could at once, or are being woken
	returning []*Member // being drained, to be parked
	parked    []*Member
}

// add sorts a stand-by member.
func (p *warmPool) add(c *Census, m *Member) {
	p.members = append(p.members, m)
	switch {
	case m.State == nstance.Parked:
		p.parked = append(p.parked, m)
	case m.State == nstance.Parking:
		if m.ParkFailed { // so its machine runs
			p.parked = append(p.parked, m)
		}
	case m.State == nstance.Draining:
		p.returning = append(p.returning, m)
	case m.State == nstance.Waking:
		if !m.WakeFailed && !c.due(m.LaunchBy) { // else it may never run
			p.awake = append(p.awake, m)
		}
	case m.Woken, c.ready(m):
		p.awake = append(p.awake, m)
	default:
		c.n.unregistered += oneIf(!m.registered())
	}
}

// goesBack reports whether m is drained for nothing but to be parked.
func (m *Member) goesBack() bool {
	if !m.Standby || m.State != nstance.Draining || m.Drain == nil || m.Gone || m.Requested != nil || m.noticed() {
		return false
	}
	return !slices.ContainsFunc(m.Drain.Causes, func(c nstance.Cause) bool { return c.Kind != nstance.CauseStandby })
}

// bridges is how many stand-by members are to run: one for each member that the group has
// lost and whose replacement is not ready yet, and one for each claim, none of a group that
// is removed. Where a rollout removes the old member first, that is no loss, and each record
// that cannot be read may be a member.
func (c *Census) bridges() int {
	if c.Removing {
		return 0
	}
	lost := min(c.size, c.History.FullAt) - c.n.lasting - c.Unreadable
	if c.surge == 0 {
		lost -= c.n.rolling + c.n.voluntary
	}
	return max(0, lost) + c.Claims
}

// bridgeLosses is P7: stand-by members are woken, those first that are not parked yet.
func (p *planner) bridgeLosses() {
	n := p.bridges() - len(p.pool.awake)
	if n <= 0 {
		return
	}
	for _, m := range p.pool.returning {
		if n > 0 && !p.acts(m) {
			p.act(Action{Kind: CancelDrain, ID: m.ID})
			n--
		}
	}
	slices.SortFunc(p.pool.parked, p.soonerWoken)
	for _, m := range p.pool.parked[:min(max(0, n), len(p.pool.parked))] {
		p.act(Action{Kind: Wake, ID: m.ID})
	}
}

// soonerWoken orders parked members: silent ones last, those made from the desired definition
// first.
func (c *Census) soonerWoken(a, b *Member) int {
	return cmp.Or(oneIf(a.Silent)-oneIf(b.Silent), oneIf(c.stalePooled(a))-oneIf(c.stalePooled(b)), olderFirst(a, b))
}

// keepPool is P8: what bridges nothing any more is parked, and the pool is kept at its
// size and fresh.
func (p *planner) keepPool() {
	size := p.poolSize()
	if len(p.pool.members)+size == 0 {
		return
	}
	p.trimPool(len(p.pool.members) - size)
	p.parkIdle()
	if p.need() > 0 {
		return
	}
	p.createStandby(size - len(p.pool.members))
	p.refreshPool(size)
}

func (c *Census) poolSize() int {
	if c.Removing {
		return 0
	}
	return c.Group.WarmPool.Size
}

// idle returns the stand-by members that bridge nothing, those first that may go first.
func (p *planner) idle() []*Member {
	var out []*Member
	running := p.bridges()
	for _, m := range p.pool.members {
		onItsWay := m.State == nstance.Draining || m.State == nstance.Parking && !m.ParkFailed && !p.Removing
		stillWanted := m.State == nstance.Waking && (running > 0 || !m.WakeFailed) && !p.Removing
		if !onItsWay && !stillWanted && !p.acts(m) {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b *Member) int {
		return cmp.Or(p.poolRank(a)-p.poolRank(b), oneIf(p.stalePooled(b))-oneIf(p.stalePooled(a)), olderFirst(a, b))
	})
	ready := 0
	for _, m := range out {
		ready += oneIf(slices.Contains(p.pool.awake, m))
	}
	return out[:len(out)-min(ready, running)]
}

// poolRank orders members by what it costs to do without them.
func (c *Census) poolRank(m *Member) int {
	switch {
	case m.asleep():
		return 1
	case !slices.Contains(c.pool.awake, m):
		return 0
	case !c.ready(m):
		return 2
	}
	return 3
}

// trimPool removes up to n idle members.
func (p *planner) trimPool(n int) {
	idle := p.idle()
	for _, m := range idle[:min(max(0, n), len(idle))] {
		p.remove(m, []nstance.Cause{{Kind: nstance.CauseSurplus, Message: "surplus: the group has more stand-by members than its warm_pool.size"}}, false)
	}
}

// parkIdle has the idle members that run drained and parked. Stale ones are removed instead, and so are those that are not to return.
func (p *planner) parkIdle() {
	for _, m := range p.idle() {
		switch {
		case m.State == nstance.Parking && p.stalePooled(m) && !p.held(): // it cannot be parked as it is
			p.remove(m, []nstance.Cause{p.poolCause(m)}, false)
		case m.State == nstance.Parked, m.State != nstance.Waking && !p.ready(m):
		case m.State == nstance.Waking: // its machine is stopped
			p.act(Action{Kind: Park, ID: m.ID})
		case p.stalePooled(m) && !p.held():
			p.remove(m, []nstance.Cause{p.poolCause(m)}, false)
		case p.drainable(m):
			p.remove(m, []nstance.Cause{{Kind: nstance.CauseStandby, Message: "it returns to the warm pool"}}, false)
		case m.Woken && p.Group.WarmPool.NoReturn:
			p.remove(m, []nstance.Cause{{Kind: nstance.CauseStandby, Message: "it was needed once, and warm_pool.return is false"}}, false)
		default:
			p.act(Action{Kind: Park, ID: m.ID})
		}
	}
}

// createStandby asks for n members of the pool. It comes after everything that the group
// itself needs.
func (p *planner) createStandby(n int) {
	if n = p.createRoom(n); n <= 0 {
		return
	}
	p.act(Action{Kind: Create, Reason: ReasonStandby, Count: n, Market: nstance.OnDemand, LastGood: p.lastGood()})
}

// refreshPool has one member made anew that is stale. The pool is whole and asleep then, so
// that one at a time is missing, and none while it is needed.
func (p *planner) refreshPool(size int) {
	if p.held() || p.History.Failures > 0 || p.bridges() > 0 || len(p.pool.members) != size || len(p.pool.parked) != size {
		return
	}
	for _, m := range p.pool.parked {
		if p.stalePooled(m) {
			p.remove(m, []nstance.Cause{p.poolCause(m)}, false)
			return
		}
	}
}

// stalePooled reports whether a stand-by member is to be made anew.
func (c *Census) stalePooled(m *Member) bool {
	return c.outdated(m) || m.ParkMode != c.Group.WarmPool.Mode
}

func (c *Census) poolCause(m *Member) nstance.Cause {
	if !c.outdated(m) {
		return nstance.Cause{Kind: nstance.CauseRollout, Message: "warm_pool.mode changed"}
	}
	return c.rolloutCause(m)
}
