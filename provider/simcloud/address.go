package simcloud

import (
	"context"
	"slices"

	"github.com/nstance-go/nstance"
)

// A host is the view of the cloud from one machine on which a server runs. It has
// its own addresses; everything else is the cloud's.
type host struct {
	*Cloud
	name string
}

var _ nstance.AddressMover = (*host)(nil)

// At returns the cloud as a server on the machine with that name has it: also an
// [nstance.AddressMover]. Faults match its address calls by that name, as Fault.ID.
// It is safe for concurrent use.
func (c *Cloud) At(name string) nstance.Provider { return &host{c, name} }

// TakeAddress implements [nstance.AddressMover].
func (h *host) TakeAddress(ctx context.Context, address string) error {
	return h.call(ctx, OpTakeAddress, nstance.InstanceID(h.name), func() error {
		if err := h.checkAddress(address); err != nil {
			return err
		}
		h.addresses[address] = h.name
		return nil
	})
}

// HoldsAddress implements [nstance.AddressMover].
func (h *host) HoldsAddress(ctx context.Context, address string) (holds bool, err error) {
	err = h.call(ctx, opHoldsAddress, nstance.InstanceID(h.name), func() error {
		at, taken := h.addresses[address]
		holds = taken && at == h.name
		return h.checkAddress(address)
	})
	return holds && err == nil, err
}

// checkAddress needs the lock.
func (h *host) checkAddress(address string) error {
	switch {
	case address == "":
		return nstance.FieldError("address", "name one", "is empty")
	case h.o.Addresses != nil && !slices.Contains(h.o.Addresses, address):
		return nstance.Errorf(nstance.NotFound, "no address %.64q", address)
	}
	return nil
}
