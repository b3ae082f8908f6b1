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
	standing map[string]announcement // by event ID; the cancelled ones too, while the cloud still lists them
	ignored  map[string]time.Time    // past these deadlines when the watch began
	watching bool                    // there has been a complete reading: what appears now is new
}

// An announcement is one notice as the cloud dates it and as it was yielded, by
// the machine's own clock.
type announcement struct{ read, yielded nstance.Notice }

func newLedger() *ledger {
	return &ledger{standing: map[string]announcement{}, ignored: map[string]time.Time{}}
}

// update takes everything that a reading found. It returns what to tell: new
// and changed notices first, then the withdrawn ones, so that a machine with
// one notice in place of another is never without; and the notices that are
// ignored because they were too late when the watch began. A reading that is not complete, because
// part of it was unreadable, withdraws nothing.
func (l *ledger) update(seen []nstance.Notice, complete bool, at instant) (news, late []nstance.Notice) {
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
			news = append(news, l.standing[n.EventID].yielded)
		}
	}
	if complete {
		news = append(news, l.drop(present)...)
		l.watching = true
	}
	return news, late
}

// enter records one notice and reports whether it says something new, or was
// past its deadline when the watch began: a termination that failed leaves its
// old time behind (EC2 user guide, "Spot Instance interruption notices"). What
// appears while the key is watched is new, however late it is. An unchanged
// deadline keeps the place that it got in the machine's time at first sight.
func (l *ledger) enter(n nstance.Notice, at instant) (changed, stale bool) {
	known, found := l.standing[n.EventID]
	yielded := n
	switch {
	case found && n == known.read:
		return false, false
	case found:
		yielded.DetectedAt = known.yielded.DetectedAt
	case len(l.standing)+len(l.ignored) >= maxStanding:
		return false, false
	case !l.watching && !n.Deadline.IsZero() && !n.Deadline.After(at.cloud):
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

// drop forgets what is no longer there and returns the withdrawals.
func (l *ledger) drop(present map[string]bool) (withdrawn []nstance.Notice) {
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
