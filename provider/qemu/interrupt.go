package qemu

import (
	"context"
	"time"

	"github.com/nstance-go/nstance"
)

// Interrupt announces through its metadata service that spot machine id is
// reclaimed, and ends it after that time: it is shown as stopped for a second and
// then gone. action is what aws announces: terminate (also for ""), stop or
// hibernate; there the time is rounded up to the next full second, as the
// announcement names no finer one. Announcing again sets a new time. Fails with
// NotFound when there is no such machine, Conflict when it does not run any
// more, Invalid when it is not spot.
func (c *Cloud) Interrupt(id nstance.InstanceID, action string, after time.Duration) error {
	return c.machines.Interrupt(id, action, after)
}

// Withdraw takes an announced interruption of id back: the machine stays. It
// does nothing when none is announced, and fails as Interrupt does.
func (c *Cloud) Withdraw(id nstance.InstanceID) error { return c.machines.Withdraw(id) }

// Kill ends machine id at once and without notice, as a failing host does. The
// machine stays behind as failed. Fails with NotFound when there is no such
// machine, Conflict when it does not run.
func (c *Cloud) Kill(ctx context.Context, id nstance.InstanceID) error {
	c.machines.Lock()
	m, err := c.machines.Living(id)
	c.machines.Unlock()
	if err != nil {
		return err
	}
	killed := make(chan bool, 1)
	select {
	case m.kills <- killed:
	case <-m.ctx.Done():
		return nstance.Errorf(nstance.Conflict, "machine %s is being deleted", id)
	case <-ctx.Done():
		return nstance.Errorf(nstance.Unavailable, "machine %s is busy: %w", id, ctx.Err())
	}
	if !<-killed {
		return nstance.Errorf(nstance.Conflict, "machine %s has no process", id)
	}
	return nil
}
