package reconcile

import (
	"slices"
	"time"

	"github.com/nstance-go/nstance"
)

// Plan says what one group needs next, and when to look again. It is pure: it
// does no I/O, reads no clock, changes nothing of v, and equal input gives
// equal output, whatever the order of the members. It may be called
// concurrently.
//
// The six rules run in order over one survey of the members. Replacement is
// not a rule of its own: a member that leaves is no longer counted, so the
// group has a deficit, and a deficit is filled at once. Only surplus and
// rollout, which nobody is in a hurry for, wait for members to be ready.
//
// The caller applies all actions before it plans again: a create becomes a
// pending member, StartDrain makes its member draining with Member.Drain set,
// Delete makes it deleting. docs/design/001-plan.md tells why each rule is as
// it is.
func Plan(v View, now time.Time) Decision {
	p := newPlanner(&v, now)
	if v.Hash == "" {
		p.hold(HoldDefinition, "the group's definition could not be read", time.Time{})
		return p.out
	}
	if v.Clock != "" {
		p.hold(HoldClock, v.Clock, time.Time{})
	}
	p.survey() // P1 acts on what it finds leaving
	switch {
	case v.Frozen && v.Unnamed:
		p.hold(HoldFrozen, "nobody says what the group should be: drains under way go on, and who is asked to go goes", time.Time{})
		p.remedy()
		return p.out
	case v.Frozen:
		p.hold(HoldFrozen, "only drains under way go on", time.Time{})
		return p.out
	}
	p.remedy()                      // P2
	p.refill()                      // P3
	if p.settled() && !p.shrink() { // P4
		p.rollOut() // P5
	}
	p.halt() // P6
	return p.out
}

// A planner is one run of Plan.
type planner struct {
	*View
	now   time.Time
	size  int // wanted, 0 while the group is being removed
	surge int // max_surge as a number

	n       memberTally
	sick    []*Member // doomed for being unhealthy, oldest first
	doomed  []doomedMember
	lost    []*Member // doomed members whose replacements are owed at once, beside Owed
	urgent  int       // of them, the first ones, which no backoff holds up
	failing int       // creations that this pass finds to have come to nothing
	market  marketShare
	owed    int // creates of this pass that answer a loss
	plain   int // creates of this pass that do not

	out Decision
}

// A memberTally is what the survey counts.
type memberTally struct {
	counted      int // wanted or surplus: everything managed that is neither leaving nor doomed
	ready        int
	unregistered int       // counted, agent not heard of at all
	idle         int       // counted, certainly serving nothing
	replacing    int       // counted, not ready, made to replace a loss
	starting     int       // counted, not ready, made for anything else, fresh
	stale        int       // counted, to be replaced by a rollout
	misplaced    int       // of them, those that are so for their market alone
	untried      int       // stale, was certainly never ready
	bad          int       // stale, heard of, not well, but perhaps was ready once
	voluntary    int       // draining or deleting for a rollout or a surplus
	losses       int       // draining or deleting for any other cause
	sick         int       // draining or deleting for being unhealthy
	returning    int       // counted again as of this pass
	unheard      int       // counted, registered, not heard of in this term, within its grace
	graceEnd     time.Time // when the last of them must have been
}

func newPlanner(v *View, now time.Time) *planner {
	p := &planner{View: v, now: now, size: v.Group.Size}
	if v.Removing {
		p.size = 0
	}
	p.surge = v.Group.Rollout.MaxSurge.Of(p.size)
	return p
}

// survey sorts every member into leaving, doomed and counted. Members whose
// create was refused and those of a warm pool are none of these.
func (p *planner) survey() {
	p.market.divided = p.dividesMarkets()
	for i := range p.Members {
		m := &p.Members[i]
		switch {
		case memberApart(m):
		case m.State.Leaving():
			p.finish(m)
		case !p.Frozen:
			p.judge(m)
		case p.Unnamed && m.Requested != nil:
			p.doomed = append(p.doomed, doomedMember{m, nstance.CauseRequest})
		}
	}
	p.capSick()
	if p.market.divided { // which is stale depends on all of them
		p.shareMarkets()
		for i := range p.Members {
			if m := &p.Members[i]; p.counts(m) {
				p.tally(m)
			}
		}
	}
}

// count tallies a member that stays, now or when all members are known.
func (p *planner) count(m *Member) {
	if !p.market.divided {
		p.tally(m)
	}
}

func (p *planner) judge(m *Member) {
	switch why := p.doom(m); {
	case why != "":
		p.doomed = append(p.doomed, doomedMember{m, why})
	case m.OnDemand:
	case p.isSick(m):
		p.sick = append(p.sick, m)
	default:
		p.count(m)
	}
}

func (p *planner) tally(m *Member) {
	n, ready, stale := &p.n, p.ready(m), p.stale(m)
	n.counted++
	switch {
	case ready:
		n.ready++
	case m.Reason == ReasonReplace:
		n.replacing++
	case !stale:
		n.starting++
	}
	if !memberRegistered(m) {
		n.unregistered++
	}
	if p.surplusRank(m) <= surplusNotWell {
		n.idle++
	}
	if p.inGrace(m) {
		n.unheard++
		n.graceEnd = laterOf(n.graceEnd, m.GraceUntil)
	}
	if stale {
		n.stale++
		if !p.outdated(m) {
			n.misplaced++
		}
		switch p.rolloutRank(m) {
		case rolloutUntried:
			n.untried++
		case rolloutBad:
			n.bad++
		}
	}
}

func (p *planner) tallyLeaving(m *Member) {
	switch {
	case m.OnDemand:
	case !memberOwed(m):
	case memberLeavesVoluntarily(m):
		p.n.voluntary++
	default:
		p.n.losses++
	}
	if !m.OnDemand && memberLeavesSick(m) {
		p.n.sick++
	}
}

// tallyReturning counts a member whose drain is cancelled in this pass. What is
// surplus with it is decided in the next one.
func (p *planner) tallyReturning(m *Member) {
	if !m.OnDemand && !p.Frozen {
		p.tally(m)
		p.countMarket(m, 1)
		p.n.returning++
		if i := slices.Index(p.Owed, m.ID); i >= 0 {
			p.Owed = slices.Delete(slices.Clone(p.Owed), i, i+1)
		}
	}
}

// passed reports whether t has come. If it is still to come, the decision is
// looked at again then. Zero never comes. Every comparison with the time goes
// through here, so that Next cannot miss one.
func (p *planner) passed(t time.Time) bool {
	if t.IsZero() {
		return false
	}
	if !t.After(p.now) {
		return true
	}
	if p.out.Next.IsZero() || t.Before(p.out.Next) {
		p.out.Next = t
	}
	return false
}

// due is passed of an instant at which something is drained or deleted. While
// the clock cannot be trusted nothing is.
func (p *planner) due(t time.Time) bool { return p.passed(t) && p.Clock == "" }

func (p *planner) act(a Action) { p.out.Actions = append(p.out.Actions, a) }

// hold reports what keeps the planner from acting, once of each kind.
func (p *planner) hold(kind, reason string, until time.Time) {
	if slices.ContainsFunc(p.out.Holds, func(h Hold) bool { return h.Kind == kind }) {
		return
	}
	p.out.Holds = append(p.out.Holds, Hold{Kind: kind, Reason: reason, Until: until})
}

// remove starts m on its way out: through a drain where there is something to
// drain and time for it.
func (p *planner) remove(m *Member, causes []nstance.Cause, failure bool) {
	if !p.drainable(m) {
		p.act(Action{Kind: Delete, ID: m.ID, Causes: causes, Failure: failure})
		return
	}
	p.act(Action{
		Kind: StartDrain, ID: m.ID, Causes: causes, Failure: failure, Voluntary: causesVoluntary(causes),
		Deadline: p.tightest(m, p.now.Add(p.Group.DrainTimeout)),
	})
}

func laterOf(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
