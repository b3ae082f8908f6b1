package reconcile

import "github.com/nstance-go/nstance"

// finish is P1: what is leaving is helped out of the door, or back in when
// nothing speaks against it any more.
func (p *planner) finish(m *Member) {
	if p.returns(m) {
		p.act(Action{Kind: CancelDrain, ID: m.ID})
		p.tallyReturning(m)
		return
	}
	p.tallyLeaving(m)
	switch {
	case m.State == nstance.Deleting, m.Gone, memberDeleteAsked(m), !memberRegistered(m):
		p.finishDelete(m)
	case m.Drain == nil || m.Drain.Deadline.IsZero():
		p.remove(m, p.leavingCauses(m), false) // the drain never took effect
	default:
		p.watchDrain(m)
	}
}

// returns reports whether every cause of m's drain has been withdrawn and
// nothing else dooms it. Then it stays even if its drain is over: the deletion
// has not begun, and nothing asks for it.
func (p *planner) returns(m *Member) bool {
	if m.State != nstance.Draining || m.Drain == nil || len(m.Drain.Causes) == 0 || p.doom(m) != "" {
		return false
	}
	kept, _ := p.reviewCauses(m)
	return kept == 0
}

// watchDrain compares a drain under way with what is known now.
func (p *planner) watchDrain(m *Member) {
	d := m.Drain
	kept, added := p.reviewCauses(m)
	end := memberDrainEnd(m)
	deadline := p.tightest(m, end)
	switch {
	case m.DrainOver, p.Group.DrainTimeout <= 0, p.due(end):
		p.finishDelete(m)
	case kept < len(d.Causes), added > 0, deadline.Before(end):
		causes := p.leavingCauses(m)
		p.act(Action{Kind: Tighten, ID: m.ID, Deadline: deadline, Causes: causes, Voluntary: causesVoluntary(causes)})
	}
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
	p.act(a)
}

// reviewCauses counts the recorded causes that still stand and the new ones.
func (p *planner) reviewCauses(m *Member) (kept, added int) {
	for i := range m.Drain.Causes {
		if p.stands(m, &m.Drain.Causes[i]) {
			kept++
		}
	}
	for i := range m.Notices {
		if noticeIsNew(m, &m.Notices[i]) {
			added++
		}
	}
	if requestIsNew(m) {
		added++
	}
	return kept, added
}

// leavingCauses lists what speaks against a leaving member now: the recorded
// causes that stand, then the new ones, or else whatever dooms it.
func (p *planner) leavingCauses(m *Member) []nstance.Cause {
	var out []nstance.Cause
	if m.Drain != nil {
		for i := range m.Drain.Causes {
			if p.stands(m, &m.Drain.Causes[i]) {
				out = append(out, m.Drain.Causes[i])
			}
		}
	}
	for i := range m.Notices {
		if noticeIsNew(m, &m.Notices[i]) {
			out = append(out, noticeCause(&m.Notices[i]))
		}
	}
	if requestIsNew(m) {
		out = append(out, *m.Requested)
	}
	switch {
	case len(out) > 0:
		return out
	case p.doom(m) != "":
		return p.causes(m)
	}
	return []nstance.Cause{surplusCause()}
}

// stands reports whether a recorded cause still holds. Only a notice can be
// withdrawn. A rollout or a surplus is not: the replacement is on its way, and
// changing one's mind twice costs more than finishing. And a new leader does
// not take a notice for withdrawn before it has heard from the agent.
func (p *planner) stands(m *Member, c *nstance.Cause) bool {
	if c.Kind != nstance.CauseNotice || c.EventID == "" || p.inGrace(m) {
		return true
	}
	for i := range m.Notices {
		if m.Notices[i].EventID == c.EventID && !m.Notices[i].Cancelled {
			return true
		}
	}
	return false
}

func noticeIsNew(m *Member, n *nstance.Notice) bool {
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

func requestIsNew(m *Member) bool {
	return m.Requested != nil && (m.Drain == nil || !causesInclude(m.Drain.Causes, nstance.CauseRequest))
}
