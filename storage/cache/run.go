package cache

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/nstance-go/nstance"
)

// Run writes what is queued, in batches, until ctx ends; then it writes the
// rest and returns nil. A batch that cannot be written is tried again, and a
// file that cannot be used any more is replaced: trouble with the cache never
// ends a server. Problems and the log tell of it. It is called once.
func (c *Cache) Run(ctx context.Context) error {
	c.setRunning(true)
	defer c.setRunning(false)
	look := time.NewTicker(20 * c.opts.Interval)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			c.flush(ctx)
			return nil
		case <-look.C:
		case <-c.wake:
		}
		if c.gather(ctx) && !c.flush(ctx) {
			signal(c.wake)
		}
	}
}

// gather waits until a batch is worth writing, or returns false when ctx ends.
func (c *Cache) gather(ctx context.Context) bool {
	full, wait := c.full, c.opts.Interval
	if c.pause > 0 {
		full, wait = nil, c.pause // the queue may be full and stay so: do not spin
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

// flush writes everything that is queued and reports whether that succeeded.
// It finishes its batch even when ctx ends.
func (c *Cache) flush(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	defer c.release(c.readersOf(true))
	err := c.write(ctx)
	if hopeless(err) { // the next file has room for what this one did not take
		err = c.write(ctx)
	}
	c.outcome(err)
	if err == nil {
		c.pause = 0
	} else {
		c.pause = min(max(2*c.pause, c.opts.Interval), slowest)
	}
	return err == nil
}

func (c *Cache) setRunning(running bool) {
	c.mu.Lock()
	c.running = running
	c.mu.Unlock()
	if !running {
		c.release(c.readersOf(false))
	}
}

// readersOf returns the readers that wait for the flush that begins now, if one
// does.
func (c *Cache) readersOf(flush bool) []chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.readers
	c.readers, c.flushing = nil, flush
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

// settle waits until everything that is queued now has been written, or could
// not be. It does not wait while nothing can be written.
func (c *Cache) settle(ctx context.Context) {
	c.mu.Lock()
	if !c.running || c.failure != nil || len(c.events) == 0 && !c.flushing {
		c.mu.Unlock()
		return
	}
	done := make(chan struct{})
	c.readers = append(c.readers, done)
	c.mu.Unlock()
	signal(c.wake)
	signal(c.full)
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// write writes everything that is queued to a sound file.
func (c *Cache) write(ctx context.Context) error {
	if err := c.sound(ctx); err != nil {
		return err
	}
	events := c.take()
	err := c.store(ctx, events)
	if err != nil {
		c.counts = nil // what has landed is not known
		c.putBack(events)
	} else {
		err = c.trimEvents(ctx, events)
	}
	if unusable(err) {
		c.suspect(c.file, err)
	}
	return err
}

func (c *Cache) take() []nstance.Event {
	c.mu.Lock()
	defer c.mu.Unlock()
	events := c.events
	c.events = nil
	return events
}

// putBack queues again what could not be written, before what came since. The
// newest events are dropped if that is too much.
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
