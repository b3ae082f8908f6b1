package plan

import (
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/groupspec"
)

// finish is P1: the removal of a leaving member goes on, or ends when every cause
// of its drain is withdrawn.
func (p *planner) finish(m *Member) {
	switch {
	case p.returns(m):
		p.act(Action{Kind: CancelDrain, ID: m.ID})
	case m.State == nstance.Deleting, m.Gone, m.deleteRequested(), !m.registered():
		p.finishDelete(m)
	case m.Drain == nil || m.Drain.Deadline.IsZero():
		p.remove(m, p.leavingCauses(m), false) // the drain never took effect
	default:
		p.watchDrain(m)
	}
}

// watchDrain compares a drain in progress with what is known now.
func (p *planner) watchDrain(m *Member) {
	d := m.Drain
	kept, added := p.reviewCauses(m)
	end := m.drainEnd()
	deadline := p.tightest(m, end)
	if d.Unlimited() { // until another cause joins, or the group does not have it wait any more
		deadline = p.tightest(m, earlierOf(end, p.now.Add(groupspec.DrainLimit(&p.Group, p.leavingCauses(m)))))
	}
	switch {
	case m.DrainOver, p.Group.DrainTimeout <= 0, p.due(end):
		p.finishDrain(m)
	case kept < len(d.Causes), added > 0, deadline.Before(end):
		causes := p.leavingCauses(m)
		p.act(Action{Kind: Tighten, ID: m.ID, Deadline: deadline, Causes: causes, Voluntary: allVoluntary(causes)})
	}
}

// quietDrain is how long an executor may say nothing of a drain that waits without limit.
const quietDrain = 2 * time.Minute

// holdDrains reports drains that wait without limit: nothing else shows one whose executor is
// silent.
func (p *planner) holdDrains() {
	var waiting []*Member
	for _, m := range p.leaving {
		if m.State != nstance.Draining || m.Drain == nil || !m.Drain.Unlimited() || m.DrainOver {
			continue
		}
		quiet := m.Drain.Executor != nstance.ExecutorNone && m.DrainBlocked == ""
		if !quiet || p.passed(m.Drain.StartedAt.Add(quietDrain)) {
			waiting = append(waiting, m)
		}
	}
	switch n := len(waiting); {
	case n == 1:
		p.holdf(HoldDrain, "%s waits without limit to be empty: %s", waiting[0].ID, waiting[0].waitsFor())
	case n > 1:
		p.holdf(HoldDrain, "%d members wait without limit to be empty; %s: %s", n, waiting[0].ID, waiting[0].waitsFor())
	}
}

// waitsFor says what keeps the machine of a draining member from being empty.
func (m *Member) waitsFor() string {
	began := "; the drain began at " + m.Drain.StartedAt.UTC().Format(time.RFC3339)
	switch {
	case m.Drain.Executor == nstance.ExecutorNone:
		return "nothing empties it: no operator is connected that drains, and " + m.whyNoHook() + began
	case m.DrainBlocked != "":
		return m.DrainBlocked
	case m.Drain.Executor == nstance.ExecutorAgent:
		return "its executor, the agent's drain hook, names no obstacle" + began
	}
	return "its executor, the operator, names no obstacle" + began
}

// whyNoHook says why the agent of a draining member does not empty its machine.
func (m *Member) whyNoHook() string {
	switch {
	case m.Silent:
		return "its agent does not report"
	case m.Drain.CordonOnly:
		return "a drain hook cannot only cordon"
	}
	return "its agent has no drain hook"
}

// finishDrain deletes a member whose drain is over, or parks it.
func (p *planner) finishDrain(m *Member) {
	if m.goesBack() && (!m.Woken || !p.Group.WarmPool.NoReturn) {
		p.act(Action{Kind: Park, ID: m.ID})
		return
	}
	p.finishDelete(m)
}

// finishDelete deletes a member that is draining or deleting already.
func (p *planner) finishDelete(m *Member) {
	a := Action{Kind: Delete, ID: m.ID}
	switch {
	case m.Drain != nil && len(m.Drain.Causes) > 0:
		a.Causes = m.Drain.Causes
	case m.State != nstance.Deleting:
		a.Causes = p.leavingCauses(m)
	}
	a.Voluntary = allVoluntary(a.Causes)
	p.act(a)
}

// returns reports whether every cause of m's drain has been withdrawn and
// nothing else dooms it. Then it stays even if its drain is over: the deletion
// has not begun, and nothing asks for it.
func (c *Census) returns(m *Member) bool {
	if m.State != nstance.Draining || m.Drain == nil || len(m.Drain.Causes) == 0 || c.doom(m) != "" {
		return false
	}
	kept, _ := c.reviewCauses(m)
	return kept == 0
}

// reviewCauses counts the recorded causes that still stand and the new ones.
func (c *Census) reviewCauses(m *Member) (kept, added int) {
	for i := range m.Drain.Causes {
		if c.stands(m, &m.Drain.Causes[i]) {
			kept++
		}
	}
	for i := range m.Notices {
		if m.isNewNotice(&m.Notices[i]) {
			added++
		}
	}
	if m.isNewRequest() {
		added++
	}
	return kept, added
}

// leavingCauses lists why a leaving member leaves, as of now: the recorded causes
// that stand, then the new ones, or else whatever dooms it.
func (c *Census) leavingCauses(m *Member) []nstance.Cause {
	var out []nstance.Cause
	if m.Drain != nil {
		for i := range m.Drain.Causes {
			if c.stands(m, &m.Drain.Causes[i]) {
				out = append(out, m.Drain.Causes[i])
			}
		}
	}
	for i := range m.Notices {
		if m.isNewNotice(&m.Notices[i]) {
			out = append(out, noticeCause(&m.Notices[i]))
		}
	}
	if m.isNewRequest() {
		out = append(out, *m.Requested)
	}
	switch {
	case len(out) > 0:
		return out
	case c.doom(m) != "":
		return c.causes(m)
	}
	return []nstance.Cause{c.surplusCause()}
}

// stands reports whether a recorded cause still holds. Only a notice can be
// withdrawn. A rollout or a surplus cannot: the replacement is on its way, and
// reversing twice costs more than finishing. A new leader does not take a notice
// for withdrawn before it has heard from the agent.
func (c *Census) stands(m *Member, cause *nstance.Cause) bool {
	if cause.Kind != nstance.CauseNotice || cause.EventID == "" || c.inGrace(m) {
		return true
	}
	for i := range m.Notices {
		if m.Notices[i].EventID == cause.EventID && !m.Notices[i].Cancelled {
			return true
		}
	}
	return false
}

// isNewNotice reports whether n stands and is not a cause of m's drain yet.
func (m *Member) isNewNotice(n *nstance.Notice) bool {
	if n.Cancelled || m.Drain == nil {
		return !n.Cancelled
	}
	for i := range m.Drain.Causes {
		if c := &m.Drain.Causes[i]; c.Kind == nstance.CauseNotice && c.EventID == n.EventID {
			return false
		}
	}
	return true
}

func (m *Member) isNewRequest() bool {
	return m.Requested != nil && (m.Drain == nil || !includesCause(m.Drain.Causes, nstance.CauseRequest))
}
