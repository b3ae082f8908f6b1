package reconcile

import (
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/internal/wallclock"
)

// repeatFrom is when a create that seems to have made nothing may be repeated: by
// then the provider shows what it has made. A former leader's call that is still in
// flight does no harm: the same bytes make the same machine.
func (s *shard) repeatFrom(m *member) time.Time {
	return latest(m.lastCreateEnd, m.inheritedAt).Add(s.opts.ConsistencyWindow)
}

// absenceProvenAt is from when on NotFound proves that there is no machine and that
// none will come: one consistency window after the last call that may have made
// it has ended, be it a former leader's. No call is sent for an instance that has
// registered.
func (s *shard) absenceProvenAt(m *member) time.Time {
	if !m.mayHaveMachine() {
		return time.Time{}
	}
	end := m.inheritedAt
	if !end.IsZero() && !m.registered() {
		end = end.Add(s.callTimeout())
	}
	from := latest(m.lastCreateEnd, end).Add(s.opts.ConsistencyWindow)
	if recorded := s.absentOnRecord(m); !recorded.IsZero() && recorded.Before(from) && s.reached(recorded, s.opts.Now()) {
		return recorded
	}
	return from
}

// absentOnRecord is that by the record of an instance that is being deleted, so that its
// deletion ends although every term is short; zero: the record does not say. No call is sent
// after the instance has registered, or once its deletion is durable.
func (s *shard) absentOnRecord(m *member) time.Time {
	switch {
	case m.rec.Deleting == nil || !m.lastCreateEnd.IsZero():
		return time.Time{}
	case m.registered():
		return m.rec.RegisteredAt.Add(s.opts.ConsistencyWindow + clocksApart)
	}
	return m.rec.Deleting.At.Add(s.callTimeout() + s.opts.ConsistencyWindow + clocksApart)
}

// clocksApart is how far the clocks of two leaders may be apart while both are trusted.
const clocksApart = 2 * wallclock.Limit

// checkMarks fails with Conflict, and raises an alarm, unless a machine carries
// the ID and the marks of m.
func (s *shard) checkMarks(m *member, mach nstance.Machine) error {
	if mach.ID == m.id && s.opts.ownerOf(m).Owns(mach.Owner) {
		return nil
	}
	s.alarmContested(m, nstance.Event{Reason: "machine " + mach.ProviderID + " of another owner carries this instance's ID; it was left alone"})
	return nstance.Errorf(nstance.Conflict, "machine %s belongs to another owner", mach.ProviderID)
}

// alarmContested raises an alarm about the machine of m, once in a term. It needs
// the lock.
func (s *shard) alarmContested(m *member, e nstance.Event) {
	if m.published.contested {
		return
	}
	m.published.contested = true
	e.Type = nstance.EventAlarm
	s.publish(m, e)
}
