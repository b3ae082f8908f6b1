package simcloud

import (
	"cmp"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
)

// An Op is a kind of call.
type Op string

// The kinds. Each page of a list is a call of its own.
const (
	OpAny    Op = ""
	OpCreate Op = "create"
	OpGet    Op = "get"
	OpList   Op = "list"
	OpDelete Op = "delete"

	OpTakeAddress  Op = "take_address"
	OpHoldsAddress Op = "holds_address"

	OpResolveImage  Op = "resolve_image"
	OpFreeAddresses Op = "free_addresses"
	OpTypeArchs     Op = "type_archs"
	OpMembers       Op = "balancer_members"
	OpJoin          Op = "join_balancer"
	OpLeave         Op = "leave_balancer"
	OpConsole       Op = "console_output"
)

// When is the moment in a call at which a fault strikes.
type When int

// The moments.
const (
	Before When = iota // nothing happened
	After              // it happened, the answer was lost
	Late               // the caller gets the answer at once, the effect follows Fault.Delay later
)

// A Fault makes calls fail. Zero fields match every call.
type Fault struct {
	Op    Op
	ID    nstance.InstanceID // of the call's machine; lists have none, address calls the name given to At
	Nth   int                // first call to fail, counted from now among the matching ones; 0 means 1
	Times int                // how many in a row; 0 means 1, negative all
	When  When
	Code  nstance.Code  // the answer; "" means Unavailable before the effect and Ambiguous otherwise
	Delay time.Duration // for Late

	// Do, if set, is called when the fault strikes, without any lock held, for
	// example to crash a server in a simulation. With Keep the call then continues
	// as if there were no fault.
	Do   func()
	Keep bool

	matched int // calls so far
}

// Fail makes the nth call of op from now on, counted from 1, fail with code
// before or after its effect. Inject can do more.
func (c *Cloud) Fail(op Op, nth int, code nstance.Code, when When) {
	c.Inject(Fault{Op: op, Nth: nth, Code: code, When: when})
}

// Inject adds a fault. Of several that match a call, the oldest strikes. Faults
// that are used up are removed.
func (c *Cloud) Inject(f Fault) {
	f.Nth, f.Times = max(f.Nth, 1), cmp.Or(f.Times, 1)
	if f.Code == "" {
		f.Code = nstance.Ambiguous
		if f.When == Before {
			f.Code = nstance.Unavailable
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, &f)
}

// ClearFaults removes every fault.
func (c *Cloud) ClearFaults() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = nil
}

// matchFault counts a call and returns the fault that it meets, or nil. It needs
// c.mu.
func (c *Cloud) matchFault(op Op, id nstance.InstanceID) (hit *Fault) {
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

// at reports whether the fault ends the call at w, after calling Do. A nil fault
// does nothing.
func (f *Fault) at(w When) bool {
	if f == nil || f.When != w {
		return false
	}
	if f.Do != nil {
		f.Do()
	}
	return !f.Keep
}

func (f *Fault) err() error { return nstance.Errorf(f.Code, "injected fault") }
