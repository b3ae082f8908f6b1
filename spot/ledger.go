package spot

import (
	"time"

	"github.com/nstance-go/nstance"
)

// maxStanding bounds what one key can have announced at a time. No cloud comes
// near; a service gone mad would.
const maxStanding = 128

// A ledger remembers what one key has announced and says what is new about a
// reading. It is the whole policy of the package: pure, without a clock.
type ledger struct {
	standing map[string]nstance.Notice // by event ID; the cancelled ones too, while the cloud still lists them
	ignored  map[string]bool           // past their deadline at first sight
}

func newLedger() *ledger {
	return &ledger{standing: map[string]nstance.Notice{}, ignored: map[string]bool{}}
}

// update takes everything that a reading found. It returns what to tell: new
// and changed notices first, then the withdrawn ones, so that a machine with
// one notice in place of another is never without; and the notices that are
// ignored because they came too late. A reading that is not complete, because
// part of it was unreadable, withdraws nothing.
func (l *ledger) update(seen []nstance.Notice, complete bool, now time.Time) (news, late []nstance.Notice) {
	present := map[string]bool{}
	for _, n := range seen {
		if present[n.EventID] || l.ignored[n.EventID] {
			present[n.EventID] = true
			continue
		}
		present[n.EventID] = true
		switch changed, stale := l.enter(n, now); {
		case stale:
			late = append(late, n)
		case changed:
			news = append(news, l.standing[n.EventID])
		}
	}
	if complete {
		news = append(news, l.drop(present)...)
	}
	return news, late
}

// enter records one notice and reports whether it says something new, or comes
// too late to be believed: a termination that failed leaves its old time
// behind (EC2 user guide, "Spot Instance interruption notices").
func (l *ledger) enter(n nstance.Notice, now time.Time) (changed, stale bool) {
	known, found := l.standing[n.EventID]
	switch {
	case !found && len(l.standing)+len(l.ignored) >= maxStanding:
		return false, false
	case !found && !n.Deadline.IsZero() && !n.Deadline.After(now):
		l.ignored[n.EventID] = true
		return false, true
	case found:
		n.DetectedAt = known.DetectedAt
	default:
		n.DetectedAt = now
	}
	l.standing[n.EventID] = n
	return n != known, false
}

// drop forgets what is no longer there and returns the withdrawals.
func (l *ledger) drop(present map[string]bool) (withdrawn []nstance.Notice) {
	for id, n := range l.standing {
		if present[id] {
			continue
		}
		delete(l.standing, id)
		if !n.Cancelled {
			n.Cancelled = true
			withdrawn = append(withdrawn, n)
		}
	}
	for id := range l.ignored {
		if !present[id] {
			delete(l.ignored, id)
		}
	}
	return withdrawn
}
