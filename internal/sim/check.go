package sim

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
)

// A Violation is an invariant that did not hold.
type Violation struct {
	At   time.Duration // since the beginning
	Rule string        // such as I3
	What string
}

// String returns the violation in one line.
func (v Violation) String() string { return fmt.Sprintf("%s at %v: %s", v.Rule, v.At, v.What) }

// A checker looks at the truth: the store itself and the cloud itself, without
// delay or fault, at every call that could break a promise.
type checker struct {
	w *World

	mu         sync.Mutex
	events     int
	violations []Violation
	drained    map[nstance.InstanceID]map[uint64]bool // generations that the agent has emptied
	reported   map[nstance.InstanceID]time.Time
	first      map[nstance.InstanceID]time.Time // first report ever
	taken      map[string]nstance.InstanceID // acknowledged notices
	created    map[nstance.InstanceID]bool
	journal    []string // the latest events, for a violation
}

func newChecker(w *World) *checker {
	return &checker{
		w: w, drained: map[nstance.InstanceID]map[uint64]bool{}, reported: map[nstance.InstanceID]time.Time{}, first: map[nstance.InstanceID]time.Time{},
		taken: map[string]nstance.InstanceID{}, created: map[nstance.InstanceID]bool{},
	}
}

func (c *checker) violated(rule, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.violations) < 20 {
		c.violations = append(c.violations, Violation{time.Since(c.w.began), rule, fmt.Sprintf(format, args...)})
	}
}

// event counts what the servers journal, and checks I6 on the way.
func (c *checker) event(e nstance.Event) {
	c.mu.Lock()
	c.events++
	c.journal = append(c.journal[max(0, len(c.journal)-400):], fmt.Sprintf("%v %s %s %s %s", time.Since(c.w.began), e.Type, e.Instance, e.Replaces, e.Reason+e.Error))
	c.mu.Unlock()
}

// term is asked before every mutation; the answer goes on to the executor.
func (c *checker) term(t *lease.Term) func() error {
	return func() error {
		c.oneLeader()
		return t.Err()
	}
}

// oneLeader checks I6: at most one server holds a valid term.
func (c *checker) oneLeader() {
	n := 0
	for _, p := range c.w.all() {
		if p.valid() {
			n++
		}
	}
	if n > 1 {
		c.violated("I6", "%d servers hold a valid term", n)
	}
}

func (c *checker) well(id nstance.InstanceID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reported[id] = time.Now()
	if c.first[id].IsZero() {
		c.first[id] = time.Now()
	}
}

func (c *checker) emptied(id nstance.InstanceID, generation uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.drained[id] == nil {
		c.drained[id] = map[uint64]bool{}
	}
	c.drained[id][generation] = true
}

func (c *checker) noticeTaken(id nstance.InstanceID, eventID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taken[string(id)+" "+eventID] = id
}

// record returns what storage really holds for an instance.
func (c *checker) record(id nstance.InstanceID) (storage.Instance, bool) {
	for _, r := range c.records() {
		if r.ID == id {
			return r, true
		}
	}
	return storage.Instance{}, false
}

func (c *checker) records() []storage.Instance {
	ctx := context.Background()
	var out []storage.Instance
	for e, err := range c.w.store.List(ctx, storage.InstancePrefix(shard), "") {
		if err != nil {
			continue
		}
		if obj, err := c.w.store.Get(ctx, e.Key); err == nil {
			if rec, err := storage.DecodeInstance(e.Key, obj.Data); err == nil {
				out = append(out, rec)
			}
		}
	}
	return out
}

// creating checks I2 and I5 at the moment in which the cloud is asked.
func (c *checker) creating(spec nstance.MachineSpec) {
	c.mu.Lock()
	again := c.created[spec.ID]
	c.created[spec.ID] = true
	c.mu.Unlock()
	if again {
		return
	}
	if c.records() == nil {
		c.violated("I1", "machine %s asked for without any record", spec.ID)
	}
	counted := 0
	for _, r := range c.records() {
		if r.ID != spec.ID && r.Deleting == nil && r.Drain == nil && c.sound(r.ID) {
			counted++
		}
	}
	if limit := c.w.roomiest(); counted >= limit {
		c.violated("I5", "machine %s asked for while %d of at most %d are counted", spec.ID, counted, limit)
	}
}

// sound reports whether nothing at all is wrong with a machine: it runs, it is
// under no notice and its agent talks. Members that are not may be doomed.
func (c *checker) sound(id nstance.InstanceID) bool {
	if c.w.isMute(id) || c.w.isNoticed(id) {
		return false
	}
	m, err := c.w.cloud.Truth(id)
	if err != nil || m.Status != nstance.StatusRunning {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.reported[id]) < 2*reportInterval
}

// deleting checks I3 and I10 at the moment in which the cloud is asked.
func (c *checker) deleting(m nstance.Machine) {
	rec, ok := c.record(m.ID)
	if !ok {
		return // its record is gone: it was marked, and deleted before
	}
	if rec.Deleting == nil {
		c.violated("I3", "delete of %s without a durable mark", m.ID)
		return
	}
	truth, err := c.w.cloud.Truth(m.ID)
	if err != nil || truth.Status != nstance.StatusRunning || rec.RegisteredAt.IsZero() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	d := rec.Drain
	if first := c.first[m.ID]; first.IsZero() || rec.Deleting.At.Sub(first) < reportInterval {
		return // it was not ready when this was decided
	}
	switch {
	case rec.Deleting.Why.Kind == nstance.CauseGone && d == nil && !c.w.wasDown(m.ID):
		c.note("I10", "running machine %s deleted as gone", m.ID)
	case d == nil && rec.Deleting.Why.Kind != nstance.CauseGone && rec.Deleting.Why.Kind != nstance.CauseTimeout && c.w.wanted().DrainTimeout > 0:
		c.note("I3", "ready machine %s deleted without a drain (%s)", m.ID, rec.Deleting.Why.Kind)
	case d != nil && !c.drained[m.ID][d.Generation] && time.Now().Before(d.Deadline) && !c.w.wasDown(m.ID):
		c.note("I3", "machine %s deleted %v before its drain's deadline, not emptied", m.ID, time.Until(d.Deadline))
	}
}

// note is violated for callers that hold the lock.
func (c *checker) note(rule, format string, args ...any) {
	c.violations = append(c.violations, Violation{time.Since(c.w.began), rule, fmt.Sprintf(format, args...)})
}

// settled checks what must hold when the faults have stopped: I1, I2, I8, I9.
func (c *checker) settled(size int) {
	records, machines := c.records(), c.w.cloud.Machines()
	if len(records) != size {
		c.violated("I8", "%d records for a group of %d", len(records), size)
	}
	if len(machines) != size {
		c.violated("I1", "%d machines for a group of %d", len(machines), size)
	}
	known := map[nstance.InstanceID]bool{}
	for _, r := range records {
		known[r.ID] = true
	}
	for _, m := range machines {
		if !known[m.ID] {
			c.violated("I1", "machine %s has no record", m.ID)
		}
	}
	r, _ := c.w.leader()
	if r == nil {
		c.violated("I8", "nobody leads")
		return
	}
	for _, g := range r.Groups() {
		if g.Ready != size || g.Stale != 0 && g.Halted == "" {
			c.violated("I8", "%d of %d ready, %d stale, holds %v", g.Ready, size, g.Stale, g.Holds)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range c.taken {
		if known[id] && !c.w.wasWithdrawn(id) {
			c.note("I9", "the notice for %s was acknowledged and had no effect", id)
		}
	}
}
