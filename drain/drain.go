// Package drain connects the executors that empty machines with the reconciler
// that deletes them.
//
// A [Coordinator] holds the drains under way, publishes them to watchers and
// accepts acknowledgements. It decides nothing and makes nothing durable: the
// reconciler records a drain before it starts it here, a new leader starts the
// recorded drains again, and their executors acknowledge them again. Packages
// drain/hook and kubernetes/nodedrain are two ways to empty a machine.
//
// A Coordinator is safe for concurrent use.
package drain

import (
	"context"
	"log/slog"
	"math"
	"slices"
	"sync"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/feed"
)

// maxMessage is the length in bytes to which an acknowledgement's message is cut.
const maxMessage = 256

// Options change how a Coordinator works. Nil and zero fields mean the defaults.
type Options struct {
	// Log receives every change of a drain. Nil discards.
	Log *slog.Logger

	// Backlog is how many events are kept for watchers that resume or lag
	// behind, and how many ended drains are remembered so that a late Start
	// cannot restart one. Zero means 4096.
	Backlog int
}

// A Coordinator is an nstance.DrainCoordinator in memory. Its methods do no
// I/O, never block on a watcher, and are safe for concurrent use. Create it
// with New.
type Coordinator struct {
	log  *slog.Logger
	feed *feed.Feed[nstance.DrainEvent]

	mu        sync.Mutex // also orders the feed against drains
	drains    map[nstance.InstanceID]*entry
	retired   retired
	executors map[nstance.TenantID]int // connected operators by tenant; empty: every tenant's
	observers map[int]func(nstance.TenantID)
	observed  int // number of the latest observer
}

// An entry is one drain under way. Its values are replaced, never changed in
// place, because events share them.
type entry struct {
	drain   nstance.Drain
	lastAck *nstance.Ack
}

var _ nstance.DrainCoordinator = (*Coordinator)(nil)

// New returns a Coordinator without drains.
func New(opts *Options) *Coordinator {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Backlog <= 0 {
		o.Backlog = feed.DefaultBacklog
	}
	return &Coordinator{
		log:       o.Log,
		feed:      feed.New[nstance.DrainEvent](o.Backlog),
		drains:    map[nstance.InstanceID]*entry{},
		retired:   retired{limit: o.Backlog, upTo: map[nstance.InstanceID]uint64{}},
		executors: map[nstance.TenantID]int{},
		observers: map[int]func(nstance.TenantID){},
	}
}

// Start announces a drain, or tightens it: within one generation the deadline
// only comes earlier and voluntary only becomes involuntary, while causes and,
// unless the drain is over, the executor are replaced by the latest. A repeated
// Start that changes nothing publishes nothing. A newer generation replaces an
// older one that was neither cancelled nor ended. Fails with Conflict for a
// generation older than the one announced, or one that has ended, and with
// Invalid for a drain without instance, generation or deadline.
func (c *Coordinator) Start(_ context.Context, d nstance.Drain) error {
	d, err := validate(d)
	if err != nil {
		return err
	}
	published, err := c.start(d)
	c.logEvent(published)
	return err
}

func (c *Coordinator) start(d nstance.Drain) (published *nstance.DrainEvent, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.drains[d.Instance]
	switch {
	case d.Generation <= c.retired.upTo[d.Instance]:
		return nil, nstance.Errorf(nstance.Conflict, "drain %d of %s has ended", d.Generation, d.Instance)
	case e != nil && d.Generation < e.drain.Generation:
		return nil, nstance.Errorf(nstance.Conflict, "drain %d of %s was replaced by drain %d", d.Generation, d.Instance, e.drain.Generation)
	case e == nil || d.Generation > e.drain.Generation:
		c.drains[d.Instance] = &entry{drain: d}
		return c.publish(nstance.DrainRequested, d, nil), nil
	}
	if e.lastAck != nil && final(*e.lastAck) {
		d.Executor = e.drain.Executor // it is done: no other executor takes over
	}
	if next, change := tighten(e.drain, d); change != "" {
		if next.Executor != e.drain.Executor {
			e.lastAck = nil // the former executor's
		}
		e.drain = next
		published = c.publish(change, next, nil)
	}
	return published, nil
}

// validate returns a copy of d that shares nothing with the caller, or an Invalid
// error.
func validate(d nstance.Drain) (nstance.Drain, error) {
	switch {
	case d.Instance == "":
		return d, nstance.FieldError("instance_id", "name the instance", "is empty")
	case d.Generation == 0:
		return d, nstance.FieldError("generation", "count from one", "is zero")
	case d.Deadline.IsZero():
		return d, nstance.FieldError("deadline", "set one: the machine is deleted then", "is zero")
	}
	switch d.Executor {
	case "":
		d.Executor = nstance.ExecutorNone
	case nstance.ExecutorAgent, nstance.ExecutorOperator, nstance.ExecutorNone:
	default:
		return d, nstance.FieldError("executor", "use operator, agent or none", "%q is not an executor", d.Executor)
	}
	d.Causes = slices.Clone(d.Causes)
	return d, nil
}

// tighten returns have as narrowed by want, a repeat of the same generation,
// and what kind of change that is; empty: none.
func tighten(have, want nstance.Drain) (next nstance.Drain, change nstance.DrainEventType) {
	next = have
	if want.Deadline.Before(have.Deadline) {
		next.Deadline, change = want.Deadline, nstance.DrainTightened
	}
	if have.Voluntary && !want.Voluntary {
		next.Voluntary, change = false, nstance.DrainTightened
	}
	if have.CordonOnly && !want.CordonOnly {
		next.CordonOnly, change = false, nstance.DrainTightened
	}
	if !slices.Equal(have.Causes, want.Causes) {
		next.Causes, change = want.Causes, nstance.DrainTightened
	}
	if have.Executor != want.Executor {
		next.Executor, change = want.Executor, nstance.DrainReassigned
	}
	return next, change
}

// Acknowledge records an outcome. The first Drained, or the first Failed with
// Delete, is final: it ends the wait. Later acknowledgements of the same drain,
// repeats of a Failed by the same executor, and a Blocked with the same message again,
// are accepted and change nothing. A message longer than 256 bytes is cut. Fails with NotFound when the instance is not draining,
// Conflict for another generation, Denied when By is not the drain's executor or
// the drain has none, and Invalid for an unknown outcome.
func (c *Coordinator) Acknowledge(_ context.Context, a nstance.Ack) error {
	a.Message = clip.Text(a.Message, maxMessage)
	published, err := c.acknowledge(a)
	c.logEvent(published)
	return err
}

// acknowledge returns the event published for a, nil if a changes nothing.
func (c *Coordinator) acknowledge(a nstance.Ack) (published *nstance.DrainEvent, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.drains[a.Instance]
	switch {
	case e == nil:
		return nil, nstance.Errorf(nstance.NotFound, "instance %s is not draining", a.Instance)
	case a.Generation != e.drain.Generation:
		return nil, nstance.Errorf(nstance.Conflict, "instance %s is in drain %d, not %d", a.Instance, e.drain.Generation, a.Generation)
	case a.By != e.drain.Executor || a.By == nstance.ExecutorNone:
		return nil, nstance.Errorf(nstance.Denied, "drain %d of %s is for %s to acknowledge, not %q", a.Generation, a.Instance, e.drain.Executor, a.By)
	case !slices.Contains(outcomes, a.Outcome):
		return nil, nstance.FieldError("outcome", "use drained, failed or blocked", "%q is not an outcome", a.Outcome)
	case a.Delete && a.Outcome == nstance.OutcomeBlocked:
		return nil, nstance.FieldError("delete", "use the outcome failed to end the drain", "is set for a drain that goes on")
	case e.repeats(a):
		return nil, nil
	}
	e.lastAck = &a
	return c.publish(nstance.DrainAcknowledged, e.drain, &a), nil
}

var outcomes = []nstance.Outcome{nstance.OutcomeDrained, nstance.OutcomeFailed, nstance.OutcomeBlocked}

// repeats reports whether a says nothing beyond the last acknowledgement.
func (e *entry) repeats(a nstance.Ack) bool {
	switch last := e.lastAck; {
	case last == nil:
		return false
	case final(*last):
		return true
	case a.Outcome == nstance.OutcomeBlocked:
		return *last == a
	default:
		return last.Outcome == a.Outcome && !final(a)
	}
}

// final reports whether the deletion may go on after a.
func final(a nstance.Ack) bool { return a.Outcome == nstance.OutcomeDrained || a.Delete }

// Cancel withdraws a drain of this generation or an older one; its generation
// cannot be started again. A newer drain is left alone, which is not an error.
func (c *Coordinator) Cancel(_ context.Context, id nstance.InstanceID, generation uint64) error {
	c.logEvent(c.retire(id, generation, nstance.DrainCancelled))
	return nil
}

// End says that the instance is being deleted: its drain is over, whatever its
// outcome, and cannot be started again.
func (c *Coordinator) End(_ context.Context, id nstance.InstanceID) error {
	c.logEvent(c.retire(id, math.MaxUint64, nstance.DrainEnded))
	return nil
}

// retire removes the drain of id, unless there is none or it is newer than
// the given generation.
func (c *Coordinator) retire(id nstance.InstanceID, generation uint64, why nstance.DrainEventType) *nstance.DrainEvent {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.drains[id]
	if e == nil || e.drain.Generation > generation {
		return nil
	}
	delete(c.drains, id)
	c.retired.add(id, e.drain.Generation)
	return c.publish(why, e.drain, nil)
}

// publish is called under the lock, so that snapshots and events agree.
func (c *Coordinator) publish(what nstance.DrainEventType, d nstance.Drain, a *nstance.Ack) *nstance.DrainEvent {
	e := nstance.DrainEvent{Type: what, Drain: d, Ack: a}
	c.feed.Publish(e)
	return &e
}

// logEvent is called without the lock, because a log may block. Nil logs
// nothing.
func (c *Coordinator) logEvent(e *nstance.DrainEvent) {
	if e == nil {
		return
	}
	attrs := []slog.Attr{
		slog.String("event", string(e.Type)),
		slog.String("instance_id", string(e.Drain.Instance)),
		slog.String("group", e.Drain.Group.String()),
		slog.Uint64("generation", e.Drain.Generation),
		slog.Time("deadline", e.Drain.Deadline),
	}
	if e.Ack != nil {
		attrs = append(attrs, slog.String("outcome", string(e.Ack.Outcome)), slog.String("message", e.Ack.Message))
	}
	c.log.LogAttrs(context.Background(), slog.LevelInfo, "drain changed", attrs...)
}
