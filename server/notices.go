package server

import (
	"slices"

	"github.com/nstance-go/nstance"
)

// Bounds on the notices of one session. A stolen identity can doom its own
// instance and nothing else, so all that is left to it is to say much.
const (
	maxTold     = 32  // announcements, by event ID
	maxTellings = 256 // of them, with their changes
	maxOwed     = 8   // numbers under which a repeated one is acknowledged
)

// hearsay is what an agent has told of notices in one session. A repeat adds
// nothing to what is known already, so it goes no further.
type hearsay struct {
	byEvent  map[string]*telling
	tellings int
	excess   bool // there were too many
}

// A telling is one announcement in its latest form.
type telling struct {
	notice  nstance.Notice
	owed    []uint64 // messages to acknowledge once its consequence is durable
	settled bool
}

// take decides what a message says: fresh is something new to be passed on;
// otherwise ack says whether it is to be acknowledged at once, and else it
// waits with the message that it repeats.
func (h *hearsay) take(number uint64, n nstance.Notice) (fresh *telling, ack bool) {
	t := h.byEvent[n.EventID]
	if t != nil && repeats(t.notice, n) {
		if !t.settled {
			t.owed = append(t.owed[max(0, len(t.owed)-maxOwed+1):], number)
		}
		return nil, t.settled
	}
	if h.tellings >= maxTellings || !h.admit(n.EventID) {
		h.excess = true
		return nil, true
	}
	h.tellings++
	t = &telling{notice: n, owed: []uint64{number}}
	h.byEvent[n.EventID] = t
	return t, false
}

// admit makes room for an announcement, or reports that there is none.
func (h *hearsay) admit(eventID string) bool {
	if _, ok := h.byEvent[eventID]; ok {
		return true
	}
	if len(h.byEvent) >= maxTold {
		return false
	}
	if h.byEvent == nil {
		h.byEvent = map[string]*telling{}
	}
	h.byEvent[eventID] = &telling{}
	return true
}

// repeats reports whether n says nothing that known does not. Deadlines only
// tighten.
func repeats(known, n nstance.Notice) bool {
	return known.Kind == n.Kind && known.Action == n.Action && known.Source == n.Source && known.Cancelled == n.Cancelled &&
		!n.Tightens(known) && known.NotBefore.Equal(n.NotBefore)
}

// notice passes on what is new, and acknowledges it once that has had its
// effect.
func (s *session) notice(number uint64, n nstance.Notice) {
	s.mu.Lock()
	had := s.told.excess
	fresh, ack := s.told.take(number, n)
	excess := s.told.excess && !had
	s.mu.Unlock()
	switch {
	case fresh != nil:
		s.term.noticed(s.id, n, func() { s.settle(fresh) })
	case ack:
		s.acknowledge(number)
	}
	if excess {
		s.term.log.Warn("too many notices in one session, the rest is dropped", "instance_id", s.id)
	}
}

// settle acknowledges every message that told t.
func (s *session) settle(t *telling) {
	s.mu.Lock()
	owed := t.owed
	t.owed, t.settled = nil, true
	s.mu.Unlock()
	for _, number := range owed {
		s.acknowledge(number)
	}
}

// report passes on a report with those of its notices that the session has
// room for.
func (s *session) report(r nstance.Report) {
	s.mu.Lock()
	r.Notices = slices.DeleteFunc(r.Notices, func(n nstance.Notice) bool { return !s.told.admit(n.EventID) })
	s.mu.Unlock()
	s.term.reported(s.filesReported(r))
}
