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

// When says where in a call a fault strikes.
type When int

// The places.
const (
	Before When = iota // nothing happened
	After              // it happened, the answer was lost
	Late               // the caller gets the answer at once, and it happens Fault.Delay later
)

// A Fault strikes calls. The zero fields fit every call.
type Fault struct {
	Op    Op
	ID    nstance.InstanceID // of the machine the call is about; lists are about none, address calls about the name given to At
	Nth   int                // first call to strike, counted from now among those that fit; 0 means 1
	Times int                // how many in a row; 0 means 1, negative all
	When  When
	Code  nstance.Code  // the answer; "" means Unavailable before the effect and Ambiguous otherwise
	Delay time.Duration // for Late

	// Do, if set, is called when the fault strikes, without any lock held: the
	// place to crash a server in a simulation. With Keep the call then goes on
	// as if there were no fault.
	Do   func()
	Keep bool

	fits int // calls that fitted so far
}

// Fail makes the nth call of op from now on, counted from 1, fail with code
// before or after its effect. Inject can do more.
func (c *Cloud) Fail(op Op, nth int, code nstance.Code, when When) {
	c.Inject(Fault{Op: op, Nth: nth, Code: code, When: when})
}

// Inject adds a fault. Where several fit a call, the oldest strikes. Faults
// that are used up are forgotten.
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

// Heal removes every fault.
func (c *Cloud) Heal() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = nil
}

// strike counts a call and returns the fault that it meets, or nil. It needs
// c.mu.
func (c *Cloud) strike(op Op, id nstance.InstanceID) (hit *Fault) {
	for _, f := range c.faults {
		if (f.Op != OpAny && f.Op != op) || (f.ID != "" && f.ID != id) {
			continue
		}
		if f.fits++; f.fits >= f.Nth && hit == nil {
			hit = f
		}
	}
	c.faults = slices.DeleteFunc(c.faults, func(f *Fault) bool {
		return f.Times > 0 && f.fits >= f.Nth+f.Times-1
	})
	return hit
}

// at reports whether the fault ends the call at w, after doing what it does
// there. A nil fault does nothing.
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
