package qemu

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/imds"
)

// Interrupt announces through its metadata service that spot machine id is
// reclaimed, and ends it after that time: it is shown as stopped for a second and
// then gone. action is what aws announces: terminate (also for ""), stop or
// hibernate; there the time is rounded up to the next full second, as the
// announcement names no finer one. Announcing again sets a new time. Fails with
// NotFound when there is no such machine, Conflict when it does not run any
// more, Invalid when it is not spot.
func (c *Cloud) Interrupt(id nstance.InstanceID, action string, after time.Duration) error {
	action = cmp.Or(action, "terminate")
	if !slices.Contains([]string{"terminate", "stop", "hibernate"}, action) {
		return nstance.FieldError("action", "use terminate, stop or hibernate", "%.64q is not known", action)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	m, err := c.living(id)
	if err != nil {
		return err
	}
	if m.view.Market != nstance.Spot {
		return nstance.FieldError("id", "create it with market spot", "machine %s is not spot capacity", id)
	}
	at := time.Now().Add(max(after, 0))
	if whole := at.Truncate(time.Second); c.o.Protocol == imds.AWS && whole.Before(at) {
		at = whole.Add(time.Second)
	}
	m.metadata.Reclaim(action, at)
	m.schedule(at)
	return nil
}

// Withdraw takes an announced interruption of id back: the machine stays. It
// does nothing when none is announced, and fails as Interrupt does.
func (c *Cloud) Withdraw(id nstance.InstanceID) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, err := c.living(id)
	if err != nil {
		return err
	}
	m.metadata.Withdraw()
	m.schedule(time.Time{})
	return nil
}

// Kill ends machine id at once and without notice, as a failing host does. The
// machine stays behind as failed. Fails with NotFound when there is no such
// machine, Conflict when it does not run.
func (c *Cloud) Kill(ctx context.Context, id nstance.InstanceID) error {
	c.mu.Lock()
	m, err := c.living(id)
	c.mu.Unlock()
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

// living returns the machine unless it has ended or is being ended. It needs
// c.mu.
func (c *Cloud) living(id nstance.InstanceID) (*machine, error) {
	m := c.machines[id]
	switch {
	case m == nil:
		return nil, nstance.Errorf(nstance.NotFound, "no machine %.64s", id)
	case m.view.Status.Dead():
		return nil, nstance.Errorf(nstance.Conflict, "machine %s is %s", id, m.view.Status)
	}
	return m, nil
}

// schedule replaces the deadline that live has not read yet, if any. It needs
// the cloud's lock.
func (m *machine) schedule(at time.Time) {
	select {
	case <-m.deadline:
	default:
	}
	m.deadline <- at
}
