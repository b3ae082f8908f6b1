package plan

import (
	"time"

	"github.com/nstance-go/nstance"
)

const (
	// noticeMargin is kept between a drain's end and the cloud's deadline, so
	// that the end is ours.
	noticeMargin = 10 * time.Second

	// shortestWarning is assumed for a reclaim that names no deadline: 30 s is
	// what Google Compute Engine leaves between the signal and power-off
	// (cloud.google.com/compute/docs/instances/spot, "Preemption process"), and
	// no supported cloud announces less.
	shortestWarning = 30 * time.Second
)

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
	for i := range m.Notices {
		end := noticeEnd(&m.Notices[i], c.now)
		if m.Notices[i].Cancelled || end.IsZero() {
			continue
		}
		if d := drainEnd(end, c.now); d.Before(limit) {
			limit = d
		}
	}
	return limit
}

// noticeEnd returns when the cloud takes the machine, estimated for a reclaim
// without a deadline, zero where nothing is known. A machine that still runs when
// a notice arrives too late is drained now, in the shortest time that any cloud
// leaves: a deadline in the past would be no drain at all.
func noticeEnd(n *nstance.Notice, now time.Time) time.Time {
	end := n.Deadline
	switch {
	case !end.IsZero():
	case n.Kind != nstance.Reclaim:
		return time.Time{}
	case n.DetectedAt.IsZero():
		end = now.Add(shortestWarning)
	default:
		end = n.DetectedAt.Add(shortestWarning)
	}
	if !end.After(n.ReceivedAt) {
		end = n.ReceivedAt.Add(shortestWarning)
	}
	return end
}

// drainEnd returns when to end a drain before end: 10 s earlier, or a third of
// what is left if that is less.
func drainEnd(end, now time.Time) time.Time {
	left := end.Sub(now)
	if left <= 0 {
		return now
	}
	return end.Add(-min(noticeMargin, left/3))
}
