package sim

import (
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// A dating says when that happened truly which a record dates by the clock of
// the server that wrote it. Zero times are unknown: that clock was set just then.
type dating struct {
	created time.Time
	left    time.Time // it was decided that it leaves
	marked  time.Time // it was decided that it is deleted
	unborn  bool      // the record's age is wrong, and so is what follows from it
	drain   uint64    // generation of a drain whose recorded deadline is wrong
}

// date works out when what a write is about was decided.
func (c *checker) date(p *process, old *storage.Instance, now storage.Instance) {
	ahead, known := p.wall.dated()
	wrong := !known || ahead.Abs() > maxStep
	truly := func(t time.Time) time.Time {
		if !known {
			return time.Time{}
		}
		return t.Add(-ahead)
	}
	if old == nil {
		old = &storage.Instance{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.dates[now.ID]
	if old.ID == "" {
		d.created, d.unborn = truly(now.CreatedAt), wrong
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

// patient checks that nothing goes because of the time in a record while the
// leader's clock has been wrong for a while.
func (c *checker) patient(p *process, old *storage.Instance, now storage.Instance) {
	ahead, known := p.wall.dated()
	if old == nil || !known || ahead.Abs() <= 2*maxStep {
		return
	}
	switch why := leaving(now); {
	case leaving(*old) == "" && (why == nstance.CauseExpired || timedOut(now)):
		c.violated("clock", "%s leaves for %s by a clock that is %v ahead", now.ID, why, ahead)
	case now.CutShort && !old.CutShort && !requested(now) && !c.w.undrained(keyOf(now), time.Now()):
		c.violated("clock", "the drain of %s ends by a clock that is %v ahead", now.ID, ahead)
	}
}

// timedOut reports whether a record says that a launch took too long.
func timedOut(rec storage.Instance) bool {
	if rec.Drain != nil {
		return leaving(rec) == nstance.CauseTimeout
	}
	return rec.Deleting != nil && rec.Deleting.Why.Kind == nstance.CauseTimeout && !strings.HasPrefix(rec.Deleting.Why.Message, "create refused")
}

// requested reports whether somebody asked for an instance to go.
func requested(rec storage.Instance) bool {
	return rec.Drain != nil && slices.ContainsFunc(rec.Drain.Causes, func(cause nstance.Cause) bool { return cause.Kind == nstance.CauseRequest })
}
