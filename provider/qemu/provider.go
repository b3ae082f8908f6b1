package qemu

import (
	"context"
	"errors"
	"iter"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/machines"
)

// Create implements [nstance.Provider]: it returns once the machine has its
// folder and its disks. QEMU is started in the background.
func (c *Cloud) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	s, err := c.o.plan(spec)
	if err != nil {
		return nstance.Machine{}, err
	}
	return c.machines.Create(ctx, spec, machines.Name{}, func(p *machines.Part) *machine { return newMachine(c, p, spec, s) })
}

// Get implements [nstance.Provider].
func (c *Cloud) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	return c.machines.Get(ctx, id)
}

// List implements [nstance.Provider].
func (c *Cloud) List(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return c.machines.List(ctx, owner)
}

// Delete implements [nstance.Provider]: the machine is asked to power itself off
// and ended after Options.Grace. Without a handle in want, the machine is looked
// up by its ID.
func (c *Cloud) Delete(ctx context.Context, want nstance.Machine) error {
	return c.machines.Delete(ctx, want)
}

// ConsoleOutput implements [nstance.ConsoleReader]. What a machine prints is
// there at once.
func (c *Cloud) ConsoleOutput(ctx context.Context, want nstance.Machine) ([]byte, error) {
	c.machines.Lock()
	m, err := c.machines.Find(ctx, want)
	c.machines.Unlock()
	if err != nil {
		return nil, err
	}
	return m.console.end(), nil
}

// classify classifies an error of creating a machine.
func classify(err error) error {
	if isExit(err) { // qemu-img refuses the image
		return nstance.Errorf(nstance.Invalid, "the machine cannot be created: %w", err)
	}
	if _, ok := errors.AsType[*nstance.Error](err); ok {
		return err
	}
	return machines.ClassifyCreate(err)
}
