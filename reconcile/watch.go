package reconcile

import (
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/health"
)

// askProvider has the provider asked about the members of g whose state only it
// knows, and returns when that may next be due.
func (s *shard) askProvider(g *group, now time.Time) (next time.Time) {
	for _, m := range g.members {
		verdict, at := s.evaluateHealth(m, now)
		if verdict == health.AskProvider || !m.missingSince.IsZero() && !m.gone {
			s.questions.Add(m.id)
		}
		next = earliest(next, at, s.askAfterBreak(m, now), s.askWhileBooting(m, now))
		if verdict == health.Unhealthy {
			next = earliest(next, now.Add(s.health.Interval/4)) // others may report meanwhile
		}
	}
	return next
}

// afterBreak are when to ask about a machine again whose stream broke although
// the provider said that it runs: a cloud may take a moment to notice that it
// does not any more.
var afterBreak = [...]time.Duration{time.Second, 3 * time.Second, 10 * time.Second}

// askAfterBreak asks about a machine whose stream broke when that is due, until
// it is answered, and returns when it is due next.
func (s *shard) askAfterBreak(m *member, now time.Time) time.Time {
	if m.streamBrokenAt.IsZero() || m.gone || m.state != nstance.Booting || m.queriesAfterBreak >= len(afterBreak) {
		return time.Time{}
	}
	if due := m.streamBrokenAt.Add(afterBreak[m.queriesAfterBreak]); now.Before(due) {
		return due
	}
	s.questions.Add(m.id) // until there is an answer, which is followed by a plan
	return time.Time{}
}

// countQueriesAfterBreak counts the queries after a break that are answered by a call
// that was sent then.
func (m *member) countQueriesAfterBreak(asked time.Time) {
	for !m.streamBrokenAt.IsZero() && m.queriesAfterBreak < len(afterBreak) && !asked.Before(m.streamBrokenAt.Add(afterBreak[m.queriesAfterBreak])) {
		m.queriesAfterBreak++
	}
}

// whileBooting is how often the provider is asked about a machine whose agent has
// not registered yet: nothing else shows that it was taken.
const whileBooting = 30 * time.Second

// askWhileBooting asks about a machine that boots when that is due, and returns
// when it is due next.
func (s *shard) askWhileBooting(m *member, now time.Time) time.Time {
	if m.registered() || !m.machineKnown() || m.gone || m.state != nstance.Booting {
		return time.Time{}
	}
	if due := latest(m.machineSince, m.answeredAt).Add(whileBooting); now.Before(due) {
		return due
	}
	s.questions.Add(m.id)
	return time.Time{}
}
