package sim

import (
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
)

// dating holds the true times of what a record dates by the clock of its writer. Zero
// times are unknown: that clock was set just then.
type dating struct {
	created  time.Time
	left     time.Time // removal decided
	marked   time.Time // deletion decided
	ageWrong bool      // the record's age is wrong, and everything derived from it
	drain    uint64    // generation of a drain whose recorded deadline is wrong
}

// recordDates computes when the content of a write was decided.
func (c *checker) recordDates(p *process, old *records.Instance, now records.Instance) {
	ahead, known := p.wall.dated()
	wrong := !known || ahead.Abs() > maxStep
	truly := func(t time.Time) time.Time {
		if !known {
			return time.Time{}
		}
		return t.Add(-ahead)
	}
	if old == nil {
		old = &records.Instance{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.dates[now.ID]
	if old.ID == "" {
		d.created, d.ageWrong = truly(now.CreatedAt), wrong
	}
	if leaving(*old) == "" && leaving(now) != "" {
		d.left = truly(leftAt(now))
	}
	if old.Deleting == nil && now.Deleting != nil {
		d.marked = truly(now.Deleting.At)
	}
	if is, was := now.Drain, old.Drain; wrong && is != nil && (was == nil || was.Generation != is.Generation || !was.Deadline.Equal(is.Deadline)) {
		d.drain = is.Generation
	}
	c.dates[now.ID] = d
}

func (c *checker) dateOf(id nstance.InstanceID) dating {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dates[id]
}

// checkClock checks that no deadline in a record is enforced while the leader's clock has
// been wrong for a while.
func (c *checker) checkClock(p *process, old *records.Instance, now records.Instance) {
	ahead, known := p.wall.dated()
	if old == nil || !known || ahead.Abs() <= 2*maxStep {
		return
	}
	switch why := leaving(now); {
	case leaving(*old) == "" && (why == nstance.CauseExpired || timedOut(now)):
		c.violated("clock", "%s leaves for %s by a clock that is %v ahead", now.ID, why, ahead)
	case now.CutShort && !old.CutShort && !requested(now) && !c.w.anyUndrained(keyOf(now), time.Now()):
		c.violated("clock", "the drain of %s ends by a clock that is %v ahead", now.ID, ahead)
	}
}

// timedOut reports whether a record was removed for its launch timeout.
func timedOut(rec records.Instance) bool {
	if rec.Drain != nil {
		return leaving(rec) == nstance.CauseTimeout
	}
	return rec.Deleting != nil && rec.Deleting.Why.Kind == nstance.CauseTimeout && !strings.HasPrefix(rec.Deleting.Why.Message, "create refused")
}

// requested reports whether the removal of an instance was requested.
func requested(rec records.Instance) bool {
	return rec.Drain != nil && slices.ContainsFunc(rec.Drain.Causes, func(cause nstance.Cause) bool { return cause.Kind == nstance.CauseRequest })
}
