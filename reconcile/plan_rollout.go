package reconcile

import (
	"cmp"

	"github.com/nstance-go/nstance"
)

// rollOut is P5: stale members are replaced, few at a time, the replacement
// first. Stale members that never were ready go at once and need no
// replacement first: P3 refills.
func (p *planner) rollOut() {
	if !p.rollingOut() {
		return
	}
	if p.n.untried > 0 {
		p.retire(p.n.untried, 0)
		return
	}
	room := max(0, max(1, p.surge)-p.n.starting-p.n.voluntary-p.plain)
	bad := min(room, p.n.bad)
	good := min(room-bad, p.spare(), p.n.stale-bad)
	p.surgeBy(room - p.retire(bad, good))
}

// spare is how many ready members the group could do without. With max_surge 0
// it is one if all are ready, which also means that every loss has been made
// good: a member too many, such as a replacement that still boots, is P4's.
func (p *planner) spare() int {
	if p.surge == 0 && p.n.ready >= p.size {
		return 1
	}
	return max(0, p.n.ready-p.size)
}

// surgeBy creates up to n members ahead of those that they will replace, as far
// as the allowance goes.
func (p *planner) surgeBy(n int) {
	n = min(n, p.size+p.allowance()-p.n.counted-p.owed-p.plain)
	for range p.createRoom(n) {
		p.create(ReasonRollout)
	}
}

// retire removes stale members: so many that need no spare, and so many others,
// those first that the group misses least. It returns how many.
func (p *planner) retire(free, spare int) (n int) {
	if free+spare == 0 {
		return 0
	}
	base := p.spareBase(oneIf(p.surge == 0))
	for _, m := range p.pick(free+spare+p.baseMembers(), p.soonerRetired) {
		quota := &spare
		if p.rolloutRank(m) <= rolloutBad {
			quota = &free
		}
		if !p.stale(m) || *quota == 0 || !base.take(p, m) {
			continue
		}
		*quota--
		p.remove(m, []nstance.Cause{p.rolloutCause(m)}, false)
		n++
	}
	return n
}

func (p *planner) soonerRetired(a, b *Member) int {
	if c := cmp.Compare(p.rolloutRank(a), p.rolloutRank(b)); c != 0 {
		return c
	}
	return memberOlder(a, b)
}

// The order in which stale members go. What may be serving needs a spare, even
// if it is silent or has been well only for a moment: a network fault, or a new
// leader that has yet to see min_ready pass, must not empty a group.
const (
	rolloutUntried = iota // certainly never was ready: at once
	rolloutBad            // not well, but may have been ready: counts as in flight
	rolloutServing        // silent or on trial: needs a spare, yet is none itself
	rolloutReady
	rolloutFresh // not stale
)

func (p *planner) rolloutRank(m *Member) int {
	switch {
	case !p.stale(m):
		return rolloutFresh
	case p.ready(m):
		return rolloutReady
	case memberSilent(m) || !m.GoodSince.IsZero(), p.holdsBase(m):
		return rolloutServing
	case memberNeverReady(m):
		return rolloutUntried
	}
	return rolloutBad
}

func (p *planner) rolloutCause(m *Member) nstance.Cause {
	c := nstance.Cause{Kind: nstance.CauseRollout, Message: "it is old enough to be replaced"}
	switch {
	case p.drifted(m):
		c.Message = "the group's definition changed"
	case p.outdated(m):
	case m.Market == nstance.OnDemand:
		c.Message = "the group goes back to spot"
	default:
		c.Message = "the group's on-demand base is not complete"
	}
	return c
}
