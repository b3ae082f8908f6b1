package simcloud

import (
	"context"
	"time"

	"github.com/nstance-go/nstance"
)

// calls serve what is asked of the cloud: they take time, are throttled, fail and are logged.
type calls struct {
	*core
	slots   chan struct{} // nil: any number
	buckets map[Op]*bucket
	faults  []*Fault
	log     journal
}

// ask makes a call that has an answer: none after an error. The effect of the call may
// still be running then.
func ask[T any](ctx context.Context, c *calls, op Op, id nstance.InstanceID, effect func() (T, error)) (T, error) {
	var out, none T
	err := c.call(ctx, op, id, func() (err error) {
		out, err = effect()
		return err
	})
	if err != nil {
		return none, err
	}
	return out, nil
}

// call applies slots, latency, throttling and faults to one call, and logs it.
// effect runs under the cloud's lock.
func (c *calls) call(ctx context.Context, op Op, id nstance.InstanceID, effect func() error) error {
	start := time.Now()
	err := c.serve(ctx, op, id, effect)
	c.logCall(op, id, start, err)
	return err
}

func (c *calls) serve(ctx context.Context, op Op, id nstance.InstanceID, effect func() error) error {
	if err := c.enter(ctx); err != nil {
		return err
	}
	defer c.leave()
	requestDelay, answerDelay := c.latencies()
	if err := c.wait(ctx, op, requestDelay); err != nil {
		return err
	}
	fault, err := c.admit(op, id)
	if err != nil {
		return err
	}
	if fault.at(before) {
		return fault.err()
	}
	if fault.at(late) {
		c.applyLater(fault.Delay, effect)
		return fault.err()
	}
	err = c.locked(effect)
	if err := c.wait(ctx, op, answerDelay); err != nil {
		return err
	}
	if fault.at(after) {
		return fault.err()
	}
	return err
}

func (c *calls) locked(effect func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return effect()
}

// enter waits until the cloud serves one more call.
func (c *calls) enter(ctx context.Context) error {
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

func (c *calls) leave() {
	if c.slots != nil {
		<-c.slots
	}
}

func errClosed() error { return nstance.Errorf(nstance.Unavailable, "the cloud is closed") }

// latencies splits the latency of a call into the times before and after its effect.
func (c *calls) latencies() (requestDelay, answerDelay time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.sample(c.o.Latency)
	return d / 2, d - d/2
}

// wait waits for d. A caller that gives up before does not know the result of its
// create or address move.
func (c *calls) wait(ctx context.Context, op Op, d time.Duration) error {
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

// admit throttles the call, or returns the fault that it meets, if any.
func (c *calls) admit(op Op, id nstance.InstanceID) (*Fault, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errClosed()
	}
	if c.throttled(op) {
		return nil, nstance.Errorf(nstance.Throttled, "too many %s calls", op)
	}
	return c.matchFault(op, id), nil
}

// applyLater schedules the effect of a delayed call whose caller has given up.
func (c *calls) applyLater(d time.Duration, effect func() error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.later(d, func() { _ = effect() }) // the caller has given up
}
