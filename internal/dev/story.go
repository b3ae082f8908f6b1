package dev

import (
	"context"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// maxEvents bounds what a story holds: far more than any scenario tells.
const maxEvents = 1 << 17

// A story is what has happened: it takes events from the server, hands them to
// a printer one by one, and lets a scenario wait for what it is about.
type story struct {
	now func() time.Time

	mu      sync.Mutex
	events  history
	forget  bool          // there is no stage to wait for: printed events may be dropped
	lost    int           // events that there was no room for
	changed chan struct{} // closed, and replaced, when something above changes
}

func newStory(forget bool) *story {
	return &story{now: time.Now, forget: forget, changed: make(chan struct{})}
}

// tell adds an event. It does not block and may be called concurrently.
func (s *story) tell(e nstance.Event) {
	if e.Time.IsZero() {
		e.Time = s.now().UTC()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.events) >= maxEvents {
		s.lost++
	} else {
		s.events = append(s.events, e)
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// read returns what has been told, and what closes when there is more.
func (s *story) read() (told history, lost int, more <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.events[:len(s.events):len(s.events)], s.lost, s.changed
}

// print hands every event to out, in order, until ctx ends and all that was
// told before has been printed, or out fails.
func (s *story) print(ctx context.Context, out func(nstance.Event) error) error {
	for next := 0; ; {
		told, _, more := s.read()
		for _, e := range told[min(next, len(told)):] {
			if err := out(e); err != nil {
				return err
			}
		}
		next = s.printed(len(told))
		select {
		case <-more:
		case <-ctx.Done():
			if told, _, _ = s.read(); len(told) <= next {
				return nil
			}
		}
	}
}

// printed takes note that the first n events are out, and returns how many of
// those are still in the story.
func (s *story) printed(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.forget {
		return n
	}
	s.events, s.lost = append(history(nil), s.events[n:]...), 0
	return 0
}

// await blocks until done says so of what has been told, or ctx ends. An error
// of done ends it too.
func (s *story) await(ctx context.Context, done func(history) (bool, error)) error {
	for {
		told, lost, more := s.read()
		if lost > 0 {
			return nstance.Errorf(nstance.Internal, "%d events were lost: more than %d in one story", lost, maxEvents)
		}
		if ok, err := done(told); ok || err != nil {
			return err
		}
		select {
		case <-more:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// A history is events in the order in which they became known.
type history []nstance.Event

// An index finds the first event of a type about an instance, or about the
// replacement of one.
type index struct{ about, replacing map[indexKey]nstance.Event }

type indexKey struct {
	t  nstance.EventType
	id nstance.InstanceID
}

func (h history) index() index {
	x := index{map[indexKey]nstance.Event{}, map[indexKey]nstance.Event{}}
	var fresh, retired []nstance.InstanceID                // of a rollout
	follows := map[nstance.InstanceID]nstance.InstanceID{} // whose replacement an instance is; a later leader does not say it again
	for _, e := range h {
		if e.Replaces == "" {
			e.Replaces = follows[e.Instance]
		} else {
			follows[e.Instance] = e.Replaces
		}
		keep(x.about, indexKey{e.Type, e.Instance}, e)
		switch {
		case e.Type == nstance.EventDrainStarted && e.Drain != nil && e.Drain.Voluntary: // also of one that replaced another before
			retired = append(retired, e.Instance)
		case e.Replaces != "":
			keep(x.replacing, indexKey{e.Type, e.Replaces}, e)
		case e.Type == nstance.EventCreateRequested && e.Reason == string(plan.ReasonRollout):
			fresh = append(fresh, e.Instance)
		}
	}
	x.pair(fresh, retired)
	return x
}

// pair makes the nth that a rollout created the replacement of the nth that it
// retired: it names none.
func (x index) pair(fresh, retired []nstance.InstanceID) {
	for i := range min(len(fresh), len(retired)) {
		x.replacing[indexKey{nstance.EventReplacementRequested, retired[i]}] = x.about[indexKey{nstance.EventCreateRequested, fresh[i]}]
		if e, ok := x.about[indexKey{nstance.EventReady, fresh[i]}]; ok {
			x.replacing[indexKey{nstance.EventReady, retired[i]}] = e
		}
	}
}

func keep(m map[indexKey]nstance.Event, k indexKey, e nstance.Event) {
	if _, ok := m[k]; !ok {
		m[k] = e
	}
}

// has reports whether any event is of that type.
func (h history) has(t nstance.EventType) bool {
	for _, e := range h {
		if e.Type == t {
			return true
		}
	}
	return false
}

// ready returns the instances that became ready and have not begun to leave,
// in the order in which they became so.
func (h history) ready() []nstance.InstanceID {
	var ids []nstance.InstanceID
	for _, e := range h {
		if e.Type == nstance.EventReady {
			ids = append(ids, e.Instance)
		}
	}
	left := map[nstance.InstanceID]bool{}
	for _, e := range h {
		left[e.Instance] = left[e.Instance] || leaves(e.Type)
	}
	stay := ids[:0]
	for _, id := range ids {
		if !left[id] {
			stay = append(stay, id)
		}
	}
	return stay
}

// leaves reports whether an instance no longer serves after such an event.
func leaves(t nstance.EventType) bool {
	switch t {
	case nstance.EventDrainStarted, nstance.EventMachineGone, nstance.EventDeleteRequested, nstance.EventDeleted:
		return true
	}
	return false
}

// requested returns every instance that was asked for.
func (h history) requested() []nstance.InstanceID {
	var ids []nstance.InstanceID
	for _, e := range h {
		if e.Type == nstance.EventCreateRequested || e.Type == nstance.EventReplacementRequested {
			ids = append(ids, e.Instance)
		}
	}
	return ids
}
