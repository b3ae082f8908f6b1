package reconcile

import (
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/storage"
)

const (
	// clockLimit is how far this server's wall clock may be off before deletes
	// by deadline and for age wait.
	clockLimit = 30 * time.Second

	// clockCalm is how long it must be right again before they go on. Where
	// servers of one storage disagree about the time, it comes and goes.
	clockCalm = 30 * time.Second
)

// A wallClock judges the wall clock, by which records say when something is due,
// by the storage's, or where that has none by its own steps. It is guarded by
// the reconciler's lock.
type wallClock struct {
	wall    func() time.Time
	elapsed func() time.Duration
	steps   bool          // elapsed counts sleep, so that any difference is a step
	dated   storage.Dated // nil: the storage has no clock

	reading  storage.Reading // the latest
	readAt   time.Duration   // when that arrived, by elapsed
	lastLead time.Duration   // of elapsed, when it was last seen without a step

	distrust   string        // it cannot be trusted; empty: it can
	since      time.Time     // by itself
	rightSince time.Duration // by elapsed: since when it has been right again; 0: it is not
}

func newWallClock(o *Options, store storage.Store) wallClock {
	c := wallClock{wall: o.Now, elapsed: o.Elapsed, steps: o.Elapsed != nil, dated: o.Dated}
	if !c.steps {
		began := time.Now()
		c.elapsed = func() time.Duration { return time.Since(began) }
	}
	if c.dated == nil {
		c.dated, _ = store.(storage.Dated)
	}
	c.lastLead = c.lead(c.elapsed())
	return c
}

// lead is how far the wall clock is ahead of elapsed. It changes only when
// the clock is set: slewing it slews both.
func (c *wallClock) lead(elapsed time.Duration) time.Duration {
	return time.Duration(c.wall().UnixNano()) - elapsed
}

// update looks at the clocks, and reports whether the verdict has changed.
func (c *wallClock) update() (changed bool) {
	now := c.elapsed()
	why := c.problem(now)
	switch {
	case why != "" && c.distrust == "":
		c.distrust, c.since, c.rightSince = why, c.wall().UTC(), 0
		return true
	case why != "":
		c.rightSince = 0
	case c.distrust != "" && c.rightSince == 0:
		c.rightSince = max(now, 1)
	case c.distrust != "" && now-c.rightSince >= clockCalm:
		c.distrust, c.since = "", time.Time{}
		return true
	}
	return false
}

// problem says what is wrong with the clock now; empty: nothing is.
func (c *wallClock) problem(now time.Duration) string {
	if off, known := c.off(now); known {
		return clockProblem(off, "this server's clock is %s %s storage's: set it right, by NTP", "ahead of", "behind")
	}
	if !c.steps {
		return ""
	}
	lead := c.lead(now)
	why := clockProblem(lead-c.lastLead, "this server's clock was set %s %s since it leads, and storage has none to compare with: set it back if that was wrong, else restart the server", "forward", "back")
	if why == "" {
		c.lastLead = lead
	}
	return why
}

func clockProblem(off time.Duration, format, ahead, behind string) string {
	switch s := off.Abs().Round(time.Second).String(); {
	case off > clockLimit:
		return fmt.Sprintf(format, s, ahead)
	case off < -clockLimit:
		return fmt.Sprintf(format, s, behind)
	}
	return ""
}

// off is how far the wall clock is ahead of storage's, at least; negative:
// behind. It does not know before storage has answered. Since the last answer
// the time that has elapsed is added, so that a step shows at once.
func (c *wallClock) off(now time.Duration) (_ time.Duration, known bool) {
	if c.dated == nil {
		return 0, false
	}
	r, ok := c.dated.Date()
	if !ok {
		return 0, false
	}
	if !r.Local.Equal(c.reading.Local) {
		c.reading, c.readAt = r, now-time.Since(r.Local)
	}
	earliest := c.reading.Remote.Add(now - c.readAt)
	latest, wall := earliest.Add(c.reading.Within), c.wall().Round(0) // without the monotonic clock, which has its own opinion
	switch {
	case wall.After(latest):
		return wall.Sub(latest), true
	case wall.Before(earliest):
		return wall.Sub(earliest), true
	}
	return 0, true
}

// updateClock finds out whether the wall clock can be trusted. While it cannot,
// nothing goes because of the time in a record: it is asked before any member is
// judged, and needs the lock.
func (r *Reconciler) updateClock() {
	if !r.clock.update() {
		return
	}
	e := nstance.Event{Type: nstance.EventClockRight, Time: r.opts.Now().UTC(), Reason: "deletes by deadline and for age go on"}
	if why := r.clock.distrust; why != "" {
		e.Type, e.Reason = nstance.EventClockWrong, why+"; deletes by deadline and for age wait"
		r.log.Warn("this server's clock cannot be trusted, deletes by deadline and for age wait", "reason", why)
	} else {
		r.log.Info("this server's clock can be trusted again, deletes by deadline and for age go on")
	}
	r.opts.Journal(e)
	for key := range r.groups {
		r.queue.add(key, false)
	}
}

// clockRight looks at the clock, and reports whether the time in a record may
// decide something. Whatever now it is about was read before. It needs the lock.
func (r *Reconciler) clockRight() bool {
	r.updateClock()
	return r.clock.distrust == ""
}

// ClockRight looks at the clock, and reports whether the time in what is stored
// may decide something. Whatever now that is about is to be read before.
func (r *Reconciler) ClockRight() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.clockRight()
}

// ClockHold returns the hold of everything that the time in a record decides,
// and whether there is one: while this server's clock cannot be trusted.
func (r *Reconciler) ClockHold() (HoldView, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return HoldView{Hold: plan.Hold{Kind: plan.HoldClock, Reason: r.clock.distrust}, Since: r.clock.since}, r.clock.distrust != ""
}
