package reconcile

import (
	"time"

	"github.com/nstance-go/nstance"
)

// repeatFrom is when a create that seems to have made nothing may be repeated: by
// then the provider shows what it has made. A former leader's call that is still in
// flight does no harm: the same bytes make the same machine.
func (s *shard) repeatFrom(m *member) time.Time {
	return latest(m.createEnd, m.foundAt).Add(s.opts.ConsistencyWindow)
}

// absentFrom is from when on NotFound proves that there is no machine and that
// none will come: one consistency window after the last call that may have made
// it has ended, be it a former leader's. An instance that has registered needed
// no further call.
func (s *shard) absentFrom(m *member) time.Time {
	if !m.mayHaveMachine() {
		return time.Time{}
	}
	end := m.foundAt
	if !end.IsZero() && !m.registered() {
		end = end.Add(s.callTimeout())
	}
	return latest(m.createEnd, end).Add(s.opts.ConsistencyWindow)
}

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
