package plan

import "time"

// drainEnd returns when a drain in progress ends: as recorded, unless this
// term has planned that end and knows better how much time has elapsed since.
func (m *Member) drainEnd() time.Time {
	if !m.DrainBy.IsZero() {
		return m.DrainBy
	}
	return m.Drain.Deadline
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
