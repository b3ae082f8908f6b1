package spot

import (
	"sync"

	"github.com/nstance-go/nstance"
)

// A history is what the next watch of a detector continues. It is safe for concurrent
// use.
type history struct {
	mu       sync.Mutex
	standing []nstance.Notice
}

// resume sets the history of the next watch.
func (h *history) resume(standing []nstance.Notice) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.standing = append([]nstance.Notice(nil), standing...)
}

// take returns the history and clears it.
func (h *history) take() []nstance.Notice {
	h.mu.Lock()
	defer h.mu.Unlock()
	standing := h.standing
	h.standing = nil
	return standing
}

// Resume gives the next Watch the notices that an earlier one yielded, with times by
// the machine's clock: what is not announced any more is yielded as Cancelled, and a
// deadline that has passed meanwhile is not stale. Notices of other sources are
// ignored. It may be called concurrently.
func (a *AWS) Resume(standing []nstance.Notice) { a.history.resume(standing) }

// Resume gives the next Watch the notices that an earlier one yielded: see AWS.Resume.
func (g *GCP) Resume(standing []nstance.Notice) { g.history.resume(standing) }

// Resume gives the next Watch the notices that an earlier one yielded: see AWS.Resume.
func (a *Azure) Resume(standing []nstance.Notice) { a.history.resume(standing) }

// resume makes the notices of a source stand, as if they had been yielded. How the
// cloud's clock gave their times is not known: the first reading yields them again.
func (l *noticeDedup) resume(standing []nstance.Notice, source string) {
	for _, n := range standing {
		if n.Source == source && !n.Cancelled && len(l.standing) < maxStanding {
			l.standing[n.EventID] = announcement{yielded: n}
		}
	}
}
