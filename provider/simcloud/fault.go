package simcloud

import (
	"cmp"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
)

// An Op is a kind of call, named like the method: create, resolve_image, type_archs,
// free_addresses, subnet_zones, shifted_zones, holds_address, console_output.
type Op string

// Kinds of calls. Each page of a list is a call of its own.
const (
	OpAny    Op = ""
	OpCreate Op = "create"
	OpGet    Op = "get"
	OpList   Op = "list"
	OpDelete Op = "delete"

	OpPark Op = "park"
	OpWake Op = "wake"

	OpTakeAddress  Op = "take_address"
	opHoldsAddress Op = "holds_address"

	opResolveImage  Op = "resolve_image"
	opFreeAddresses Op = "free_addresses"
	opSubnetZones   Op = "subnet_zones"
	OpShiftedZones  Op = "shifted_zones"
	opTypeArchs     Op = "type_archs"
	opPrices        Op = "prices"
	opZoneScores    Op = "zone_scores"
	OpMembers       Op = "balancer_members"
	OpJoin          Op = "join_balancer"
	OpLeave         Op = "leave_balancer"
	opConsole       Op = "console_output"
)

// A Fault makes calls fail before their effect. Zero fields match every call. It is a
// value: Inject copies it, so that it may be used concurrently.
type Fault struct {
	Op    Op
	ID    nstance.InstanceID // of the call's machine; lists have none, address calls the name given to At
	Nth   int                // first call to fail, counted from now among the matching ones; 0 means 1
	Times int                // how many in a row; 0 means 1, negative all
	Lost  bool               // it happens, and the answer is lost
	Delay time.Duration      // the caller gets the answer at once, and the effect follows this much later
	OK    bool               // with Delay: the answer is that it was accepted
	Code  nstance.Code       // the answer; "" means Unavailable before the effect and Ambiguous otherwise

	// Do, if set, is called when the fault strikes, without any lock held, for
	// example to crash a server in a simulation. With Keep the call then continues
	// as if there were no fault.
	Do   func()
	Keep bool

	matched int // calls so far
}

// Inject adds a fault. Of several that match a call, the oldest strikes. Faults
// that are used up are removed.
func (c *calls) Inject(f Fault) {
	f.Nth, f.Times = max(f.Nth, 1), cmp.Or(f.Times, 1)
	if f.Code == "" {
		f.Code = nstance.Ambiguous
		if f.moment() == before {
			f.Code = nstance.Unavailable
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, &f)
}

// ClearFaults removes every fault.
func (c *calls) ClearFaults() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = nil
}

// matchFault counts a call and returns the fault that it meets, or nil. It needs
// the lock.
func (c *calls) matchFault(op Op, id nstance.InstanceID) (hit *Fault) {
	for _, f := range c.faults {
		if (f.Op != OpAny && f.Op != op) || (f.ID != "" && f.ID != id) {
			continue
		}
		if f.matched++; f.matched >= f.Nth && hit == nil {
			hit = f
		}
	}
	c.faults = slices.DeleteFunc(c.faults, func(f *Fault) bool {
		return f.Times > 0 && f.matched >= f.Nth+f.Times-1
	})
	return hit
}

// A moment is when in a call a fault strikes.
type moment int

const (
	before moment = iota // nothing happened
	after                // it happened, the answer was lost
	late                 // the effect follows
)

func (f *Fault) moment() moment {
	switch {
	case f.Delay > 0:
		return late
	case f.Lost:
		return after
	}
	return before
}

// at reports whether the fault ends the call at w, after calling Do. A nil fault
// does nothing.
func (f *Fault) at(w moment) bool {
	if f == nil || f.moment() != w {
		return false
	}
	if f.Do != nil {
		f.Do()
	}
	return !f.Keep
}

func (f *Fault) err() error {
	if f.OK {
		return nil
	}
	return nstance.Errorf(f.Code, "injected fault")
}
