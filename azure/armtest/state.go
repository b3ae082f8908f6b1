package armtest

import (
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// nicReserved is how long the interface of a machine whose create has failed can be
// neither used nor deleted (Azure/karpenter-provider-azure#92).
const nicReserved = 180 * time.Second

// A fleet is the machines of the subscription.
type fleet struct {
	o        *Options
	mu       *sync.Mutex
	timers   *testcloud.Timers
	capacity *testcloud.Capacity
	nics     *nicSet
	disks    *diskSet
	serial   int
	vms      map[string]*vm // by lower-case name
	failures []failure      // of the next accepted creates
	failing  []failure      // of the next accepted deletions and deallocations
	closed   bool
	running  sync.WaitGroup // of what starts and ends guests
}

// cores returns how many cores the machines of a market use.
func (f *fleet) cores(spot bool) (used int) {
	for _, v := range f.vms {
		if v.spot() == spot && (v.held || spot) { // evicted ones count until they are deleted
			used += v.size.Cores
		}
	}
	return used
}

// claim takes the quota and the capacity for a machine, or refuses.
func (f *fleet) claim(v *vm) *Refusal {
	limit, name := f.o.Cores, "Total Regional Cores"
	if v.spot() {
		limit, name = f.o.SpotCores, "LowPriorityCores"
	}
	if limit > 0 && f.cores(v.spot())+v.size.Cores > limit {
		return refuse(http.StatusConflict, "OperationNotAllowed",
			"Operation could not be completed as it results in exceeding approved %s quota. Additional details - Current Limit: %d, Current Usage: %d, Additional Required: %d.",
			name, limit, f.cores(v.spot()), v.size.Cores)
	}
	v.held = f.capacity.Take(v.shape())
	if !v.held && v.spot() {
		return refuse(http.StatusConflict, "SkuNotAvailable",
			"The requested VM size for resource 'Following SKUs have failed for Capacity Restrictions: %s' is currently not available in location '%s' zone '%s'.", v.size.Name, f.o.Location, v.zone())
	}
	return nil
}

// launch starts a machine whose operation has begun: a machine without capacity
// fails when Azure has looked for some.
func (f *fleet) launch(v *vm) {
	v.life++
	life := v.life
	cause := failure{}
	switch {
	case !v.held && v.zone() != "":
		cause = failure{"ZonalAllocationFailed", "Allocation failed. We do not have sufficient capacity for the requested VM size in this zone."}
	case !v.held:
		cause = failure{"AllocationFailed", "Allocation failed. We do not have sufficient capacity for the requested VM size in this region."}
	case len(f.failures) > 0:
		cause, f.failures = f.failures[0], f.failures[1:]
	}
	f.timers.After(f.o.Delays.Start, func() {
		switch {
		case v.life != life || v.gone || v.provision == deleting:
		case cause.code != "":
			f.failLaunch(v, cause)
		default:
			v.provision, v.power = succeeded, powerRunning
			v.operation.end(opSucceeded, nil)
			f.startGuest(v)
		}
	})
}

// failLaunch ends a create or a start without success: the resource stays.
func (f *fleet) failLaunch(v *vm, cause failure) {
	v.provision, v.failure = failed, cause
	v.operation.end(opFailed, &Detail{cause.code, cause.message})
	f.release(v)
	if v.life > 1 { // it was started again
		v.power = powerDeallocated
		return
	}
	for _, n := range f.nics.of(v) {
		n.reserved = time.Now().Add(nicReserved)
	}
}

func (f *fleet) release(v *vm) {
	if v.held {
		v.held = false
		f.capacity.Release(v.shape())
	}
}

// halt stops a running machine at once.
func (f *fleet) halt(v *vm, power string) {
	if v.power == powerRunning {
		v.power = power
		v.life++
		f.stopGuest(v)
	}
}

// park deallocates a machine.
func (f *fleet) park(v *vm) {
	if f.failChange(v, updating, powerDeallocating, f.o.Delays.Stop) {
		return
	}
	f.stopGuest(v)
	v.life++
	v.provision, v.power = updating, powerDeallocating
	life := v.life
	f.timers.After(f.o.Delays.Stop, func() {
		if v.life == life && !v.gone && v.provision != deleting {
			v.provision, v.power = succeeded, powerDeallocated
			v.operation.end(opSucceeded, nil)
			f.release(v)
		}
	})
}

// failChange has a change of a machine fail after a while, if one is to. Meanwhile the machine
// shows it.
func (f *fleet) failChange(v *vm, state, power string, after time.Duration) bool {
	if len(f.failing) == 0 {
		return false
	}
	cause := f.failing[0]
	f.failing = f.failing[1:]
	op, before := v.operation, v.power
	v.provision, v.power = state, power
	f.timers.After(after, func() {
		if v.operation == op {
			v.provision, v.power, v.failure = failed, before, cause
			op.end(opFailed, &Detail{cause.code, cause.message})
		}
	})
	return true
}

// evict takes spot capacity back.
func (f *fleet) evict(v *vm) {
	if v.gone || v.provision == deleting || v.power != powerRunning {
		return
	}
	policy := v.model.Properties.EvictionPolicy
	if policy != nil && *policy == armcompute.VirtualMachineEvictionPolicyTypesDelete {
		f.remove(v)
		return
	}
	f.park(v)
}

// remove deletes a machine, and then what its delete options name. What a failed
// create has left behind stays.
func (f *fleet) remove(v *vm) {
	if v.provision == deleting {
		return
	}
	if f.failChange(v, deleting, v.power, f.o.Delays.Delete) {
		return
	}
	leftBehind := v.provision == failed && v.life == 1
	f.stopGuest(v)
	v.life++
	v.provision = deleting
	op := v.operation
	f.timers.After(f.o.Delays.Delete, func() {
		v.gone = true
		f.release(v)
		delete(f.vms, strings.ToLower(*v.model.Name))
		f.detach(v, leftBehind)
		op.end(opSucceeded, nil)
	})
}

// startGuest runs what is inside a machine.
func (f *fleet) startGuest(v *vm) {
	if f.o.Hypervisor == nil {
		return
	}
	life := v.life
	boot := testcloud.Boot{
		Handle: v.id, ID: nstance.InstanceID(v.tag("nstance-instance-id")), UserData: v.userData, Spot: v.spot(),
		Type: v.size.Name, Zone: v.zone(), Address: f.addressOf(v),
		Exited: func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			if v.life == life {
				f.halt(v, powerStopped)
			}
		},
	}
	f.running.Go(func() {
		guest, err := f.o.Hypervisor.Start(boot)
		f.mu.Lock()
		defer f.mu.Unlock()
		switch {
		case err != nil && v.life == life:
			f.halt(v, powerStopped)
		case err != nil:
		case f.closed || v.life != life:
			f.running.Go(guest.Kill)
		default:
			v.guest = guest
		}
	})
}

func (f *fleet) stopGuest(v *vm) {
	if v.guest != nil {
		f.running.Go(v.guest.Kill)
		v.guest = nil
	}
}

func (f *fleet) addressOf(v *vm) netip.Addr {
	for _, n := range f.nics.of(v) {
		for _, a := range n.addresses {
			return a
		}
	}
	return netip.Addr{}
}

// attach binds the interfaces and the disks of a new machine.
func (f *fleet) attach(v *vm) {
	for _, n := range f.nics.of(v) {
		n.vm = v
	}
	f.disks.attach(v)
}

// detach frees them, or deletes them as their delete options say. The default is
// to keep them.
func (f *fleet) detach(v *vm, keep bool) {
	for _, ref := range v.model.Properties.NetworkProfile.NetworkInterfaces {
		n := f.nics.byID(ref.ID)
		if n == nil {
			continue
		}
		n.vm = nil
		if !keep && ref.Properties != nil && deref(ref.Properties.DeleteOption) == armcompute.DeleteOptionsDelete {
			f.nics.remove(n)
		}
	}
	f.disks.detach(v, keep)
}

func (f *fleet) byHandle(handle string) *vm {
	for _, v := range f.vms {
		if strings.EqualFold(v.id, handle) {
			return v
		}
	}
	return nil
}
