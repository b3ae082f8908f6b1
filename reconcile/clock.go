package reconcile

import (
	"context"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/sleep"
)

// updateClock finds out whether the wall clock can be trusted. While it cannot,
// nothing goes because of the time in a record: it is asked before any member is
// judged.
func (s *shard) updateClock() {
	if !s.clock.Look() {
		return
	}
	e := nstance.Event{Type: eventtype.ClockRight, Time: s.opts.Now().UTC(), Reason: "deletes by deadline and for age go on"}
	if why := s.clock.Distrust(); why != "" {
		e.Type, e.Reason = eventtype.ClockWrong, why+"; deletes by deadline and for age wait"
		s.log.Warn("this server's clock cannot be trusted, deletes by deadline and for age wait", "reason", why)
	} else {
		s.log.Info("this server's clock can be trusted again, deletes by deadline and for age go on")
	}
	s.opts.Journal(e)
	s.places.TrustClock(s.clock.Distrust() == "")
	if len(s.places.AvoidedPools.All()) > 0 {
		s.avoidanceChanged(s.opts.Now())
	}
	for key := range s.groups {
		s.queue.Add(key, false)
	}
}

// clockRight looks at the clock, and reports whether the time in a record may
// decide something. Whatever now it is about was read before.
func (s *shard) clockRight() bool {
	s.updateClock()
	return s.clock.Distrust() == ""
}

// reached reports whether an instant on record has come. Every comparison of one with the
// present that ends something goes through here: while the clock cannot be trusted, none
// has come, because what it ends stays ended.
func (s *shard) reached(at, now time.Time) bool { return !now.Before(at) && s.clockRight() }

// reachedBy returns reached as of now.
func (s *shard) reachedBy(now time.Time) func(at time.Time) bool {
	return func(at time.Time) bool { return s.reached(at, now) }
}

// lookAgainAt returns when an instant that is not reached may be; zero: when the clock is
// right again, which has every group planned.
func lookAgainAt(at, now time.Time) time.Time {
	if at.After(now) {
		return at
	}
	return time.Time{}
}

const (
	heartbeat = 5 * time.Second
	// longPause is the longest gap between two heartbeats that a loaded machine
	// explains.
	longPause = 3 * heartbeat
)

// heartbeat records regularly that this process runs, and checks the clock.
func (r *Reconciler) heartbeat(ctx context.Context) {
	for sleep.For(ctx, heartbeat) {
		r.mu.Lock()
		r.detectPause(r.opts.Now())
		r.updateClock()
		r.mu.Unlock()
	}
}

// detectPause detects that this process did not run for a while. What agents sent
// meanwhile is still in its buffers, so no member is silent for that time: each has a
// whole interval again. A pause in which the lease was lost needs no such care: the
// next term begins anew. It runs before health is evaluated.
func (s *shard) detectPause(now time.Time) {
	gap := now.Sub(s.heartbeatAt)
	began := s.heartbeatAt.IsZero()
	s.heartbeatAt = now
	if began || gap <= longPause {
		return
	}
	s.log.Warn("this process did not run for a while, agents get new grace", "gap", gap)
	for _, m := range s.members {
		m.healthTrack.RestartGrace(now)
	}
	for key := range s.groups {
		s.queue.Add(key, false)
	}
}
