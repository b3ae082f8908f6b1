package spot

import (
	"reflect"
	"time"

	"github.com/nstance-go/nstance"
)

// maxStanding bounds the notices of one key at a time. No cloud announces as many,
// but a broken service might.
const maxStanding = 128

// A noticeDedup remembers what one key has announced and returns what has changed
// in a reading. It is pure, without a clock.
type noticeDedup struct {
	standing     map[string]announcement // by event ID; cancelled ones too, while the cloud still lists them
	ignored      map[string]time.Time    // deadlines that were past when the watch began, by event ID
	fullyReadYet bool                    // after a complete reading every new notice is yielded
}

// An announcement is one notice by the cloud's clock, and as it was yielded, by
// the machine's clock.
type announcement struct{ read, yielded nstance.Notice }

func newNoticeDedup() *noticeDedup {
	return &noticeDedup{standing: map[string]announcement{}, ignored: map[string]time.Time{}}
}

// update takes all notices of a reading. It returns what to yield: new and changed
// notices first, then withdrawn ones, so that a machine whose notice is replaced
// by another always has one. It also returns the notices that are ignored because
// their deadline was past when the watch began. An incomplete reading, of which a
// part was unreadable, withdraws nothing.
func (l *noticeDedup) update(seen []nstance.Notice, complete bool, at instant) (changes, late []nstance.Notice) {
	present := map[string]bool{}
	for _, n := range seen {
		past, ignored := l.ignored[n.EventID]
		if present[n.EventID] || ignored && past.Equal(n.Deadline) {
			present[n.EventID] = true
			continue
		}
		present[n.EventID] = true
		switch changed, stale := l.enter(n, at); {
		case stale:
			late = append(late, n)
		case changed:
			changes = append(changes, l.standing[n.EventID].yielded)
		}
	}
	if complete {
		changes = append(changes, l.drop(present)...)
		l.fullyReadYet = true
	}
	return changes, late
}

// enter records one notice and reports whether it changed, or was past its
// deadline when the watch began: a failed termination leaves its old time in the
// document (EC2 user guide, "Spot Instance interruption notices"). A notice that
// appears later is new, however late it is. An unchanged deadline is converted to
// the machine's clock only once.
func (l *noticeDedup) enter(n nstance.Notice, at instant) (changed, stale bool) {
	known, found := l.standing[n.EventID]
	yielded := n
	switch {
	case found && reflect.DeepEqual(n, known.read):
		return false, false
	case found:
		yielded.DetectedAt = known.yielded.DetectedAt
	case len(l.standing)+len(l.ignored) >= maxStanding:
		return false, false
	case !l.fullyReadYet && !n.Deadline.IsZero() && !n.Deadline.After(at.cloud):
		l.ignored[n.EventID] = n.Deadline
		return false, true
	default:
		yielded.DetectedAt = at.local
	}
	if yielded.Deadline = at.localOf(n.Deadline); found && n.Deadline.Equal(known.read.Deadline) {
		yielded.Deadline = known.yielded.Deadline
	}
	l.standing[n.EventID] = announcement{n, yielded}
	delete(l.ignored, n.EventID)
	return true, false
}

// drop removes notices that are no longer announced and returns the withdrawals.
func (l *noticeDedup) drop(present map[string]bool) (withdrawn []nstance.Notice) {
	for id, a := range l.standing {
		if present[id] {
			continue
		}
		delete(l.standing, id)
		if !a.yielded.Cancelled {
			a.yielded.Cancelled = true
			withdrawn = append(withdrawn, a.yielded)
		}
	}
	for id := range l.ignored {
		if !present[id] {
			delete(l.ignored, id)
		}
	}
	return withdrawn
}
