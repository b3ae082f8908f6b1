package sim

import (
	"time"

	"github.com/nstance-go/nstance"
)

// creating checks I1 and I5 at the moment in which a server in its term asks
// the cloud for a machine.
func (c *checker) creating(spec nstance.MachineSpec) {
	rec, ok := c.w.store.record(spec.ID)
	if !ok || rec.Deleting != nil {
		c.violated("I1", "machine %s asked for without a record that wants it", spec.ID)
	}
	if ok {
		c.belongs(spec, rec)
		c.resolved(spec)
		c.still(rec)
	}
	c.preferred(spec)
	c.mu.Lock()
	again := c.created[spec.ID]
	c.created[spec.ID] = true
	c.mu.Unlock()
	if again || rec.OnDemand {
		return
	}
	counted, running := 0, c.w.cloud.running()
	for _, r := range c.w.store.members(keyOf(rec)) {
		if r.ID != spec.ID && r.Deleting == nil && r.Drain == nil && r.Preserve == nil && running[r.ID] && c.sound(r.ID) {
			counted++
		}
	}
	if limit := c.w.roomiest(keyOf(rec)); counted >= limit {
		c.violated("I5", "machine %s asked for while %d of at most %d are counted", spec.ID, counted, limit)
	}
}

// sound reports whether nothing is wrong with a machine that runs: it is under
// no notice and its agent talks. Members that are not may be doomed.
func (c *checker) sound(id nstance.InstanceID) bool {
	if c.w.isMute(id) || c.w.isNoticed(id) || c.w.isApart(id) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.reported[id]) < 2*reportInterval
}

// deleting checks I3 and I10 at the moment in which the cloud is asked.
func (c *checker) deleting(m nstance.Machine) {
	rec, ok := c.w.store.record(m.ID)
	if c.w.store.markedSince(m.ID).IsZero() {
		c.violated("I3", "delete of %s without a durable mark", m.ID)
		return
	}
	truth, err := c.w.cloud.Truth(m.ID)
	if !ok || rec.Deleting == nil || err != nil || truth.Status != nstance.StatusRunning {
		return
	}
	c.severs(m)
	c.mu.Lock()
	defer c.mu.Unlock()
	d, why, dates := rec.Drain, rec.Deleting.Why.Kind, c.dates[m.ID]
	if why == nstance.CauseGone {
		c.note("I10", "running machine %s deleted as gone", m.ID)
		return
	}
	if first := c.first[m.ID]; rec.RegisteredAt.IsZero() || first.IsZero() || dates.marked.Sub(first) < reportInterval {
		return // it was not ready when this was decided, or nobody can say
	}
	switch {
	case c.w.undrained(keyOf(rec), dates.marked):
	case d == nil:
		c.note("I3", "ready machine %s deleted without a drain (%s)", m.ID, why)
	case !c.drained[m.ID][d.Generation] && dates.drain != d.Generation && time.Now().Before(d.Deadline.Add(-maxStep)):
		c.note("I3", "machine %s deleted %v before the deadline of drain %d, not emptied", m.ID, time.Until(d.Deadline), d.Generation)
	}
}
