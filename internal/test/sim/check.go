package sim

import (
	"fmt"
	"io"
	"slices"
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

const (
	maxViolations = 20
	maxJournal    = 400 // events kept until the first violation
	maxAfter      = 20  // and afterwards
)

// A checker looks at the truth: the store itself and the cloud itself, without
// delay or fault, at every call that could break a promise.
type checker struct {
	w *World

	mu         sync.Mutex
	events     int
	after      int // since the first violation
	violations []Violation
	drained    map[nstance.InstanceID]map[uint64]bool // generations that the agent has emptied
	reported   map[nstance.InstanceID]time.Time
	first      map[nstance.InstanceID]time.Time // first report ever
	taken      map[string]nstance.InstanceID    // acknowledged notices
	withdrawn  map[string]bool                  // notices that the cloud took back
	created    map[nstance.InstanceID]bool
	late       map[nstance.InstanceID]bool      // records with a write that landed after its term
	halts      map[string]aversion              // by tenant/group
	backs      map[nstance.GroupKey]aversion    // what was rolled back
	frozen     map[nstance.GroupKey]time.Time   // since when somebody knows
	kept       map[nstance.InstanceID]preserved // ever
	dates      map[nstance.InstanceID]dating
	scarce     time.Time       // when there may last have been no room for what groups prefer
	intruded   map[string]bool // by provider ID: may have joined a load balancer late
	journal    []string        // the latest events, for a violation
}

func newChecker(w *World) *checker {
	return &checker{
		w: w, drained: map[nstance.InstanceID]map[uint64]bool{}, reported: map[nstance.InstanceID]time.Time{}, first: map[nstance.InstanceID]time.Time{},
		taken: map[string]nstance.InstanceID{}, withdrawn: map[string]bool{}, created: map[nstance.InstanceID]bool{}, late: map[nstance.InstanceID]bool{},
		halts: map[string]aversion{}, backs: map[nstance.GroupKey]aversion{}, frozen: map[nstance.GroupKey]time.Time{},
		kept: map[nstance.InstanceID]preserved{}, intruded: map[string]bool{},
		dates: map[nstance.InstanceID]dating{},
	}
}

// result is what has come of the run so far.
func (c *checker) result() Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Result{
		Seed: c.w.cfg.Seed, Events: c.events, Virtual: time.Since(c.w.began),
		Violations: slices.Clone(c.violations), Journal: slices.Clone(c.journal),
	}
}

func (c *checker) violated(rule, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note(rule, format, args...)
}

// note is violated for callers that hold the lock.
func (c *checker) note(rule, format string, args ...any) {
	if len(c.violations) < maxViolations {
		c.violations = append(c.violations, Violation{time.Since(c.w.began), rule, fmt.Sprintf(format, args...)})
	}
}

// trace tells the trace what happened. It needs the lock.
func (c *checker) trace(format string, args ...any) {
	if c.w.cfg.Trace != io.Discard {
		fmt.Fprintf(c.w.cfg.Trace, "%d "+format+"\n", append([]any{time.Since(c.w.began)}, args...)...)
	}
}

// tell is trace for callers without the lock.
func (c *checker) tell(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trace(format, args...)
}

// event counts what the servers journal.
func (c *checker) event(e nstance.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events++
	c.trace("%s %s %s %s %s", e.Type, e.Instance, e.Replaces, e.Reason, e.Error)
	if len(c.violations) > 0 {
		if c.after++; c.after > maxAfter {
			return // what led to the first violation stays
		}
	}
	c.journal = append(c.journal[max(0, len(c.journal)-maxJournal):], fmt.Sprintf("%v %s %s %s %s", time.Since(c.w.began), e.Type, e.Instance, e.Replaces, e.Reason+e.Error))
}

// term is asked before every mutation; the answer goes on to the executor.
func (c *checker) term(t *lease.Term) func() error {
	return func() error {
		c.oneLeader()
		return t.Err()
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

func (c *checker) noticeWithdrawn(eventID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.withdrawn[eventID] = true
}

// registered checks I7 when an agent hears that it is registered.
func (c *checker) registered(id nstance.InstanceID) {
	if rec, ok := c.w.store.record(id); ok && rec.RegisteredAt.IsZero() {
		c.violated("I7", "%s was told that it is registered, and storage does not say so", id)
	}
}

// noticeTaken checks I9 when a notice is acknowledged: its consequence is durable.
func (c *checker) noticeTaken(id nstance.InstanceID, eventID string) {
	rec, ok := c.w.store.record(id)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taken[eventID] = id
	if ok && !c.withdrawn[eventID] && !consequent(rec, eventID) {
		c.note("I9", "the notice %s for %s was acknowledged before anything about it was durable", eventID, id)
	}
}

// consequent reports whether a leader that reads the record acts on a notice: it
// has been, or the record holds it, as in a frozen group. A preserved member may
// drain already, and its drain takes the notice's cause when that ends.
func consequent(rec storage.Instance, eventID string) bool {
	if rec.Deleting != nil {
		return true
	}
	recorded := slices.ContainsFunc(rec.Notices, func(n nstance.Notice) bool { return n.EventID == eventID })
	if rec.Drain == nil || recorded && rec.Preserve != nil {
		return recorded
	}
	return slices.ContainsFunc(rec.Drain.Causes, func(c nstance.Cause) bool { return c.EventID == eventID })
}

// settled checks what must hold when the faults have stopped: I1, I8, I9.
func (c *checker) settled() {
	records, machines := c.w.store.all(), c.w.cloud.Machines()
	known, members := map[nstance.InstanceID]bool{}, map[nstance.GroupKey]int{}
	for _, r := range records {
		known[r.ID] = true
		if o, _ := c.w.orderOf(r.ID); r.OnDemand && (o.unwanted || time.Since(r.CreatedAt) > orderAge+2*drainTimeout) {
			c.violated("order", "%s is over and still has a record", r.ID)
		}
		if !r.OnDemand {
			members[keyOf(*r)]++
		}
	}
	for _, g := range c.w.standing() {
		if n := members[g.Key]; g.Removing || n != g.Size {
			c.violated("I8", "%d records for group %s of %d, removing: %t", n, g.Key, g.Size, g.Removing)
		}
		delete(members, g.Key)
	}
	for key, n := range members {
		c.violated("I8", "%d records of group %s, which nobody wants", n, key)
	}
	if len(machines) != len(records) {
		c.violated("I1", "%d machines for %d records", len(machines), len(records))
	}
	for _, m := range machines {
		if !known[m.ID] {
			c.violated("I1", "machine %s has no record", m.ID)
		}
	}
	c.balanced(machines)
	c.led()
	c.mu.Lock()
	defer c.mu.Unlock()
	for eventID, id := range c.taken {
		if known[id] && !c.withdrawn[eventID] {
			c.note("I9", "the notice for %s was acknowledged and had no effect", id)
		}
	}
}

// led checks what the leader itself believes in the end.
func (c *checker) led() {
	r, _ := c.w.leader()
	if r == nil {
		c.violated("I8", "nobody leads")
		return
	}
	for _, g := range r.Groups() {
		if size := c.w.wanted(g.Key).Size; g.Ready != size || g.Stale != 0 && g.Halted == "" {
			c.violated("I8", "group %s: %d of %d ready, %d stale, holds %v", g.Key, g.Ready, size, g.Stale, g.Holds)
		}
	}
}
