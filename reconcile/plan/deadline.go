package plan

import (
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/groupspec"
)

// drainEnd returns when a drain in progress ends: as recorded, unless this
// term has planned that end and knows better how much time has elapsed since.
func (m *Member) drainEnd() time.Time {
	if !m.DrainBy.IsZero() {
		return m.DrainBy
	}
	return m.Drain.Deadline
}

// shortestDrain is what a machine has that still runs although a notice said that it would
// not: after a freeze, for instance. A drain until a moment that has passed is none.
const shortestDrain = 20 * time.Second

// drainFromNow returns when a drain of m for these causes ends that begins now.
func (c *Census) drainFromNow(m *Member, causes []nstance.Cause) time.Time {
	end := c.tightest(m, c.now.Add(groupspec.DrainLimit(&c.Group, causes)))
	if least := c.now.Add(min(shortestDrain, c.Group.DrainTimeout)); end.Before(least) && c.pastNotice(m) {
		return least
	}
	return end
}

// pastNotice reports whether the cloud has not acted on what it announced for m.
func (c *Census) pastNotice(m *Member) bool {
	return slices.ContainsFunc(m.Notices, func(n nstance.Notice) bool {
		by := n.DrainBy(c.now)
		return !n.Cancelled && !by.IsZero() && !by.After(c.now)
	})
}

// tightest returns when m's drain must end: limit, or earlier if a notice says so.
func (c *Census) tightest(m *Member, limit time.Time) time.Time {
	for _, n := range m.Notices {
		if by := n.DrainBy(c.now); !n.Cancelled && !by.IsZero() && by.Before(limit) {
			limit = by
		}
	}
	return limit
}
