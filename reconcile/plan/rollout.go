package plan

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
	if p.n.neverReady > 0 {
		p.retire(p.n.neverReady, 0)
		return
	}
	room := max(0, max(1, p.surge)-p.n.starting-p.n.voluntary-p.otherCreates)
	bad := min(room, p.n.notWell)
	good := min(room-bad, p.spare(), p.n.stale-bad)
	p.surgeBy(room - p.retire(bad, good))
}

// spare is how many ready members the group could do without. With max_surge 0
// it is one if all are ready, which also means that every loss has been made
// good: a member too many, such as a replacement that still boots, is P4's.
func (c *Census) spare() int {
	if c.surge == 0 && c.n.ready >= c.size {
		return 1
	}
	return max(0, c.n.ready-c.size)
}

// surgeBy creates up to n members ahead of those that they will replace, as far
// as the allowance goes.
func (p *planner) surgeBy(n int) {
	n = min(n, p.size+p.allowance()-p.n.counted-p.lossCreates-p.otherCreates)
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
		if p.rolloutRank(m) <= rolloutNotWell {
			quota = &free
		}
		if !p.stale(m) || *quota == 0 || !base.take(p.Census, m) {
			continue
		}
		*quota--
		p.remove(m, []nstance.Cause{p.rolloutCause(m)}, false)
		n++
	}
	return n
}

func (c *Census) soonerRetired(a, b *Member) int {
	if c := cmp.Compare(c.rolloutRank(a), c.rolloutRank(b)); c != 0 {
		return c
	}
	if c.drifted(a) && c.drifted(b) {
		return cmp.Or(c.fromCrowdedPlace(a, b), olderFirst(a, b))
	}
	return olderFirst(a, b)
}

// The order in which stale members go. What may be serving needs a spare, even
// if it is silent or has been well only for a moment: a network fault, or a new
// leader that has yet to see min_ready pass, must not empty a group.
const (
	rolloutNeverReady = iota // certainly never was ready: at once
	rolloutNotWell           // not well, but may have been ready: counts as in flight
	rolloutServing           // silent or on trial: needs a spare, yet is none itself
	rolloutReady
	rolloutFresh // not stale
)

func (c *Census) rolloutRank(m *Member) int {
	switch {
	case !c.stale(m):
		return rolloutFresh
	case c.ready(m):
		return rolloutReady
	case m.unreachable() || !m.GoodSince.IsZero(), c.holdsBase(m):
		return rolloutServing
	case m.neverReady():
		return rolloutNeverReady
	}
	return rolloutNotWell
}

func (c *Census) rolloutCause(m *Member) nstance.Cause {
	cause := nstance.Cause{Kind: nstance.CauseRollout, Message: cmp.Or(m.EligibleFor, "older than expiry.eligible_age")}
	switch {
	case c.drifted(m):
		cause.Message = "the group's definition changed"
	case c.outdated(m):
	case m.Market == nstance.OnDemand:
		cause.Message = "the group returns to spot"
	default:
		cause.Message = "the group's on-demand base is incomplete"
	}
	return cause
}
