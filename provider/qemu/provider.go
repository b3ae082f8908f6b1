package qemu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"net/netip"
	"syscall"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

// Create implements [nstance.Provider]: it returns once the machine has its
// folder and its disks. QEMU is started in the background.
func (c *Cloud) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	m, fresh, err := c.claim(ctx, spec)
	if err != nil {
		return nstance.Machine{}, err
	}
	if fresh {
		m.make()
	}
	select {
	case <-m.made:
	case <-ctx.Done():
		return nstance.Machine{}, nstance.Errorf(nstance.Ambiguous, "machine %s is being made: %w", spec.ID, ctx.Err())
	}
	if m.failure != nil {
		return nstance.Machine{}, m.failure
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return m.snapshot(), nil
}

// claim returns the machine of spec, or enters a fresh one that the caller has
// to make.
func (c *Cloud) claim(ctx context.Context, spec nstance.MachineSpec) (m *machine, fresh bool, err error) {
	s, err := c.o.plan(spec)
	if err != nil {
		return nil, false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.available(ctx); err != nil {
		return nil, false, err
	}
	if m := c.machines[spec.ID]; m != nil {
		if m.print != provider.Fingerprint(spec) {
			return nil, false, nstance.Errorf(nstance.Conflict, "machine %s exists with other parameters", spec.ID)
		}
		return m, false, nil
	}
	if most := c.o.MaxMachines; most > 0 && len(c.machines) >= most {
		return nil, false, nstance.Errorf(nstance.Capacity, "there are %d machines already, the number that option max_machines permits", most)
	}
	c.seq++
	m = newMachine(c, spec, s, nstance.Machine{
		ID: spec.ID, ProviderID: fmt.Sprintf("qemu-%d", c.seq), Owner: spec.Owner, Group: spec.Group,
		CreatedAt: spec.CreatedAt, Epoch: spec.Epoch, Status: nstance.StatusPending,
		InstanceType: spec.InstanceType, Zone: zone, Market: cmp.Or(spec.Market, nstance.OnDemand),
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{169, 254, 169, 15})}, // the first that QEMU's DHCP server leases
	})
	c.machines[spec.ID], c.handles[m.view.ProviderID] = m, m
	c.wg.Add(1) // until the machine is gone: see vanish
	return m, true, nil
}

// Get implements [nstance.Provider].
func (c *Cloud) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.available(ctx); err != nil {
		return nstance.Machine{}, err
	}
	m := c.machines[id]
	if m == nil {
		return nstance.Machine{}, nstance.Errorf(nstance.NotFound, "no machine %.64s", id)
	}
	return m.snapshot(), nil
}

// List implements [nstance.Provider].
func (c *Cloud) List(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return provider.ListOf(ctx, func() ([]nstance.Machine, error) { return c.owned(ctx, owner) })
}

func (c *Cloud) owned(ctx context.Context, owner nstance.Owner) ([]nstance.Machine, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.available(ctx); err != nil {
		return nil, err
	}
	var out []nstance.Machine
	for _, m := range c.machines {
		if owner.Owns(m.view.Owner) {
			out = append(out, m.snapshot())
		}
	}
	return out, nil
}

// Delete implements [nstance.Provider]: the machine is asked to power itself off
// and ended after Options.Grace. Without a handle in want, the machine is looked
// up by its ID.
func (c *Cloud) Delete(ctx context.Context, want nstance.Machine) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, err := c.find(ctx, want)
	if err != nil {
		return err
	}
	m.halt()
	return nil
}

// find returns the machine that want names, if it carries want's marks. It needs
// c.mu.
func (c *Cloud) find(ctx context.Context, want nstance.Machine) (*machine, error) {
	if err := c.available(ctx); err != nil {
		return nil, err
	}
	m := c.handles[want.ProviderID]
	if want.ProviderID == "" {
		m = c.machines[want.ID]
	}
	switch {
	case m == nil:
		return nil, nstance.Errorf(nstance.NotFound, "no machine %s %s", want.ProviderID, want.ID)
	case m.view.ID != want.ID || m.view.Owner != want.Owner:
		return nil, nstance.Errorf(nstance.Conflict, "machine %s is %s of %+v", want.ProviderID, m.view.ID, m.view.Owner)
	}
	return m, nil
}

// ConsoleOutput implements [nstance.ConsoleReader]. What a machine prints is
// there at once.
func (c *Cloud) ConsoleOutput(ctx context.Context, want nstance.Machine) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, err := c.find(ctx, want)
	if err != nil {
		return nil, err
	}
	return m.console.end(), nil
}

// classify says what the failure to make a machine means for the caller.
func classify(err error) error {
	for _, full := range []error{syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.ENOSPC} {
		if errors.Is(err, full) {
			return nstance.Errorf(nstance.Quota, "this host has no room for one more machine: %w", err)
		}
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || isExit(err) {
		return nstance.Errorf(nstance.Invalid, "the machine cannot be made: %w", err)
	}
	return nstance.Errorf(nstance.Internal, "the machine cannot be made: %w", err)
}
