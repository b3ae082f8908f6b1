// Package plan decides what one group of machines needs next. It is pure: it
// does no I/O and reads no clock, and equal input gives equal output, whatever
// the order of the members.
//
// A [Census] sorts the members of a group. [Census.Plan] turns it into actions, and
// [Census.Outlooks] tells what becomes of each member. Package reconcile carries the
// actions out; a program with a loop of its own can use this package alone.
//
// Views and decisions are values; a Census must not be used concurrently.
package plan

import (
	"slices"
	"time"

	"github.com/nstance-go/nstance"
)

// Plan says what one group needs next, and when to look again. It does not
// change v.
//
// Eight rules run in order over one census of the members. Replacement is not a
// rule of its own: a member that leaves is no longer counted, so the group has a
// deficit, and a deficit is filled at once. Only surplus and rollout, which are
// not urgent, wait for members to be ready.
//
// The caller applies all actions before it plans again: a create becomes a
// pending member, StartDrain makes its member draining with Member.Drain set,
// Delete makes it deleting. docs/design/001-plan.md tells why each rule is as
// it is.
func Plan(v View, now time.Time) Decision { return NewCensus(v, now).Plan() }

// Plan is the function [Plan] for a census that has been taken.
func (c *Census) Plan() Decision {
	p := &planner{Census: c, unanswered: slices.Clone(c.unanswered)}
	p.plan()
	p.out.Next = c.next
	return p.out
}

// A planner is one run of Plan.
type planner struct {
	*Census
	unanswered []*Member // losses to be replaced at once: those of the census, then those of this pass
	failing    int       // creations that this pass finds to have failed
	lossCreates,
	otherCreates,
	baseCreates int // creates of this pass: for losses, for anything else, for the on-demand base

	out Decision
}

func (p *planner) plan() {
	if p.Hash == "" {
		p.hold(HoldDefinition, "the group's definition could not be read", time.Time{})
		return
	}
	if p.Clock != "" {
		p.hold(HoldClock, p.Clock, time.Time{})
	}
	for _, m := range p.leaving { // P1
		p.finish(m)
	}
	p.holdDrains()
	switch {
	case p.Frozen:
		p.hold(HoldFrozen, "drains in progress continue, nothing else starts", time.Time{})
		return
	case p.undefined():
		p.hold(HoldDefinition, "the group has no definition: drains in progress and requested removals continue, nothing else starts", time.Time{})
		p.removeRequested()
		return
	}
	p.holdUnhealthy()
	p.removeDoomed() // P2
	p.refill()       // P3
	p.bridgeLosses() // P7, which waits for nothing
	if p.settled() {
		if !p.shrink() { // P4
			p.rollOut() // P5
		}
		p.keepPool() // P8
	}
	p.halt() // P6
}

// removeRequested removes the members whose removal was requested.
func (p *planner) removeRequested() {
	for _, d := range p.doomed {
		if d.Requested != nil {
			p.remove(d.Member, p.causes(d.Member), false)
		}
	}
}

func (p *planner) act(a Action) { p.out.Actions = append(p.out.Actions, a) }

// acts reports whether something happens to m already.
func (p *planner) acts(m *Member) bool {
	return slices.ContainsFunc(p.out.Actions, func(a Action) bool { return a.ID == m.ID })
}

// hold reports what keeps the planner from acting, once of each kind.
func (p *planner) hold(kind HoldKind, reason string, until time.Time) {
	if slices.ContainsFunc(p.out.Holds, func(h Hold) bool { return h.Kind == kind }) {
		return
	}
	p.out.Holds = append(p.out.Holds, Hold{Kind: kind, Reason: reason, Until: until})
}

// remove starts the removal of m: with a drain if it runs anything that the group
// wants drained.
func (p *planner) remove(m *Member, causes []nstance.Cause, failure bool) {
	a := Action{Kind: Delete, ID: m.ID, Causes: causes, Failure: failure, Voluntary: allVoluntary(causes)}
	if p.drainable(m) {
		a.Kind, a.Deadline = StartDrain, p.drainFromNow(m, causes)
	}
	p.act(a)
}
