package sim

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/ledger"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage/lease"
)

// A Violation is an invariant that did not hold.
type Violation struct {
	At   time.Duration // since the start
	Rule string        // such as I3
	What string
}

// String returns the violation in one line.
func (v Violation) String() string { return fmt.Sprintf("%s at %v: %s", v.Rule, v.At, v.What) }

const (
	maxViolations = 20
	maxJournal    = 400 // events kept before the first violation
	maxAfter      = 20  // events kept after it
)

// checker reads the true state, store and cloud without latency or fault, at every call
// that could break a promise.
type checker struct {
	w *World

	mu            sync.Mutex
	events        int
	fired         fired
	after         int // since the first violation
	violations    []Violation
	drained       map[nstance.InstanceID]map[uint64]bool // generations drained by the agent
	reported      map[nstance.InstanceID]time.Time
	first         map[nstance.InstanceID]time.Time // first report
	acknowledged  map[string]nstance.InstanceID    // acknowledged notices
	withdrawn     map[string]bool                  // withdrawn by the cloud
	created       map[nstance.InstanceID]bool
	late          map[nstance.InstanceID]bool           // records with a write that landed after its term
	halts         map[string]bannedDefinition           // by tenant/group
	rolledBack    map[nstance.GroupKey]bannedDefinition // rolled-back definitions
	frozen        map[nstance.GroupKey]time.Time        // since the freeze was acknowledged
	avoided       map[reconcile.Pool]time.Time          // since the avoidance was acknowledged
	preservations map[nstance.InstanceID]preserved      // all preservations so far
	dates         map[nstance.InstanceID]dating
	shortUntil    time.Time       // until when other capacity may be preferred
	joinedLate    map[string]bool // by provider ID: may have joined a load balancer late
	journal       []string        // the latest events, for a violation
}

func newChecker(w *World) *checker {
	return &checker{
		w: w, fired: fired{}, drained: map[nstance.InstanceID]map[uint64]bool{}, reported: map[nstance.InstanceID]time.Time{}, first: map[nstance.InstanceID]time.Time{},
		acknowledged: map[string]nstance.InstanceID{}, withdrawn: map[string]bool{}, created: map[nstance.InstanceID]bool{}, late: map[nstance.InstanceID]bool{},
		halts: map[string]bannedDefinition{}, rolledBack: map[nstance.GroupKey]bannedDefinition{}, frozen: map[nstance.GroupKey]time.Time{}, avoided: map[reconcile.Pool]time.Time{},
		preservations: map[nstance.InstanceID]preserved{}, joinedLate: map[string]bool{},
		dates: map[nstance.InstanceID]dating{},
	}
}

// result returns the outcome so far.
func (c *checker) result() Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Result{
		Seed: c.w.cfg.Seed, Events: c.events, Virtual: time.Since(c.w.began),
		Violations: slices.Clone(c.violations), Journal: slices.Clone(c.journal), Fired: maps.Clone(c.fired),
	}
}

func (c *checker) violated(rule, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.violatedLocked(rule, format, args...)
}

// violatedLocked is violated for callers that hold the lock.
func (c *checker) violatedLocked(rule, format string, args ...any) {
	if len(c.violations) < maxViolations {
		c.violations = append(c.violations, Violation{time.Since(c.w.began), rule, fmt.Sprintf(format, args...)})
	}
}

// trace writes to the trace. It needs the lock.
func (c *checker) trace(format string, args ...any) {
	if c.w.cfg.Trace != io.Discard {
		fmt.Fprintf(c.w.cfg.Trace, "%d "+format+"\n", append([]any{time.Since(c.w.began)}, args...)...)
	}
}

// logTrace is trace for callers without the lock.
func (c *checker) logTrace(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trace(format, args...)
}

// event records a journal event of a server.
func (c *checker) event(e nstance.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events++
	c.fired.event(e)
	c.trace("%s %s %s %s %s", e.Type, e.Instance, e.Replaces, e.Reason, e.Error)
	if len(c.violations) > 0 {
		if c.after++; c.after > maxAfter {
			return // keep the events before the first violation
		}
	}
	c.journal = append(c.journal[max(0, len(c.journal)-maxJournal):], fmt.Sprintf("%v %s %s %s %s %s", time.Since(c.w.began), e.Type, e.Instance, e.Replaces, e.Reason, e.Error))
}

// term returns the check that the executor calls before every mutation.
func (c *checker) term(t *lease.Term) func() error {
	return func() error {
		c.checkOneLeader()
		return t.Err()
	}
}

func (c *checker) markReady(id nstance.InstanceID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reported[id] = time.Now()
	if c.first[id].IsZero() {
		c.first[id] = time.Now()
	}
}

func (c *checker) recordDrained(id nstance.InstanceID, generation uint64) {
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

// checkRegistered checks I7 when an agent learns that it is registered.
func (c *checker) checkRegistered(id nstance.InstanceID) {
	if rec, ok := c.w.store.record(id); ok && rec.RegisteredAt.IsZero() {
		c.violated("I7", "%s was acknowledged as registered before that was durable", id)
	}
}

// checkAcknowledged checks I9 when a notice is acknowledged: its consequence must be durable.
func (c *checker) checkAcknowledged(id nstance.InstanceID, eventID string) {
	rec, ok := c.w.store.record(id)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.acknowledged[eventID] = id
	if ok && !c.withdrawn[eventID] && !noticeHandled(rec, eventID) {
		c.violatedLocked("I9", "the notice %s for %s was acknowledged before its consequence was durable", eventID, id)
	}
}

// noticeHandled reports whether a leader that reads the record handles a notice: it has
// been handled, or the record holds it, as in a frozen group. A preserved member may be
// draining already; the drain gets the notice's cause when the preservation ends.
func noticeHandled(rec records.Instance, eventID string) bool {
	if rec.Deleting != nil {
		return true
	}
	recorded := slices.ContainsFunc(rec.Notices, func(n nstance.Notice) bool { return n.EventID == eventID })
	if rec.Drain == nil || recorded && rec.Preserve != nil {
		return recorded
	}
	return slices.ContainsFunc(rec.Drain.Causes, func(c nstance.Cause) bool { return c.EventID == eventID })
}

// checkSettled checks what must hold after the faults: I1, I8, I9.
func (c *checker) checkSettled() {
	records, machines := c.w.store.all(), c.w.cloud.Machines()
	known, members := map[nstance.InstanceID]bool{}, map[nstance.GroupKey]int{}
	for _, r := range records {
		known[r.ID] = true
		if o, _ := c.w.orderOf(r.ID); r.OnDemand && (o.unwanted || time.Since(r.CreatedAt) > orderAge+2*drainTimeout) {
			c.violated("order", "%s is deleted and still has a record", r.ID)
		}
		if !r.OnDemand && r.Standby == nil {
			members[keyOf(*r)]++
		}
	}
	c.checkPools()
	for _, g := range c.w.desiredGroups() {
		if n := members[g.Key]; g.Removing || n != g.Size {
			c.violated("I8", "%d records for group %s of %d, removing: %t", n, g.Key, g.Size, g.Removing)
		}
		delete(members, g.Key)
	}
	for key, n := range members {
		c.violated("I8", "%d records of unknown group %s", n, key)
	}
	if len(machines) != len(records) {
		c.violated("I1", "%d machines for %d records", len(machines), len(records))
	}
	for _, m := range machines {
		if !known[m.ID] {
			c.violated("I1", "machine %s has no record", m.ID)
		}
	}
	c.checkBalancers(machines)
	c.checkLeader()
	c.checkLives()
	c.mu.Lock()
	defer c.mu.Unlock()
	for eventID, id := range c.acknowledged {
		if known[id] && !c.withdrawn[eventID] {
			c.violatedLocked("I9", "the notice for %s was acknowledged and had no effect", id)
		}
	}
}

// checkLives checks that the ledger has the life of every instance that ever had a
// record and has none, and that those written twice are the same.
func (c *checker) checkLives() {
	lives := map[nstance.InstanceID]ledger.Life{}
	for day, err := range ledger.NewReader(c.w.store.Store, shard).Days(context.Background(), time.Time{}, time.Time{}) {
		if err != nil || len(day.Problems) > 0 {
			c.violated("ledger", "the ledger of %s cannot be read: %v, %v", day.Date, err, day.Problems)
			return
		}
		for _, l := range day.Lives {
			if again, ok := lives[l.ID]; ok && (again.Tenant != l.Tenant || again.Group != l.Group || again.Why.Kind != l.Why.Kind || again.Outcome != l.Outcome) {
				c.violated("ledger", "%s has two lives: %v and %v", l.ID, again, l)
			}
			lives[l.ID] = l
		}
	}
	for id := range c.w.store.past() {
		if _, ok := lives[id]; !ok {
			c.violated("ledger", "%s had a record, and its life is not on record", id)
		}
		delete(lives, id)
	}
	for id := range lives {
		if rec, ok := c.w.store.record(id); !ok || rec.Deleting == nil {
			c.violated("ledger", "the life of %s is on record before its end", id)
		}
	}
}

// checkLeader checks the leader's view at the end.
func (c *checker) checkLeader() {
	r, _ := c.w.leader()
	if r == nil {
		c.violated("I8", "no leader")
		return
	}
	for _, g := range r.Groups() {
		if size := c.w.currentGroup(g.Key).Size; g.Ready != size || g.Stale != 0 && g.Halted == "" {
			c.violated("I8", "group %s: %d of %d ready, %d stale, holds %v", g.Key, g.Ready, size, g.Stale, g.Holds)
		}
	}
}
