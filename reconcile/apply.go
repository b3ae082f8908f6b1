package reconcile

import (
	"cmp"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// apply puts a decision into the shard's state and hands its steps to the
// lanes, all before the lock is released: the next plan sees granted creates
// as pending members, and leaving members as leaving. It returns when to look again.
func (s *shard) apply(at *snapshot, c *plan.Census, d plan.Decision) time.Time {
	g, now := at.group, at.now
	for _, a := range d.Actions {
		if a.Kind != plan.Create {
			s.applyTo(s.members[a.ID], a, now)
		}
	}
	if d.Halt {
		s.recordHalt(g)
	}
	holds := d.Holds
	if h := s.demand(g, d.Actions); h != nil {
		holds = append(holds, *h)
	}
	delete(s.unplanned, g.key)
	s.admitCreates(now, g)
	waits, due := s.createWaits(g, now)
	if h, held := g.definitionHold(); held {
		holds = append(holds, h)
	}
	if h, held := s.leaveHold(g, now); held && !slices.ContainsFunc(waits, func(w plan.Hold) bool { return w.Kind == h.Kind }) {
		holds = append(holds, h)
	}
	g.holds = at.holdViews(append(holds, waits...))
	s.publishHolds(g, at.withPending(g.holds), now)
	s.recordStandingNotices(g, now)
	next := earliest(due, s.reassignDrains(g, now))
	s.resume(g, c, now)
	return next
}

// applyTo puts an action on a present member into the state. A step that is under way goes on
// by itself: the same action again changes nothing.
func (s *shard) applyTo(m *member, a plan.Action, now time.Time) {
	if m == nil {
		return
	}
	switch a.Kind {
	case plan.StartDrain:
		m.state, m.drainState = nstance.Draining, drainState{drain: s.newDrain(m, a, now), drainDeadline: a.Deadline}
		m.owe(stepDrain)
		s.publishCauses(m, a)
	case plan.Tighten:
		d := *m.drain
		d.Deadline, d.Causes, d.Voluntary = a.Deadline.UTC(), a.Causes, a.Voluntary
		d.CordonOnly = d.CordonOnly && m.cordonOnly(a.Causes)
		m.drain, m.drainDeadline = &d, a.Deadline
		m.owe(stepDrain)
	case plan.CancelDrain:
		m.state, m.drainState = nstance.Booting, drainState{}
		m.owe(stepCancel)
	case plan.Delete:
		if m.state == nstance.Deleting {
			return
		}
		if m.drain == nil {
			s.publishCauses(m, a)
		}
		if m.drain != nil && !m.drainEnded && !m.gone {
			s.publish(m, nstance.Event{Type: nstance.EventDrainCutShort, Drain: m.drain})
		}
		m.state, m.deleteCauses = nstance.Deleting, a.Causes
		m.owe(stepDelete)
	case plan.Park:
		if m.step == stepPark {
			return
		}
		s.beginParking(m)
	case plan.Wake:
		if m.step == stepWake {
			return
		}
		m.state, m.standbyState = nstance.Waking, standbyState{wokenThisTerm: true}
		m.owe(stepWake)
	case plan.Create: // has no member yet
	}
	if m.state.Leaving() && !a.Voluntary {
		s.recordReturn(m, false)
	}
	s.rebalance(m.group)
}

// publishCauses journals the causes that this leader found out itself, and
// counts failed creations.
func (s *shard) publishCauses(m *member, a plan.Action) {
	for _, c := range a.Causes {
		switch c.Kind {
		case nstance.CauseUnhealthy:
			s.publish(m, nstance.Event{Type: nstance.EventUnhealthy, Reason: c.Message})
		case nstance.CauseTimeout:
			s.publish(m, nstance.Event{Type: nstance.EventCreateFailed, Reason: c.Message})
		}
	}
	if lateRefusal := m.gone && m.refusedLate(); a.Failure && (!lateRefusal || !s.shapesLeft(m)) {
		s.failedToBecomeReady(m, cmp.Or(a.Causes[0].Message, string(a.Causes[0].Kind)))
	}
}

func (s *shard) recordHalt(g *group) {
	if !g.history.Halt(g.hash, s.opts.Now()) {
		return
	}
	s.publishGroup(g, nstance.Event{Type: nstance.EventRolloutHalted, Reason: g.history.HaltReason})
	s.saver.Changed()
}

// includesCause reports whether a cause of kind k is among causes.
func includesCause(causes []nstance.Cause, k nstance.CauseKind) bool {
	return slices.ContainsFunc(causes, func(c nstance.Cause) bool { return c.Kind == k })
}
