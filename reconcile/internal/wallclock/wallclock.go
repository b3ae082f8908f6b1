// Package wallclock judges whether a server's wall clock can be trusted. Records say by
// wall time when something is due: while the clock is wrong, nothing may be deleted for
// its age or by a deadline.
package wallclock

import (
	"fmt"
	"time"

	"github.com/nstance-go/nstance/storage"
)

const (
	// Limit is how far the wall clock may be off.
	Limit = 30 * time.Second

	// Calm is how long it must be right again before it is trusted. Where servers of
	// one storage disagree about the time, it comes and goes.
	Calm = 30 * time.Second
)

// Options describe the clocks.
type Options struct {
	Wall    func() time.Time     // with or without a monotonic reading
	Elapsed func() time.Duration // counts sleep; nil: the process's own clock, which need not
	Dated   storage.Dated        // tells storage's clock; nil: it has none
}

// A Clock is the wall clock of one server. It is judged by storage's, or where that has
// none by its own steps. It is not safe for concurrent use.
type Clock struct {
	o     Options
	steps bool // elapsed counts sleep: any difference is a step

	reading  storage.Reading // the latest
	readAt   time.Duration   // when that arrived, by elapsed
	lastLead time.Duration   // of elapsed, when it was last seen without a step

	distrust   string
	since      time.Time
	rightSince time.Duration // by elapsed: since when it has been right again; 0: it is not
}

// New returns a clock that is trusted until Look says otherwise.
func New(o Options) *Clock {
	c := &Clock{o: o, steps: o.Elapsed != nil}
	if !c.steps {
		began := time.Now()
		c.o.Elapsed = func() time.Duration { return time.Since(began) }
	}
	c.lastLead = c.lead(c.Elapsed())
	return c
}

// Elapsed returns the time since an arbitrary instant, whatever the wall clock is set
// to.
func (c *Clock) Elapsed() time.Duration { return c.o.Elapsed() }

// Distrust returns why the clock cannot be trusted; empty: it can.
func (c *Clock) Distrust() string { return c.distrust }

// Since returns since when the clock cannot be trusted, by itself; zero: it can.
func (c *Clock) Since() time.Time { return c.since }

// Look compares the clocks, and reports whether the verdict has changed.
func (c *Clock) Look() (changed bool) {
	now := c.Elapsed()
	why := c.problem(now)
	switch {
	case why != "" && c.distrust == "":
		c.distrust, c.since, c.rightSince = why, c.o.Wall().UTC(), 0
		return true
	case why != "":
		c.rightSince = 0
	case c.distrust != "" && c.rightSince == 0:
		c.rightSince = max(now, 1)
	case c.distrust != "" && now-c.rightSince >= Calm:
		c.distrust, c.since = "", time.Time{}
		return true
	}
	return false
}

// problem says what is wrong with the clock now; empty: nothing is.
func (c *Clock) problem(now time.Duration) string {
	if off, known := c.off(now); known {
		return describe(off, "this server's clock is %s %s storage's: set it right, by NTP", "ahead of", "behind")
	}
	if !c.steps {
		return ""
	}
	lead := c.lead(now)
	why := describe(lead-c.lastLead, "this server's clock was set %s %s since it leads, and storage has none to compare with: set it back if that was wrong, else restart the server", "forward", "back")
	if why == "" {
		c.lastLead = lead
	}
	return why
}

func describe(off time.Duration, format, ahead, behind string) string {
	switch s := off.Abs().Round(time.Second).String(); {
	case off > Limit:
		return fmt.Sprintf(format, s, ahead)
	case off < -Limit:
		return fmt.Sprintf(format, s, behind)
	}
	return ""
}

// lead is how far the wall clock is ahead of elapsed. It changes only when the clock is
// set: slewing it slews both.
func (c *Clock) lead(elapsed time.Duration) time.Duration {
	return time.Duration(c.o.Wall().UnixNano()) - elapsed
}

// off is how far the wall clock is ahead of storage's, at least; negative: behind. It is
// not known before storage has answered. The time that has elapsed since the last answer
// is added, so that a step shows at once.
func (c *Clock) off(now time.Duration) (_ time.Duration, known bool) {
	if c.o.Dated == nil {
		return 0, false
	}
	r, ok := c.o.Dated.Date()
	if !ok {
		return 0, false
	}
	if !r.Local.Equal(c.reading.Local) {
		c.reading, c.readAt = r, now-time.Since(r.Local)
	}
	earliest := c.reading.Remote.Add(now - c.readAt)
	latest, wall := earliest.Add(c.reading.Within), c.o.Wall().Round(0) // by the wall clock alone
	switch {
	case wall.After(latest):
		return wall.Sub(latest), true
	case wall.Before(earliest):
		return wall.Sub(earliest), true
	}
	return 0, true
}
