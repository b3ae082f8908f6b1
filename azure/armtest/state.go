package armtest

import (
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// nicReserved is how long the interface of a machine whose create has failed can be
// neither used nor deleted (Azure/karpenter-provider-azure#92).
const nicReserved = 180 * time.Second

// cores returns how many cores the machines of a market use. It needs the lock.
func (c *Cloud) cores(spot bool) (used int) {
	for _, v := range c.vms {
		if v.spot() == spot && (v.held || spot) { // evicted ones count until they are deleted
			used += v.size.Cores
		}
	}
	return used
}

// claim takes the quota and the capacity for a machine, or refuses. It needs the
// lock.
func (c *Cloud) claim(v *vm) *Refusal {
	limit, name := c.o.Cores, "Total Regional Cores"
	if v.spot() {
		limit, name = c.o.SpotCores, "LowPriorityCores"
	}
	if limit > 0 && c.cores(v.spot())+v.size.Cores > limit {
		return refuse(http.StatusConflict, "OperationNotAllowed",
			"Operation could not be completed as it results in exceeding approved %s quota. Additional details - Current Limit: %d, Current Usage: %d, Additional Required: %d.",
			name, limit, c.cores(v.spot()), v.size.Cores)
	}
	v.held = c.Capacity.Take(v.shape())
	if !v.held && v.spot() {
		return refuse(http.StatusConflict, "SkuNotAvailable",
			"The requested VM size for resource 'Following SKUs have failed for Capacity Restrictions: %s' is currently not available in location '%s' zone '%s'.", v.size.Name, c.o.Location, v.zone())
	}
	return nil
}

// launch starts a machine whose operation has begun: a machine without capacity
// fails when Azure has looked for some. It needs the lock.
func (c *Cloud) launch(v *vm) {
	v.life++
	life := v.life
	cause := failure{}
	switch {
	case !v.held && v.zone() != "":
		cause = failure{"ZonalAllocationFailed", "Allocation failed. We do not have sufficient capacity for the requested VM size in this zone."}
	case !v.held:
		cause = failure{"AllocationFailed", "Allocation failed. We do not have sufficient capacity for the requested VM size in this region."}
	case len(c.failures) > 0:
		cause, c.failures = c.failures[0], c.failures[1:]
	}
	c.after(c.o.Delays.Start, func() {
		switch {
		case v.life != life || v.gone || v.provision == deleting:
		case cause.code != "":
			c.failLaunch(v, cause)
		default:
			v.provision, v.power = succeeded, powerRunning
			v.operation.end(opSucceeded, nil)
			c.startGuest(v)
		}
	})
}

// failLaunch ends a create or a start without success: the resource stays. It
// needs the lock.
func (c *Cloud) failLaunch(v *vm, cause failure) {
	v.provision, v.failure = failed, cause
	v.operation.end(opFailed, &Detail{cause.code, cause.message})
	c.release(v)
	if v.life > 1 { // it was started again
		v.power = powerDeallocated
		return
	}
	for _, n := range c.nicsOf(v) {
		n.reserved = time.Now().Add(nicReserved)
	}
}

func (c *Cloud) release(v *vm) {
	if v.held {
		v.held = false
		c.Capacity.Release(v.shape())
	}
}

// halt stops a running machine at once. It needs the lock.
func (c *Cloud) halt(v *vm, power string) {
	if v.power == powerRunning {
		v.power = power
		v.life++
		c.stopGuest(v)
	}
}

// park deallocates a machine. It needs the lock.
func (c *Cloud) park(v *vm) {
	if c.failChange(v, updating, powerDeallocating, c.o.Delays.Stop) {
		return
	}
	c.stopGuest(v)
	v.life++
	v.provision, v.power = updating, powerDeallocating
	life := v.life
	c.after(c.o.Delays.Stop, func() {
		if v.life == life && !v.gone && v.provision != deleting {
			v.provision, v.power = succeeded, powerDeallocated
			v.operation.end(opSucceeded, nil)
			c.release(v)
		}
	})
}

// failChange has a change of a machine fail after a while, if one is to. Meanwhile the machine
// shows it. It needs the lock.
func (c *Cloud) failChange(v *vm, state, power string, after time.Duration) bool {
	if len(c.failing) == 0 {
		return false
	}
	cause := c.failing[0]
	c.failing = c.failing[1:]
	op, before := v.operation, v.power
	v.provision, v.power = state, power
	c.after(after, func() {
		if v.operation == op {
			v.provision, v.power, v.failure = failed, before, cause
			op.end(opFailed, &Detail{cause.code, cause.message})
		}
	})
	return true
}

// evict takes spot capacity back. It needs the lock.
func (c *Cloud) evict(v *vm) {
	if v.gone || v.provision == deleting || v.power != powerRunning {
		return
	}
	policy := v.model.Properties.EvictionPolicy
	if policy != nil && *policy == armcompute.VirtualMachineEvictionPolicyTypesDelete {
		c.remove(v)
		return
	}
	c.park(v)
}

// remove deletes a machine, and then what its delete options name. What a failed
// create has left behind stays. It needs the lock.
func (c *Cloud) remove(v *vm) {
	if v.provision == deleting {
		return
	}
	if c.failChange(v, deleting, v.power, c.o.Delays.Delete) {
		return
	}
	leftBehind := v.provision == failed && v.life == 1
	c.stopGuest(v)
	v.life++
	v.provision = deleting
	op := v.operation
	c.after(c.o.Delays.Delete, func() {
		v.gone = true
		c.release(v)
		delete(c.vms, strings.ToLower(*v.model.Name))
		c.detach(v, leftBehind)
		op.end(opSucceeded, nil)
	})
}

// announce shows an eviction in the machine's metadata service. It needs
// the lock.
func (c *Cloud) announce(v *vm, at time.Time) {
	if guest := v.guest; guest != nil {
		c.effects = append(c.effects, func() { guest.Announce("Preempt", at) })
	}
}

// startGuest runs what is inside a machine. It needs the lock.
func (c *Cloud) startGuest(v *vm) {
	if c.o.Hypervisor == nil {
		return
	}
	life := v.life
	boot := testcloud.Boot{
		Handle: v.id, ID: nstance.InstanceID(v.tag("nstance-instance-id")), UserData: v.userData, Spot: v.spot(),
		Type: v.size.Name, Zone: v.zone(), Address: c.addressOf(v),
		Exited: func() {
			c.update(func() {
				if v.life == life {
					c.halt(v, powerStopped)
				}
			})
		},
	}
	c.effects = append(c.effects, func() {
		guest, err := c.o.Hypervisor.Start(boot)
		c.update(func() {
			switch {
			case err != nil && v.life == life:
				c.halt(v, powerStopped)
			case err != nil:
			case c.closed || v.life != life:
				c.effects = append(c.effects, guest.Kill)
			default:
				v.guest = guest
			}
		})
	})
}

// stopGuest needs the lock.
func (c *Cloud) stopGuest(v *vm) {
	if v.guest != nil {
		c.effects = append(c.effects, v.guest.Kill)
		v.guest = nil
	}
}

func (c *Cloud) addressOf(v *vm) netip.Addr {
	for _, n := range c.nicsOf(v) {
		for _, a := range n.addresses {
			return a
		}
	}
	return netip.Addr{}
}
