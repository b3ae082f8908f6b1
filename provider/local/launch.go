package local

import (
	"context"
	"syscall"
	"time"

	"github.com/nstance-go/nstance"
)

// Launch holds the options of a machine for another cloud: a test cloud that
// imitates a real one and runs its machines here. That cloud decides when they
// end.
type Launch struct {
	Handle string // the instance ID in its metadata service; empty: as for Create
	Zone   string // in its metadata service; empty: as for Create

	// Exited is called once when the machine's process has ended by itself. It
	// must not block.
	Exited func()
}

// Launch creates a machine as Create does.
func (c *Cloud) Launch(ctx context.Context, spec nstance.MachineSpec, o Launch) error {
	_, err := c.launch(ctx, spec, o)
	return err
}

// Announce announces in its metadata service that machine id will be reclaimed at
// that time, or changes the time. It does not end the machine: Destroy does. It
// fails as Interrupt does.
func (c *Cloud) Announce(id nstance.InstanceID, action string, at time.Time) error {
	c.machines.Lock()
	defer c.machines.Unlock()
	m, err := c.machines.Living(id)
	if err != nil {
		return err
	}
	m.Metadata.Reclaim(action, at)
	return nil
}

// Destroy kills machine id and returns when all of it has been removed, or ctx
// ends. Nil if there is no such machine.
func (c *Cloud) Destroy(ctx context.Context, id nstance.InstanceID) error {
	c.machines.Lock()
	m, ok := c.machines.ByID(id)
	if ok {
		m.signal(syscall.SIGKILL)
		m.Stop()
	}
	c.machines.Unlock()
	if !ok {
		return nil
	}
	select {
	case <-m.removed:
		return nil
	case <-ctx.Done():
		return nstance.Errorf(nstance.Unavailable, "machine %s still ends: %w", id, ctx.Err())
	}
}
