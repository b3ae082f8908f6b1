package reconcile

import (
	"context"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/notice"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/reconcile/internal/notices"
)

// handleNotice records a standing or withdrawn notice. It is acknowledged once its
// consequence is durable.
func (s *shard) handleNotice(m *member, f nstance.Noticed) {
	n, ack := f.Notice, f.Ack
	n.EventID = m.EventID(n)
	known := notices.Find(m.Standing, n.EventID)
	switch {
	case n.Cancelled:
		s.dropAdvice(m, n.EventID)
		s.withdrawNotice(m, n.EventID)
		if m.withdrawalIgnored() || !m.consequenceDurable(n.EventID) {
			call(ack)
		} else {
			m.Owe(n.EventID, true, ack)
		}
		return
	case !n.Kind.Dooms():
		s.takeAdvice(m, n)
		if m.state.Leaving() || notices.Find(m.Advice, n.EventID) < 0 || m.consequenceDurable(n.EventID) {
			call(ack)
		} else {
			m.Owe(n.EventID, false, ack)
		}
		return
	case m.Dropped(n.EventID):
		call(ack)
		return
	case known < 0 && len(m.Standing) >= notices.Max:
		s.publish(m, nstance.Event{Type: nstance.EventNoticeIgnored, Reason: "too many standing notices", Notice: &n})
		call(ack)
		return
	case known < 0:
		s.markRehearsal(m, &n)
		if n.Kind == nstance.Reclaim && !notice.Rehearsed(n) {
			s.places.Reclaimed(capacityShape(m.rec.Shape), m.zone(), s.opts.Now())
			s.recordReclaim(m, s.opts.Now())
		}
		m.prepareDrain(&n)
		s.receiveNotice(m, &n)
		m.Standing = append(m.Standing, n)
		e := nstance.Event{Type: nstance.EventNoticeReceived, Notice: &n}
		switch {
		case s.freezeOf(m.group) != nil:
			e.Reason = "frozen: it is recorded, and acted on after the thaw"
		case s.preserved(m, s.opts.Now()):
			e.Reason = "preserved: it is recorded, and acted on when that ends"
		}
		s.publish(m, e)
	case notice.Tightens(n, m.Standing[known]):
		m.Standing[known].Deadline = n.Deadline
		s.receiveNotice(m, &m.Standing[known])
	case m.consequenceDurable(n.EventID):
		call(ack)
		return
	}
	m.Owe(n.EventID, false, ack)
	s.queue.Add(m.group.key, true)
}

// markRehearsal has a reclaim that was rehearsed through the machine's own metadata service be
// recorded, counted and shown as what it is.
func (s *shard) markRehearsal(m *member, n *nstance.Notice) {
	expected := m.rec.Rehearsal
	if expected == nil || m.rehearsalMet || n.Kind != nstance.Reclaim {
		return
	}
	if m.rehearsalMet = true; !s.reached(expected.Until, s.opts.Now()) {
		n.Source = expected.Source
	}
}

// receiveNotice sets when a notice was received and when it ends. The provider is
// asked at once about a machine whose deadline has passed: it may be gone.
func (s *shard) receiveNotice(m *member, n *nstance.Notice) {
	if m.Receive(n, s.opts.Now(), s.clock.Elapsed()) {
		s.questions.Add(m.id)
	}
}

// withdrawalIgnored reports whether a withdrawal comes too late: the deletion is
// durable, or a notice for the instance was already withdrawn once.
func (m *member) withdrawalIgnored() bool { return m.rec.Deleting != nil || m.rec.Reclaims > 1 }

// withdrawNotice drops a notice, unless one was withdrawn for the instance before: its
// second reclaim is final.
func (s *shard) withdrawNotice(m *member, eventID string) {
	if notices.Find(m.Standing, eventID) < 0 || m.withdrawalIgnored() {
		return
	}
	m.Withdraw(eventID)
	if m.loneDrain != nil && m.loneDrain.eventID == eventID {
		m.loneDrain = nil
	}
	s.queue.Add(m.group.key, true)
}

// consequenceDurable reports whether the notice's consequence is durable.
func (m *member) consequenceDurable(eventID string) bool {
	if m.rec.Deleting != nil || notices.Find(m.rec.Advice, eventID) >= 0 {
		return true
	}
	recorded := notices.Find(m.rec.Notices, eventID) >= 0
	if m.rec.Drain == nil || recorded && (m.outOfService() || m.rec.Asleep()) { // where nothing follows yet it is enough that the next leader will know
		return recorded
	}
	for _, c := range m.rec.Drain.Causes {
		if c.EventID == eventID {
			return true
		}
	}
	return false
}

func call(f func()) {
	if f != nil {
		f()
	}
}

// recordStandingNotices makes notices durable that the plan does not act on: during a
// freeze, for preserved members, those that were withdrawn after it, and advice.
func (s *shard) recordStandingNotices(g *group, now time.Time) {
	held := s.freezeOf(g) != nil || !g.defined()
	for _, m := range g.members {
		kept := m.state != nstance.Deleting && s.preserved(m, now)
		if m.step != stepNone || !m.durable || m.state.Leaving() && !kept {
			continue
		}
		changed := !notices.Same(m.rec.Notices, m.Standing) && (held || kept || len(m.rec.Notices) > 0)
		if changed || !notices.Same(m.rec.Advice, m.Advice) {
			m.owe(stepWriteNotices)
		}
	}
}

// writeNotices makes the standing notices of m durable.
func (r *Reconciler) writeNotices(ctx context.Context, m *member) error {
	r.mu.Lock()
	standing, advice, known := slices.Clone(m.Standing), slices.Clone(m.Advice), m.rec
	r.mu.Unlock()
	_, err := r.records.Update(ctx, m.id, func(rec *records.Instance) error {
		if rec.Deleting != nil || !sameDecisions(&known, rec) { // a former leader's late write says more
			return errOutdated
		}
		rec.Advice = advice
		rec.StandingNotices(standing, r.opts.Now())
		return nil
	})
	return err
}

// prepareDrain sets what the leader knows about the end of the drain for a notice, when it
// receives it: later knowledge must not move a deadline.
func (m *member) prepareDrain(n *nstance.Notice) {
	n.Warning, n.Margin = 0, m.group.pace.Margin()
	if n.Kind == nstance.Reclaim && n.Deadline.IsZero() {
		n.Warning = m.machine.ReclaimWarning
	}
}
