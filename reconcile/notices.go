package reconcile

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/notice"
)

// forgetNoticeAfter is how long after its deadline a notice is kept for a machine
// that runs, as the provider says.
const forgetNoticeAfter = 10 * time.Minute

// maxNotices is how many notices one instance may have at once: a stolen identity
// can have its own instance replaced, but not fill the memory.
const maxNotices = 16

// handleNotice records a standing or withdrawn notice. It is acknowledged once its
// consequence is durable.
func (s *shard) handleNotice(m *member, f nstance.Noticed) {
	n, ack := f.Notice, f.Ack
	n.EventID = m.eventID(n)
	known := findNotice(m.notices, n.EventID)
	switch {
	case n.Cancelled:
		s.dropAdvice(m, n.EventID)
		s.withdrawNotice(m, known)
		if m.withdrawalIgnored() || !s.consequenceDurable(m, n.EventID) {
			call(ack)
		} else {
			m.addPendingAck(withdrawal+n.EventID, ack)
		}
		return
	case !n.Kind.Dooms():
		s.takeAdvice(m, n)
		if m.state.Leaving() || findNotice(m.advice, n.EventID) < 0 || s.consequenceDurable(m, n.EventID) {
			call(ack)
		} else {
			m.addPendingAck(n.EventID, ack)
		}
		return
	case slices.Contains(m.droppedNotices, n.EventID):
		call(ack)
		return
	case known < 0 && len(m.notices) >= maxNotices:
		s.publish(m, nstance.Event{Type: nstance.EventNoticeIgnored, Reason: "too many standing notices", Notice: &n})
		call(ack)
		return
	case known < 0:
		s.markRehearsal(m, &n)
		if n.Kind == nstance.Reclaim && !notice.Rehearsed(n) {
			s.admission.Reclaimed(capacityShape(m.rec.Shape), m.zone(), s.opts.Now())
			s.recordReclaim(m, s.opts.Now())
		}
		m.prepareDrain(&n)
		s.receiveNotice(m, &n)
		m.notices = append(m.notices, n)
		e := nstance.Event{Type: nstance.EventNoticeReceived, Notice: &n}
		switch {
		case s.freezeOf(m.group) != nil:
			e.Reason = "frozen: it is recorded, and acted on after the thaw"
		case s.preserved(m, s.opts.Now()):
			e.Reason = "preserved: it is recorded, and acted on when that ends"
		}
		s.publish(m, e)
	case notice.Tightens(n, m.notices[known]):
		m.notices[known].Deadline = n.Deadline
		s.receiveNotice(m, &m.notices[known])
	case s.consequenceDurable(m, n.EventID):
		call(ack)
		return
	}
	m.addPendingAck(n.EventID, ack)
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

// eventID returns the event ID that m has the event of n by: that of the source which
// announced it first.
func (m *member) eventID(n nstance.Notice) string {
	for _, standing := range [][]nstance.Notice{m.notices, m.advice} {
		if findNotice(standing, n.EventID) >= 0 {
			return n.EventID
		}
		for i := range standing {
			if notice.SameEvent(n, standing[i]) {
				m.addAlias(n.EventID, standing[i].EventID)
				return standing[i].EventID
			}
		}
	}
	return m.firstEventID(n.EventID)
}

// firstEventID returns the event ID of the source which announced an event first.
func (m *member) firstEventID(eventID string) string { return cmp.Or(m.aliases[eventID], eventID) }

// addAlias keeps the event ID by which another source announces a known event.
func (m *member) addAlias(eventID, first string) {
	if m.aliases == nil {
		m.aliases = map[string]string{}
	}
	if len(m.aliases) < 2*maxNotices {
		m.aliases[eventID] = first
	}
}

// dropAliases forgets the other event IDs of an event that was withdrawn: what they
// announce next is another event.
func (m *member) dropAliases(first string) {
	maps.DeleteFunc(m.aliases, func(_, f string) bool { return f == first })
}

// receiveNotice sets when a notice was received and when it ends. The provider is
// asked at once about a machine whose deadline has passed: it may be gone.
func (s *shard) receiveNotice(m *member, n *nstance.Notice) {
	n.ReceivedAt = s.opts.Now().UTC().Round(0)
	if !n.Deadline.IsZero() {
		m.endNotice(n.EventID, n.Deadline.Sub(n.ReceivedAt), s.clock.Elapsed())
	}
	if !n.Deadline.IsZero() && !n.Deadline.After(n.ReceivedAt) {
		s.questions.Add(m.id)
	}
}

// withdrawal is the prefix of pending acknowledgements for the end of a notice.
const withdrawal = "withdrawn "

// addPendingAck keeps an acknowledgement until what it confirms is durable.
func (m *member) addPendingAck(what string, ack func()) {
	if ack == nil {
		return
	}
	if m.pendingAcks == nil {
		m.pendingAcks = map[string][]func(){}
	}
	owed := m.pendingAcks[what]
	m.pendingAcks[what] = append(owed[max(0, len(owed)-maxNotices+1):], ack)
}

// withdrawalIgnored reports whether a withdrawal comes too late: the deletion is
// durable, or a notice for the instance was already withdrawn once.
func (m *member) withdrawalIgnored() bool { return m.rec.Deleting != nil || m.rec.Reclaims > 1 }

// withdrawNotice drops a notice, unless one was withdrawn for the instance before: its
// second reclaim is final.
func (s *shard) withdrawNotice(m *member, known int) {
	if known < 0 || m.withdrawalIgnored() {
		return
	}
	for _, ack := range m.pendingAcks[m.notices[known].EventID] {
		call(ack) // nothing is owed for it any more
	}
	delete(m.pendingAcks, m.notices[known].EventID)
	delete(m.noticeEnds, m.notices[known].EventID)
	m.dropAliases(m.notices[known].EventID)
	if m.loneDrain != nil && m.loneDrain.eventID == m.notices[known].EventID {
		m.loneDrain = nil
	}
	m.notices = append(m.notices[:known:known], m.notices[known+1:]...)
	s.queue.Add(m.group.key, true)
}

// consequenceDurable reports whether the notice's consequence is durable.
func (s *shard) consequenceDurable(m *member, eventID string) bool {
	if m.rec.Deleting != nil || findNotice(m.rec.Advice, eventID) >= 0 {
		return true
	}
	recorded := findNotice(m.rec.Notices, eventID) >= 0
	if m.rec.Drain == nil || recorded && m.outOfService() { // where nothing follows yet it is enough that the next leader will know
		return recorded
	}
	for _, c := range m.rec.Drain.Causes {
		if c.EventID == eventID {
			return true
		}
	}
	return false
}

// sendSettledAcks acknowledges each notice whose consequence is durable, and each
// withdrawal after which none is, or that is ignored.
func (s *shard) sendSettledAcks(m *member) {
	for what, acks := range m.pendingAcks {
		id, ends := strings.CutPrefix(what, withdrawal)
		if s.consequenceDurable(m, id) != ends || ends && m.withdrawalIgnored() {
			delete(m.pendingAcks, what)
			for _, ack := range acks {
				call(ack)
			}
		}
	}
}

func findNotice(notices []nstance.Notice, eventID string) int {
	for i, n := range notices {
		if n.EventID == eventID {
			return i
		}
	}
	return -1
}

// dropExpiredNotices drops the notices that the cloud did not act on. The agent may
// go on reporting them: they stay dropped. Elapsed time decides: a recorded deadline
// may be by the wrong clock of a former leader, so it counts as not earlier than the
// moment when this term first reads it.
func (m *member) dropExpiredNotices(now time.Time, elapsed time.Duration) {
	var kept []nstance.Notice
	for _, n := range m.notices {
		if _, known := m.noticeEnds[n.EventID]; !known && !n.Deadline.IsZero() {
			m.endNotice(n.EventID, latest(n.Deadline, now).Sub(now), elapsed)
		}
		if n.Deadline.IsZero() || elapsed < m.noticeEnds[n.EventID] {
			kept = append(kept, n)
			continue
		}
		m.droppedNotices = append(m.droppedNotices[max(0, len(m.droppedNotices)-maxNotices+1):], n.EventID)
		delete(m.noticeEnds, n.EventID)
	}
	m.notices = kept
}

// endNotice records when, in elapsed time, a notice with so much time left is
// dropped if the machine still runs.
func (m *member) endNotice(eventID string, left, elapsed time.Duration) {
	if m.noticeEnds == nil {
		m.noticeEnds = map[string]time.Duration{}
	}
	m.noticeEnds[eventID] = elapsed + left + forgetNoticeAfter
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
		changed := !sameNotices(m.rec.Notices, m.notices) && (held || kept || len(m.rec.Notices) > 0)
		if changed || !sameNotices(m.rec.Advice, m.advice) {
			m.owe(stepWriteNotices)
		}
	}
}

func sameNotices(a, b []nstance.Notice) bool {
	return slices.EqualFunc(a, b, func(x, y nstance.Notice) bool { return notice.Repeats(x, y) && notice.Repeats(y, x) })
}
