package sim

import (
	"encoding/json"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// creating checks I1 and I5 at the moment in which a server in its term asks
// the cloud for a machine.
func (c *checker) creating(spec nstance.MachineSpec) {
	if rec, ok := c.w.store.record(spec.ID); !ok || rec.Deleting != nil {
		c.violated("I1", "machine %s asked for without a record that wants it", spec.ID)
	}
	c.mu.Lock()
	again := c.created[spec.ID]
	c.created[spec.ID] = true
	c.mu.Unlock()
	if again {
		return
	}
	counted, running := 0, c.w.cloud.running()
	for _, r := range c.w.store.all() {
		if r.ID != spec.ID && r.Deleting == nil && r.Drain == nil && running[r.ID] && c.sound(r.ID) {
			counted++
		}
	}
	if limit := c.w.roomiest(); counted >= limit {
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
	if !c.w.store.wasMarked(m.ID) {
		c.violated("I3", "delete of %s without a durable mark", m.ID)
		return
	}
	truth, err := c.w.cloud.Truth(m.ID)
	if !ok || rec.Deleting == nil || err != nil || truth.Status != nstance.StatusRunning {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	d, why := rec.Drain, rec.Deleting.Why.Kind
	if why == nstance.CauseGone {
		c.note("I10", "running machine %s deleted as gone", m.ID)
		return
	}
	if first := c.first[m.ID]; rec.RegisteredAt.IsZero() || first.IsZero() || rec.Deleting.At.Sub(first) < reportInterval {
		return // it was not ready when this was decided
	}
	switch {
	case c.w.undrained(rec.Deleting.At):
	case d == nil:
		c.note("I3", "ready machine %s deleted without a drain (%s)", m.ID, why)
	case !c.drained[m.ID][d.Generation] && time.Now().Before(d.Deadline.Add(-maxStep)):
		c.note("I3", "machine %s deleted %v before the deadline of drain %d, not emptied", m.ID, time.Until(d.Deadline), d.Generation)
	}
}

// A halt is what a group's rollout was halted for.
type halt struct {
	since time.Time // since when that has been durable
	hash  string
}

// judged notes a group's history as it became durable.
func (c *checker) judged(data []byte) {
	var state struct {
		Groups map[string]struct {
			HaltedHash   string `json:"halted_hash"`
			LastGoodHash string `json:"last_good_hash"`
		} `json:"groups"`
	}
	if err := json.Unmarshal(data, &state); err != nil {
		c.violated("I7", "the groups' histories cannot be read: %v", err)
		return
	}
	g := state.Groups[web.String()]
	if g.LastGoodHash == "" || g.LastGoodHash == g.HaltedHash {
		g.HaltedHash = "" // there is nothing else to make members from
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.halt.hash != g.HaltedHash {
		c.halt = halt{since: time.Now(), hash: g.HaltedHash}
	}
}

// resuming notes that somebody asks for the end of a halt: it is in force with
// the leader at once, and durable a little later.
func (c *checker) resuming() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.halt = halt{}
}

// chosen checks a new intent: while a rollout is halted, nothing is made from
// what it was halted for.
func (c *checker) chosen(rec storage.Instance) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.halt.hash != "" && rec.InfraHash == c.halt.hash && rec.CreatedAt.After(c.halt.since.Add(maxStep+time.Second)) {
		c.note("P6", "%s is made from the definition whose rollout is halted", rec.ID)
	}
}
