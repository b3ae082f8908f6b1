package simcloud

import (
	"context"
	"time"

	"github.com/nstance-go/nstance"
)

// call takes one call through everything that lies between a client and the
// cloud's books, and logs it. effect runs under the cloud's lock.
func (c *Cloud) call(ctx context.Context, op Op, id nstance.InstanceID, effect func() error) error {
	start := time.Now()
	err := c.serve(ctx, op, id, effect)
	c.note(op, id, start, err)
	return err
}

func (c *Cloud) serve(ctx context.Context, op Op, id nstance.InstanceID, effect func() error) error {
	if err := c.enter(ctx); err != nil {
		return err
	}
	defer c.leave()
	there, back := c.ways()
	if err := c.travel(ctx, op, there); err != nil {
		return err
	}
	fault, err := c.admit(op, id)
	if err != nil {
		return err
	}
	if fault.at(Before) {
		return fault.err()
	}
	if fault.at(Late) {
		c.later(fault.Delay, effect)
		return fault.err()
	}
	err = c.locked(effect)
	if err := c.travel(ctx, op, back); err != nil {
		return err
	}
	if fault.at(After) {
		return fault.err()
	}
	return err
}

func (c *Cloud) locked(effect func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return effect()
}

// enter waits until the cloud serves one more call.
func (c *Cloud) enter(ctx context.Context) error {
	if ctx.Err() != nil {
		return nstance.Errorf(nstance.Unavailable, "nothing was sent: %w", ctx.Err())
	}
	if c.slots == nil {
		return nil
	}
	select {
	case c.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return nstance.Errorf(nstance.Unavailable, "nothing was sent: %w", ctx.Err())
	case <-c.done:
		return errClosed()
	}
}

func (c *Cloud) leave() {
	if c.slots != nil {
		<-c.slots
	}
}

func errClosed() error { return nstance.Errorf(nstance.Unavailable, "the cloud is closed") }

// ways draws a call's latency and halves it.
func (c *Cloud) ways() (there, back time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.draw(c.o.Latency)
	return d / 2, d - d/2
}

// travel takes d. A caller that does not wait that long cannot know the result
// of its create or address move.
func (c *Cloud) travel(ctx context.Context, op Op, d time.Duration) error {
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		case <-c.done:
			return errClosed()
		}
	}
	switch {
	case ctx.Err() == nil:
		return nil
	case op == OpCreate || op == OpTakeAddress:
		return nstance.Errorf(nstance.Ambiguous, "no answer: %w", ctx.Err())
	}
	return nstance.Errorf(nstance.Unavailable, "no answer: %w", ctx.Err())
}

// admit throttles the call, or returns the fault that strikes it, if any.
func (c *Cloud) admit(op Op, id nstance.InstanceID) (*Fault, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errClosed()
	}
	if c.throttled(op) {
		return nil, nstance.Errorf(nstance.Throttled, "too many %s calls", op)
	}
	return c.strike(op, id), nil
}

// later lets the effect happen on its own, as when a call has been delayed on
// its way and its caller has given up.
func (c *Cloud) later(d time.Duration, effect func() error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.after(d, &event{do: func() func() {
		_ = effect() // the caller has gone
		return nil
	}})
}
