package nstance

import (
	"cmp"
	"time"
)

// A Notice is a cloud's announcement about one machine, in one form for all
// clouds. Equal EventIDs mean the same announcement, whenever it was seen.
//
// Deadline and DetectedAt are by the clock of the process that holds the notice.
// Between processes they are sent as durations, because a machine's clock may be
// wrong by hours.
type Notice struct {
	Kind       NoticeKind `json:"kind"`
	Action     string     `json:"action,omitempty"`    // the cloud's word: terminate, stop, hibernate
	Deadline   time.Time  `json:"deadline,omitzero"`   // zero where the cloud gives none
	NotBefore  time.Time  `json:"not_before,omitzero"` // earliest start of planned maintenance, by the cloud's clock
	Source     string     `json:"source"`              // such as aws/spot; a third part names another way by which the same is announced
	EventID    string     `json:"event_id"`
	DetectedAt time.Time  `json:"detected_at"`
	ReceivedAt time.Time  `json:"received_at,omitzero"` // by the leader, in its present form
	Cancelled  bool       `json:"cancelled,omitempty"`  // the cloud withdrew the event with this ID

	// Machines are all that the event names, as the cloud names them, where an
	// acknowledgement starts the event for each of them at once. Empty where nothing can
	// be acknowledged.
	Machines []string `json:"machines,omitempty"`

	// Warning is how long before the end of the machine such a notice is announced, if
	// it names no deadline and the leader knows: Machine.ReclaimWarning. It is no
	// deadline of the cloud.
	Warning time.Duration `json:"warning,omitempty"`

	// Margin is how long before the end of the machine a drain for this notice ends, as
	// the leader has learned from earlier deletions; 0: 10 s.
	Margin time.Duration `json:"margin,omitempty"`
}

const (
	// drainMargin is kept between a drain's end and the cloud's deadline, so that
	// the end is ours, unless the notice says how long that takes.
	drainMargin = 10 * time.Second

	// shortestWarning is assumed for a reclaim that names no deadline: 30 s is
	// what Google Compute Engine leaves between the signal and power-off
	// (cloud.google.com/compute/docs/instances/spot, "Preemption process") unless
	// the machine has an advance notice, and no supported cloud announces less.
	shortestWarning = 30 * time.Second
)

// DrainBy returns when a drain for the notice must end: the margin before the cloud takes
// the machine, or a third of the time left if that is less. For a reclaim without a
// deadline the cloud's time is estimated; for other kinds without one DrainBy is zero.
// A machine that still runs when a notice is received too late is drained in the
// shortest time that any cloud leaves: a deadline in the past would be no drain at all.
func (n Notice) DrainBy(now time.Time) time.Time {
	end := n.end(now)
	left := end.Sub(now)
	if end.IsZero() || left > 0 {
		return end.Add(-min(cmp.Or(n.Margin, drainMargin), max(0, left/3))) // not from now: the result must not move with each call
	}
	return now
}

// end returns when the cloud takes the machine, as far as is known.
func (n Notice) end(now time.Time) time.Time {
	end, warning := n.Deadline, cmp.Or(n.Warning, shortestWarning)
	switch {
	case !end.IsZero():
	case n.Kind != Reclaim:
		return time.Time{}
	case n.DetectedAt.IsZero():
		end = now.Add(warning)
	default:
		end = n.DetectedAt.Add(warning)
	}
	if !end.After(n.ReceivedAt) {
		end = n.ReceivedAt.Add(shortestWarning)
	}
	return end
}

// A NoticeKind says what a notice means for the machine.
type NoticeKind string

// The kinds. Only a reclaim dooms a machine by itself.
const (
	Reclaim     NoticeKind = "reclaim"     // the capacity is taken back
	Rebalance   NoticeKind = "rebalance"   // a reclaim has become likely
	Maintenance NoticeKind = "maintenance" // planned work on the host
	Stop        NoticeKind = "stop"        // the machine is being stopped through the cloud's API
	Terminate   NoticeKind = "terminate"   // the machine is being deleted through the cloud's API
)

// Dooms reports whether the machine will be gone whatever its owner does.
func (k NoticeKind) Dooms() bool { return k == Reclaim || k == Stop || k == Terminate }
