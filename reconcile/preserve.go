package reconcile

import (
	"time"

	"github.com/nstance-go/nstance"
)

// preserved reports whether m is kept for inspection at now. The end is found only
// while the clock can be trusted.
func (s *shard) preserved(m *member, now time.Time) bool {
	return m.preserve != nil && !m.preserveExpired && (now.Before(m.preserve.Until) || s.clock.Distrust() != "")
}

// endPreserves ends the preservation of members of g whose time is over, which is
// final, and returns when the next one ends.
func (s *shard) endPreserves(g *group, now time.Time) (next time.Time) {
	for _, m := range g.members {
		switch {
		case m.preserve == nil:
		case s.preserved(m, now):
			next = earliest(next, m.preserve.Until)
		default:
			m.preserveExpired = true
		}
	}
	return next
}

// removalRequest returns the request to remove m. The end of its preservation is one.
func (s *shard) removalRequest(m *member, now time.Time) *nstance.Cause {
	if m.preserve == nil || s.preserved(m, now) {
		return m.removalCause
	}
	return &nstance.Cause{Kind: nstance.CauseRequest, Message: "it was preserved until " + m.preserve.Until.Format(time.RFC3339)}
}
