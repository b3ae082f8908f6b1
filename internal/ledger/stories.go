package ledger

import (
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
)

// maxIgnored is how many ignored notices are kept of one instance in one term: a stolen
// identity must not fill the ledger.
const maxIgnored = 16

// Stories choose what a term writes to its ledger. The methods do not block, and may be
// called concurrently, also under the reconciler's lock.
type Stories struct {
	w *Writer

	mu         sync.Mutex
	registered map[nstance.InstanceID]bool // in this term, and not ready yet
	ignored    map[nstance.InstanceID]int
}

// NewStories returns the stories of one term.
func NewStories(w *Writer) *Stories {
	return &Stories{w: w, registered: map[nstance.InstanceID]bool{}, ignored: map[nstance.InstanceID]int{}}
}

// Ended writes the life of an instance, as loop.LifeKeeper has it.
func (s *Stories) Ended(last records.Instance, replacedBy nstance.InstanceID, at time.Time, done func(error)) {
	life := LifeOf(last, replacedBy, at)
	s.w.Add(Entry{Life: &life}, done)
}

// Event writes what an event says that no record keeps. A new leader journals again
// that members are ready, which is not when they became so.
func (s *Stories) Event(e nstance.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e.Type {
	case nstance.EventRegistered:
		s.registered[e.Instance] = true
	case nstance.EventReady:
		if s.registered[e.Instance] {
			s.w.Add(Entry{Ready: &Ready{ID: e.Instance, Replaces: e.Replaces, At: e.Time}}, nil)
		}
		delete(s.registered, e.Instance)
	case nstance.EventNoticeIgnored:
		if s.ignored[e.Instance]++; e.Notice != nil && s.ignored[e.Instance] <= maxIgnored {
			s.w.Add(Entry{Ignored: &Ignored{ID: e.Instance, Tenant: e.Tenant, Group: e.Group, Notice: *e.Notice, Reason: e.Reason, At: e.Time}}, nil)
		}
	case nstance.EventDeleted:
		delete(s.registered, e.Instance)
		delete(s.ignored, e.Instance)
	}
}
