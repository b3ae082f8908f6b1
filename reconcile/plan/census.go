package plan

import (
	"slices"
	"time"

	"github.com/nstance-go/nstance"
)

// A Census sorts the members of one group: which are counted, ready, doomed,
// leaving, stale. [Census.Plan] acts on it, and so does everything that shows a
// group or compares two configurations of it; these questions have no other
// answer. It must not be changed, and not be used concurrently.
type Census struct {
	View
	now   time.Time
	size  int // wanted; 0 while the group is being removed
	surge int // max_surge as a number

	n          tally
	leaving    []*Member      // oldest first
	unanswered []*Member      // those of them that were lost, and no replacement has been created; oldest first
	inherited  []*Member      // the same since before this term: replacements that are under way may be theirs
	doomed     []doomedMember // oldest first
	unhealthy  []*Member      // those of them that are doomed for being unhealthy, oldest first
	waiting    int            // unhealthy members beyond the cap, which stay counted
	pool       warmPool
	market     marketShare
	seats      map[nstance.InstanceID]int // see seat; nil: not known yet
	next       time.Time                  // when time alone may change the answer; zero: never
}

// A tally is what a census counts.
type tally struct {
	counted      int // wanted or surplus: every managed member that is neither leaving nor doomed
	ready        int
	unregistered int       // counted, and its agent has never registered
	replacing    int       // counted, not ready, created to replace a loss before this term, it is not known which
	starting     int       // counted, not ready, created for anything else, fresh
	lasting      int       // counted, and ready now or before, as far as is known
	rolling      int       // counted, never ready, created for a rollout
	stale        int       // counted, to be replaced by a rollout
	misplaced    int       // stale only because of their market
	neverReady   int       // stale, and certainly never ready
	notWell      int       // stale and registered, not well, but perhaps ready once
	voluntary    int       // draining or deleting for a rollout or a surplus
	unhealthy    int       // draining or deleting for being unhealthy
	returning    int       // counted again as of this pass: their drains are cancelled
	unheard      int       // counted, registered, within the grace after a change of leader
	graceEnd     time.Time // when the grace of the last of them ends
}

// A doomedMember must leave, whatever the size of its group.
type doomedMember struct {
	*Member
	why nstance.CauseKind
}

// NewCensus sorts the members of v. It does not change v, and the result does not
// depend on the order of the members.
func NewCensus(v View, now time.Time) *Census {
	c := &Census{View: v, now: now, size: v.Group.Size}
	if v.Removing {
		c.size = 0
	}
	c.surge = v.Group.Rollout.MaxSurge.Of(c.size)
	c.market.divided = c.dividesMarkets()
	for i := range c.Members {
		switch m := &c.Members[i]; {
		case m.excluded():
		case m.State.Leaving():
			c.leaving = append(c.leaving, m)
			c.tallyLeaving(m)
		default:
			c.judge(m)
		}
	}
	c.sortMembers()
	c.capUnhealthy()
	slices.SortFunc(c.doomed, func(a, b doomedMember) int { return olderFirst(a.Member, b.Member) })
	if c.market.divided { // which members are stale depends on all of them
		c.shareMarkets()
		for i := range c.Members {
			if m := &c.Members[i]; c.counts(m) {
				c.tally(m)
			}
		}
	}
	c.matchInherited()
	return c
}

// sortMembers brings every list of members that rules walk into one order, whatever that of
// the view: a choice between two members must not depend on it.
func (c *Census) sortMembers() {
	for _, list := range [][]*Member{c.leaving, c.pool.members, c.pool.awake, c.pool.returning, c.pool.parked} {
		slices.SortFunc(list, olderFirst)
	}
}

// judge sorts a member that is not leaving into doomed, unhealthy and counted.
func (c *Census) judge(m *Member) {
	switch why := c.doom(m); {
	case why != "":
		c.doomed = append(c.doomed, doomedMember{m, why})
	case m.OnDemand:
	case m.Standby && c.isUnhealthy(m) && c.Breaker == "":
		c.doomed = append(c.doomed, doomedMember{m, nstance.CauseUnhealthy})
	case m.Standby:
		c.pool.add(c, m)
	case c.isUnhealthy(m):
		c.unhealthy = append(c.unhealthy, m)
	default:
		c.count(m)
	}
}

// count tallies a counted member, now or when all members are known.
func (c *Census) count(m *Member) {
	if !c.market.divided {
		c.tally(m)
	}
}

// capUnhealthy dooms the oldest unhealthy members, as many as may be leaving for
// that cause at once: one, or a fifth of the group, which is never the majority
// of three or more. The others stay counted: they may be well and only unable to
// report.
func (c *Census) capUnhealthy() {
	if len(c.unhealthy) == 0 {
		return
	}
	slices.SortFunc(c.unhealthy, olderFirst)
	room := 0
	if c.Breaker == "" {
		room = min(max(0, max(1, c.size/5)-c.n.unhealthy), len(c.unhealthy))
	}
	for _, m := range c.unhealthy[:room] {
		c.doomed = append(c.doomed, doomedMember{m, nstance.CauseUnhealthy})
	}
	for _, m := range c.unhealthy[room:] {
		c.count(m)
	}
	c.waiting = len(c.unhealthy) - room
	c.unhealthy = c.unhealthy[:room]
}

// matchInherited finds the losses of former terms without a replacement, of those for which
// none is on record. Each replacement of former terms that is not ready and names no loss
// answers one, and so may each record that cannot be read.
func (c *Census) matchInherited() {
	slices.SortFunc(c.inherited, olderFirst)
	c.unanswered = append(c.unanswered, c.inherited[:max(0, len(c.inherited)-c.n.replacing-c.Unreadable)]...)
	slices.SortFunc(c.unanswered, olderFirst)
}

func (c *Census) tally(m *Member) {
	n, ready, stale := &c.n, c.ready(m), c.stale(m)
	n.counted++
	switch {
	case ready:
		n.ready++
	case m.Reason == ReasonReplace:
		n.replacing += oneIf(m.Inherited && m.Replaces == "")
	case !stale:
		n.starting++
	}
	switch {
	case c.wasReady(m):
		n.lasting++
	case m.Reason == ReasonRollout:
		n.rolling++
	}
	if !m.registered() {
		n.unregistered++
	}
	if c.inGrace(m) {
		n.unheard++
		n.graceEnd = laterOf(n.graceEnd, m.GraceUntil)
	}
	if !stale {
		return
	}
	n.stale++
	if !c.outdated(m) {
		n.misplaced++
	}
	switch c.rolloutRank(m) {
	case rolloutNeverReady:
		n.neverReady++
	case rolloutNotWell:
		n.notWell++
	}
}

// tallyLeaving counts a member on its way out, or one whose drain is cancelled in
// this pass. What is surplus with the latter is decided in the next pass.
func (c *Census) tallyLeaving(m *Member) {
	switch {
	case m.OnDemand:
		return
	case m.Standby:
		if m.goesBack() {
			c.pool.add(c, m)
		}
		return
	case c.returns(m):
		c.tally(m)
		c.countMarket(m, 1)
		c.n.returning++
		return
	case !m.replacedAtOnce():
	case m.leavesVoluntarily():
		c.n.voluntary++
	case m.Answered:
	case m.Inherited:
		c.inherited = append(c.inherited, m)
	default:
		c.unanswered = append(c.unanswered, m)
	}
	if m.leavesUnhealthy() {
		c.n.unhealthy++
	}
}

// undefined reports whether it is not known what the group should be.
func (c *Census) undefined() bool { return c.Hash == UnknownHash && !c.Removing }

// need is how many members the group lacks.
func (c *Census) need() int {
	if c.undefined() {
		return 0
	}
	return max(0, c.size-c.n.counted)
}

// surplus is how many members the group has beyond its size and what a rollout
// may have in addition. It may be negative.
func (c *Census) surplus() int { return c.n.counted - c.size - c.allowance() }

// Status returns ready where m serves, or did before this term, in which it was not heard of
// yet; gone where its machine is gone, else its state.
func (c *Census) Status(m *Member) nstance.State {
	switch {
	case m.State == nstance.Booting && !m.Gone && (c.serves(m) || m.WasReady && m.unheard()): // it may have missed reports since
		return nstance.Ready
	case m.Gone && m.State == nstance.Booting:
		return nstance.Gone
	}
	return m.State
}

// Counts are numbers of members.
type Counts struct {
	Ready     int `json:"ready"`     // serving as far as is known: those that have missed reports are among them
	Booting   int `json:"booting"`   // not ready yet
	Leaving   int `json:"leaving"`   // draining or being deleted
	Gone      int `json:"gone"`      // without a machine, and not removed yet
	Stale     int `json:"stale"`     // of those that are not leaving, created from another definition
	OnDemand  int `json:"on_demand"` // created by request, in none of the other numbers
	Standby   int `json:"standby"`   // of the warm pool, in none of the other numbers but Parked
	Parked    int `json:"parked"`    // stand-by members that are asleep
	Preserved int `json:"preserved"` // kept for inspection, in none of the other numbers
	Missing   int `json:"missing"`   // how many members the group lacks
	Surplus   int `json:"surplus"`   // members beyond its size and the spare ones of a rollout; may be negative
}

// Counts returns the numbers of members.
func (c *Census) Counts() Counts {
	n := Counts{Missing: c.need(), Surplus: c.surplus()}
	for i := range c.Members {
		m := &c.Members[i]
		switch {
		case m.OnDemand:
			n.OnDemand++
			continue
		case m.Standby:
			n.Standby++
			n.Parked += oneIf(m.State == nstance.Parked)
			continue
		case m.Preserved:
			n.Preserved++
			continue
		case m.State.Leaving():
			n.Leaving++
			continue
		case m.Gone:
			n.Gone++
			continue
		case c.Status(m) == nstance.Ready:
			n.Ready++
		default:
			n.Booting++
		}
		if c.drifted(m) {
			n.Stale++
		}
	}
	return n
}

// passed reports whether t has come. If it has not, the answer may change then.
// Zero never comes. Every comparison with the time goes through here, so that
// Decision.Next misses none.
func (c *Census) passed(t time.Time) bool {
	if t.IsZero() {
		return false
	}
	if !t.After(c.now) {
		return true
	}
	if c.next.IsZero() || t.Before(c.next) {
		c.next = t
	}
	return false
}

// due is passed for an instant on record at which a member is drained, replaced or
// deleted. While the clock cannot be trusted none is.
func (c *Census) due(t time.Time) bool { return c.passed(t) && c.Clock == "" }

func laterOf(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func earlierOf(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
