package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
)

// A story tells what the reconciler's journal says, with short names.
type story struct {
	out    io.Writer
	began  time.Time
	events chan nstance.Event
	known  []nstance.InstanceID
}

func newStory(out io.Writer) *story {
	return &story{out: out, began: time.Now(), events: make(chan nstance.Event, 1024)}
}

// journal takes an event. It is called under the reconciler's lock: it must
// neither wait nor ask the reconciler anything.
func (s *story) journal(e nstance.Event) {
	select {
	case s.events <- e:
	default: // there is no reader any more
	}
}

// tell prints events until each match has had one.
func (s *story) tell(ctx context.Context, matches ...func(nstance.Event) bool) error {
	for len(matches) > 0 {
		select {
		case <-ctx.Done():
			return fmt.Errorf("the story did not come to its end: %w", context.Cause(ctx))
		case e := <-s.events:
			s.event(e)
			matches = slices.DeleteFunc(matches, func(match func(nstance.Event) bool) bool { return match(e) })
		}
	}
	return nil
}

func (s *story) event(e nstance.Event) {
	line := string(e.Type)
	if e.Instance != "" {
		line = s.name(e.Instance) + " " + line
	}
	if e.Replaces != "" {
		line += " for " + s.name(e.Replaces)
	}
	if e.Drain != nil && e.Type == nstance.EventDrainStarted {
		line += fmt.Sprintf(", %.0fs left", e.Drain.Deadline.Sub(e.Time).Seconds())
	}
	s.say("%s", line)
}

func (s *story) say(format string, args ...any) {
	fmt.Fprintf(s.out, "%5.2fs  %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

// name returns web-1, web-2 and so on, in order of appearance.
func (s *story) name(id nstance.InstanceID) string {
	i := slices.Index(s.known, id)
	if i < 0 {
		i, s.known = len(s.known), append(s.known, id)
	}
	return fmt.Sprintf("%s-%d", id.Kind(), i+1)
}
