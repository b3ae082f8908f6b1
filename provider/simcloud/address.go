package simcloud

import (
	"context"
	"slices"

	"github.com/nstance-go/nstance"
)

// A Host is the view of the cloud from one machine on which a server runs. It has
// its own addresses; everything else is the cloud's.
type Host struct {
	*Cloud
	name string
}

var (
	_ nstance.Provider     = (*Host)(nil)
	_ nstance.AddressMover = (*Host)(nil)
	_ nstance.AddressMover = (*Cloud)(nil)
)

// At returns the view of the machine with that name. Faults match its address
// calls by that name, as Fault.ID.
func (c *Cloud) At(name string) *Host { return &Host{c, name} }

// TakeAddress implements [nstance.AddressMover].
func (h *Host) TakeAddress(ctx context.Context, address string) error {
	return h.call(ctx, OpTakeAddress, nstance.InstanceID(h.name), func() error {
		if err := h.checkAddress(address); err != nil {
			return err
		}
		h.addresses[address] = h.name
		return nil
	})
}

// HoldsAddress implements [nstance.AddressMover].
func (h *Host) HoldsAddress(ctx context.Context, address string) (holds bool, err error) {
	err = h.call(ctx, OpHoldsAddress, nstance.InstanceID(h.name), func() error {
		at, taken := h.addresses[address]
		holds = taken && at == h.name
		return h.checkAddress(address)
	})
	return holds && err == nil, err
}

// TakeAddress implements [nstance.AddressMover] for the machine without a name,
// on which the only server of a cloud runs.
func (c *Cloud) TakeAddress(ctx context.Context, address string) error {
	return c.At("").TakeAddress(ctx, address)
}

// HoldsAddress implements [nstance.AddressMover], as TakeAddress does.
func (c *Cloud) HoldsAddress(ctx context.Context, address string) (bool, error) {
	return c.At("").HoldsAddress(ctx, address)
}

// AddressAt returns the name of the machine that has the address at this
// moment; ok is false while no machine has it.
func (c *Cloud) AddressAt(address string) (name string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	name, ok = c.addresses[address]
	return name, ok
}

// ReleaseAddress removes the address from its machine, as an operator at the
// cloud's console would.
func (c *Cloud) ReleaseAddress(address string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.addresses, address)
}

// checkAddress needs c.mu.
func (c *Cloud) checkAddress(address string) error {
	switch {
	case address == "":
		return nstance.FieldError("address", "name one", "is empty")
	case c.o.Addresses != nil && !slices.Contains(c.o.Addresses, address):
		return nstance.Errorf(nstance.NotFound, "no address %.64q", address)
	}
	return nil
}
