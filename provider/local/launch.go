package local

import (
	"context"
	"syscall"
	"time"

	"github.com/nstance-go/nstance"
)

// A Launch says how a machine is made that is part of another cloud: one that
// pretends to be a real cloud, and has its machines here. That cloud decides how
// long they live.
type Launch struct {
	Handle string // what its metadata service calls it; empty: as Create does
	Zone   string // the same

	// Exited is called once when the machine's process has ended by itself. It
	// must not block.
	Exited func()
}

// Launch makes a machine as Create does.
func (c *Cloud) Launch(ctx context.Context, spec nstance.MachineSpec, o Launch) error {
	_, err := c.launch(ctx, spec, o)
	return err
}

// Announce announces through its metadata service that machine id is taken at
// that time, or at another one than before. Nothing else happens: Destroy does.
// It fails as Interrupt does.
func (c *Cloud) Announce(id nstance.InstanceID, action string, at time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, err := c.living(id)
	if err != nil {
		return err
	}
	m.metadata.Reclaim(action, at)
	return nil
}

// Destroy kills machine id and returns when nothing of it is left, or ctx ends.
// A machine that does not exist is nothing already.
func (c *Cloud) Destroy(ctx context.Context, id nstance.InstanceID) error {
	c.mu.Lock()
	m := c.machines[id]
	if m != nil {
		m.signal(syscall.SIGKILL)
		m.halt()
	}
	c.mu.Unlock()
	if m == nil {
		return nil
	}
	select {
	case <-m.gone:
		return nil
	case <-ctx.Done():
		return nstance.Errorf(nstance.Unavailable, "machine %s still ends: %w", id, ctx.Err())
	}
}
