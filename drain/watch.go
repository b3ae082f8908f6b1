package drain

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/feed"
)

// Watch yields the drains of a tenant, or of all if it is empty: one
// DrainSnapshot each, earliest deadline first, then DrainSynced, then events in
// order. With the number of an event that is still remembered it resumes after
// that event instead. Snapshots carry no number: a watcher that ends within the
// snapshot starts again. Acknowledged drains are in the snapshot until they end, with
// the last acknowledgement; acknowledging one again is harmless.
func (c *Coordinator) Watch(ctx context.Context, tenant nstance.TenantID, after nstance.Seq) iter.Seq2[nstance.DrainEvent, error] {
	view := feed.View[nstance.DrainEvent]{Snapshot: c.snapshot}
	if tenant != "" {
		view.Keep = func(e nstance.DrainEvent) bool { return e.Drain.Group.Tenant == tenant }
	}
	return func(yield func(nstance.DrainEvent, error) bool) {
		for item, err := range c.feed.Subscribe(ctx, after, view) {
			if !yield(event(item), err) {
				return
			}
		}
	}
}

// event returns a copy of an item that the receiver may change.
func event(item feed.Item[nstance.DrainEvent]) nstance.DrainEvent {
	e := item.Value
	e.Seq = item.Seq
	e.Drain.Causes = slices.Clone(e.Drain.Causes)
	if item.Kind == feed.Synced {
		e.Type = nstance.DrainSynced
	}
	if e.Ack != nil {
		ack := *e.Ack
		e.Ack = &ack
	}
	return e
}

func (c *Coordinator) snapshot() (iter.Seq[nstance.DrainEvent], nstance.Seq) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []nstance.DrainEvent
	for _, d := range c.active() {
		all = append(all, nstance.DrainEvent{Type: nstance.DrainSnapshot, Drain: d, Ack: c.drains[d.Instance].lastAck})
	}
	return slices.Values(all), c.feed.Last()
}

// Active returns the drains under way, earliest deadline first.
func (c *Coordinator) Active() []nstance.Drain {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.active()
	for i := range all {
		all[i].Causes = slices.Clone(all[i].Causes)
	}
	return all
}

// Of returns the drain of one instance that is under way, if there is one.
func (c *Coordinator) Of(id nstance.InstanceID) (nstance.Drain, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.drains[id]
	if !ok {
		return nstance.Drain{}, false
	}
	d := e.drain
	d.Causes = slices.Clone(d.Causes)
	return d, true
}

func (c *Coordinator) active() []nstance.Drain {
	all := make([]nstance.Drain, 0, len(c.drains))
	for _, e := range c.drains {
		all = append(all, e.drain)
	}
	slices.SortFunc(all, func(a, b nstance.Drain) int {
		if n := a.Deadline.Compare(b.Deadline); n != 0 {
			return n
		}
		return strings.Compare(string(a.Instance), string(b.Instance))
	})
	return all
}

// AddExecutor says that an operator executes the tenant's drains, or those of
// every tenant if it is empty, until remove is called. Executors are counted,
// so there may be several; remove may be called more than once.
func (c *Coordinator) AddExecutor(tenant nstance.TenantID) (remove func()) {
	c.countExecutors(tenant, 1)
	return sync.OnceFunc(func() { c.countExecutors(tenant, -1) })
}

func (c *Coordinator) countExecutors(tenant nstance.TenantID, by int) {
	c.mu.Lock()
	before := c.executors[tenant]
	if c.executors[tenant] = before + by; before+by == 0 {
		delete(c.executors, tenant)
	}
	observers := slices.Collect(maps.Values(c.observers))
	c.mu.Unlock()
	if before == 0 || before+by == 0 {
		for _, observe := range observers {
			observe(tenant)
		}
	}
}

// NotifyExecutors calls f when the first executor of a tenant (empty: of every tenant)
// is added, and when the last is removed, until stop is called. f is called without a
// lock held and may call the Coordinator; it must not block.
func (c *Coordinator) NotifyExecutors(f func(nstance.TenantID)) (stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.observed++
	number := c.observed
	c.observers[number] = f
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.observers, number)
	}
}

// HasExecutor reports whether an operator executes the tenant's drains now.
func (c *Coordinator) HasExecutor(tenant nstance.TenantID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.executors[tenant] > 0 || c.executors[""] > 0
}
