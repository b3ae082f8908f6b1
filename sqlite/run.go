package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/nstance-go/nstance"
)

// Run writes what is queued, in batches, until ctx ends; then it writes the
// rest and returns nil. A batch that cannot be written is retried, and a file that
// cannot be used any more is replaced: a failure of the journal never ends a server.
// Problems and the log report it. It is called once.
func (j *Journal) Run(ctx context.Context) error {
	j.setRunning(true)
	defer j.setRunning(false)
	check := time.NewTicker(20 * j.opts.Interval)
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			j.flush(ctx)
			return nil
		case <-check.C:
		case <-j.wake:
		}
		if j.waitForBatch(ctx) && !j.flush(ctx) {
			signal(j.wake)
		}
	}
}

// waitForBatch waits for a full batch or the interval, and returns false when ctx
// ends.
func (j *Journal) waitForBatch(ctx context.Context) bool {
	full, wait := j.full, j.opts.Interval
	if j.retryDelay > 0 {
		full, wait = nil, j.retryDelay // the queue may stay full: do not spin
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
func (j *Journal) flush(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	defer j.release(j.takeWaiting(true))
	err := j.write(ctx)
	if mustReplace(err) { // retry with the new file
		err = j.write(ctx)
	}
	j.recordOutcome(err)
	if err == nil {
		j.retryDelay = 0
	} else {
		j.retryDelay = min(max(2*j.retryDelay, j.opts.Interval), maxRetryDelay)
	}
	return err == nil
}

func (j *Journal) setRunning(running bool) {
	j.mu.Lock()
	j.running = running
	j.mu.Unlock()
	if !running {
		j.release(j.takeWaiting(false))
	}
}

// takeWaiting returns the waiting readers, and sets whether a flush begins now.
func (j *Journal) takeWaiting(flush bool) []chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := j.waiting
	j.waiting, j.flushing = nil, flush
	return out
}

func (j *Journal) release(readers []chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.flushing = false
	for _, r := range readers {
		close(r)
	}
}

// waitForFlush waits until the events that are queued now were written, or failed to
// be. It does not wait while writes fail.
func (j *Journal) waitForFlush(ctx context.Context) {
	j.mu.Lock()
	if !j.running || j.failure != nil || len(j.events) == 0 && !j.flushing {
		j.mu.Unlock()
		return
	}
	done := make(chan struct{})
	j.waiting = append(j.waiting, done)
	j.mu.Unlock()
	signal(j.wake)
	signal(j.full)
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// write writes all queued events to a usable file.
func (j *Journal) write(ctx context.Context) error {
	if err := j.ensureFile(ctx); err != nil {
		return err
	}
	events := j.takeQueue()
	err := j.store(ctx, events)
	if err != nil {
		j.counts = nil // it is unknown which events landed
		j.putBack(events)
	} else {
		err = j.trimEvents(ctx, events)
	}
	if unusable(err) {
		j.requestReplacement(j.file, err)
	}
	return err
}

func (j *Journal) takeQueue() []nstance.Event {
	j.mu.Lock()
	defer j.mu.Unlock()
	events := j.events
	j.events = nil
	return events
}

// putBack queues events again that could not be written, before newer ones. If the
// queue is full, the newest events are dropped.
func (j *Journal) putBack(events []nstance.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	events = append(events, j.events...)
	if over := len(events) - j.opts.Queue; over > 0 {
		events = events[:j.opts.Queue]
		j.dropped += uint64(over)
	}
	j.events = events
}

func (j *Journal) store(ctx context.Context, events []nstance.Event) error {
	if len(events) == 0 {
		return nil
	}
	return j.inTx(ctx, func(tx *sql.Tx) error { return storeEvents(ctx, tx, events) })
}

func (j *Journal) inTx(ctx context.Context, do func(*sql.Tx) error) error {
	tx, err := j.file.write.BeginTx(ctx, nil)
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
