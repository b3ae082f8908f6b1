package cache

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/nstance-go/nstance"
)

// Run writes what is queued, in batches, until ctx ends; then it writes the
// rest and returns nil. A batch that cannot be written is retried, and a file that
// cannot be used any more is replaced: a failure of the cache never ends a server.
// Problems and the log report it. It is called once.
func (c *Cache) Run(ctx context.Context) error {
	c.setRunning(true)
	defer c.setRunning(false)
	check := time.NewTicker(20 * c.opts.Interval)
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			c.flush(ctx)
			return nil
		case <-check.C:
		case <-c.wake:
		}
		if c.waitForBatch(ctx) && !c.flush(ctx) {
			signal(c.wake)
		}
	}
}

// waitForBatch waits for a full batch or the interval, and returns false when ctx
// ends.
func (c *Cache) waitForBatch(ctx context.Context) bool {
	full, wait := c.full, c.opts.Interval
	if c.retryDelay > 0 {
		full, wait = nil, c.retryDelay // the queue may stay full: do not spin
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
	case <-full:
	case <-ctx.Done():
		return false
	}
	return true
}

// flush writes all queued events and reports whether that succeeded. It finishes its
// batch even when ctx ends.
func (c *Cache) flush(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	defer c.release(c.takeWaiting(true))
	err := c.write(ctx)
	if mustReplace(err) { // retry with the new file
		err = c.write(ctx)
	}
	c.recordOutcome(err)
	if err == nil {
		c.retryDelay = 0
	} else {
		c.retryDelay = min(max(2*c.retryDelay, c.opts.Interval), maxRetryDelay)
	}
	return err == nil
}

func (c *Cache) setRunning(running bool) {
	c.mu.Lock()
	c.running = running
	c.mu.Unlock()
	if !running {
		c.release(c.takeWaiting(false))
	}
}

// takeWaiting returns the waiting readers, and sets whether a flush begins now.
func (c *Cache) takeWaiting(flush bool) []chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.waiting
	c.waiting, c.flushing = nil, flush
	return out
}

func (c *Cache) release(readers []chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flushing = false
	for _, r := range readers {
		close(r)
	}
}

// waitForFlush waits until the events that are queued now were written, or failed to
// be. It does not wait while writes fail.
func (c *Cache) waitForFlush(ctx context.Context) {
	c.mu.Lock()
	if !c.running || c.failure != nil || len(c.events) == 0 && !c.flushing {
		c.mu.Unlock()
		return
	}
	done := make(chan struct{})
	c.waiting = append(c.waiting, done)
	c.mu.Unlock()
	signal(c.wake)
	signal(c.full)
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// write writes all queued events to a usable file.
func (c *Cache) write(ctx context.Context) error {
	if err := c.ensureFile(ctx); err != nil {
		return err
	}
	events := c.takeQueue()
	err := c.store(ctx, events)
	if err != nil {
		c.counts = nil // it is unknown which events landed
		c.putBack(events)
	} else {
		err = c.trimEvents(ctx, events)
	}
	if unusable(err) {
		c.requestReplacement(c.file, err)
	}
	return err
}

func (c *Cache) takeQueue() []nstance.Event {
	c.mu.Lock()
	defer c.mu.Unlock()
	events := c.events
	c.events = nil
	return events
}

// putBack queues events again that could not be written, before newer ones. If the
// queue is full, the newest events are dropped.
func (c *Cache) putBack(events []nstance.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	events = append(events, c.events...)
	if over := len(events) - c.opts.Queue; over > 0 {
		events = events[:c.opts.Queue]
		c.dropped += uint64(over)
	}
	c.events = events
}

func (c *Cache) store(ctx context.Context, events []nstance.Event) error {
	if len(events) == 0 {
		return nil
	}
	return c.inTx(ctx, func(tx *sql.Tx) error { return storeEvents(ctx, tx, events) })
}

func (c *Cache) inTx(ctx context.Context, do func(*sql.Tx) error) error {
	tx, err := c.file.write.BeginTx(ctx, nil)
	if err != nil {
		return classify(err)
	}
	if err := do(tx); err != nil {
		_ = tx.Rollback() // the first error counts
		return classify(err)
	}
	return classify(tx.Commit())
}

func storeEvents(ctx context.Context, tx *sql.Tx, events []nstance.Event) error {
	insert, err := tx.PrepareContext(ctx, "INSERT INTO events (tenant, grp, instance, body) VALUES (?, ?, ?, ?)")
	if err != nil {
		return err
	}
	defer insert.Close()
	for _, e := range events {
		e.Seq = 0
		body, err := json.Marshal(e)
		if err != nil {
			continue // a time beyond the year 9999: such an event must not block the others
		}
		if _, err := insert.ExecContext(ctx, string(e.Tenant), string(e.Group), string(e.Instance), string(body)); err != nil {
			return err
		}
	}
	return nil
}
