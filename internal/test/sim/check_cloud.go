package sim

import (
	"time"

	"github.com/nstance-go/nstance"
)

// checkCreate checks I1 and I5 when a server in its term calls Create.
func (c *checker) checkCreate(spec nstance.MachineSpec) {
	rec, ok := c.w.store.record(spec.ID)
	if !ok || rec.Deleting != nil {
		c.violated("I1", "machine %s requested without a record that needs it", spec.ID)
	}
	if ok {
		c.checkTenant(spec, rec)
		c.checkPending(spec)
		c.checkFrozenCreate(rec)
	}
	c.checkPreferred(spec)
	c.checkAvoidedCreate(spec)
	c.mu.Lock()
	again := c.created[spec.ID]
	c.created[spec.ID] = true
	c.mu.Unlock()
	if again || rec.OnDemand {
		return
	}
	if rec.Standby != nil {
		c.checkStandbyCreate(spec, rec)
		return
	}
	counted, running := 0, c.w.cloud.running()
	for _, r := range c.w.store.members(keyOf(rec)) {
		if r.ID != spec.ID && r.Deleting == nil && r.Drain == nil && r.Preserve == nil && running[r.ID] && c.isHealthy(r.ID) {
			counted++
		}
	}
	if limit := c.w.maxMembers(keyOf(rec)); counted >= limit {
		c.violated("I5", "machine %s requested while %d of at most %d are counted", spec.ID, counted, limit)
	}
}

// checkOneMachine checks I1 when a machine begins to run: no other one has its ID.
func (c *checker) checkOneMachine(m nstance.Machine) {
	for _, other := range c.w.cloud.Machines() {
		if other.ID == m.ID && other.ProviderID != m.ProviderID && !other.Status.Dead() {
			c.violated("I1", "two machines have ID %s", m.ID)
		}
	}
}

// isHealthy reports whether a running machine has no notice and a reporting agent. Other
// members may be removed.
func (c *checker) isHealthy(id nstance.InstanceID) bool {
	if c.w.isMute(id) || c.w.isNoticed(id) || c.w.isPartitioned(id) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.reported[id]) < 2*reportInterval
}

// checkDelete checks I3 and I10 at a Delete call.
func (c *checker) checkDelete(m nstance.Machine) {
	rec, ok := c.w.store.record(m.ID)
	if c.w.store.markedSince(m.ID).IsZero() {
		c.violated("I3", "delete of %s without a durable mark", m.ID)
		return
	}
	truth, err := c.w.cloud.Truth(m.ID)
	if !ok || rec.Deleting == nil || err != nil || truth.Status != nstance.StatusRunning {
		return
	}
	c.checkDeleteBalanced(m)
	c.mu.Lock()
	defer c.mu.Unlock()
	d, why, dates := rec.Drain, rec.Deleting.Why.Kind, c.dates[m.ID]
	if why == nstance.CauseGone {
		c.violatedLocked("I10", "running machine %s deleted as gone", m.ID)
		return
	}
	if first := c.first[m.ID]; rec.RegisteredAt.IsZero() || first.IsZero() || dates.marked.Sub(first) < reportInterval {
		return // not ready when this was decided, or unknown
	}
	switch {
	case c.w.anyUndrained(keyOf(rec), dates.marked):
	case d == nil:
		c.violatedLocked("I3", "ready machine %s deleted without a drain (%s)", m.ID, why)
	case !c.drained[m.ID][d.Generation] && dates.drain != d.Generation && time.Now().Before(d.Deadline.Add(-maxStep)):
		c.violatedLocked("I3", "machine %s deleted %v before the deadline of drain %d, not emptied", m.ID, time.Until(d.Deadline), d.Generation)
	}
}
