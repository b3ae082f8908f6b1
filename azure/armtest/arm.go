// Package armtest is a test cloud that speaks Azure Resource Manager: virtual
// machines, network interfaces, public addresses, disks, virtual networks, load
// balancers, sizes and images of one subscription and one location.
//
// Requests are parsed and answers are written by the fake servers that Microsoft
// generates from its own API description, together with the SDK's clients
// (armcompute/v7/fake, armnetwork/v7/fake). This package adds what these leave
// out: tokens, permissions, long-running operations, throttling, and the state of
// the resources. Clouds are safe for concurrent use.
package armtest

import (
	"cmp"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// Options say what there is in the subscription. Zero fields mean what is
// written there.
type Options struct {
	Subscription  string // empty: 00000000-0000-0000-0000-000000000001
	ResourceGroup string // of the machines; empty: machines
	Location      string // empty: westeurope

	// Tokens are the accepted bearer tokens, each with the actions that its roles
	// permit, as in Microsoft.Compute/virtualMachines/read. Without actions: all.
	// Nil: any token, and all actions.
	Tokens map[string][]string

	// Subnets are how many addresses each subnet has for machines, by ARM ID. In
	// the order of the IDs their prefixes are 10.1.0.0/16, 10.2.0.0/16 and so on.
	// A negative number is reported by virtual networks for gateway subnets.
	Subnets map[string]int

	Pools  []string // backend address pools of load balancers, by ARM ID
	Sizes  []Size   // nil: every one whose name Azure could have given
	Images []Image

	// DualStack are the subnets that have an IPv6 range too, by ARM ID. In their order
	// these are fd00:1::/64, fd00:2::/64 and so on.
	DualStack []string

	// Resources are the ARM IDs of what machines refer to: security groups, managed
	// identities, disk encryption sets, reservations, placement groups and availability sets.
	// Nil: there is every one that is asked for.
	Resources []string

	NoZones bool // the location has no zones: disks that would need one do without

	// Cores is how many cores of machines the quotas permit, by the market.
	// 0: endless.
	Cores     int
	SpotCores int

	PageSize   int // of every list; 0: 50
	Delays     testcloud.Delays
	Network    time.Duration // how long an operation on a network interface, or the deletion of a disk, takes
	Latency    time.Duration // of each call
	Throttle   bool          // by the rates that Azure publishes, see rates.go
	Hypervisor testcloud.Hypervisor
}

// A Size is a machine size that the location offers.
type Size struct {
	Name       string
	Cores      int
	Arch       string   // x64 or Arm64; empty: x64
	Zones      []string // empty: none
	Restricted bool     // the subscription may not use it
	NoSpot     bool
}

// An Image is what machines can be made from.
type Image struct {
	ID          string // of an image version in a gallery, or publisher:offer:sku:version
	Arch        string // x64 or Arm64; empty: x64
	SizeGB      int    // of its disk; 0: 30
	Unlisted    bool   // excluded from latest
	Unavailable bool   // not replicated to the location, or its creation has failed
}

// A Cloud is one subscription. It is an http.Handler, and safe for concurrent
// use; New makes one. Azure serves over TLS only.
type Cloud struct {
	o *Options

	Capacity testcloud.Capacity // types are sizes; zones "" are the location as a whole
	Faults   testcloud.Faults   // by the SDK's names such as VirtualMachinesClient.Get

	mu         sync.Mutex // guards the options' delays and all parts, whose methods need it
	rates      rates
	operations *operationLog
	publics    *publicSet
	nics       *nicSet
	disks      *diskSet
	fleet      *fleet
}

var (
	_ http.Handler    = (*Cloud)(nil)
	_ testcloud.Cloud = (*Cloud)(nil)
)

// New returns a cloud without machines. nil is allowed.
func New(o *Options) *Cloud {
	c := &Cloud{o: &Options{}}
	if o != nil {
		*c.o = *o
	}
	c.o.fill()
	timers := testcloud.NewTimers(&c.mu)
	c.rates = rates{regional: map[string]*testcloud.Bucket{}, machine: map[string]*testcloud.Bucket{}}
	c.operations = &operationLog{timers: timers, byID: map[string]*operation{}, failing: map[string][]failure{}}
	c.publics, c.disks = &publicSet{byName: map[string]*public{}}, &diskSet{map[string]*disk{}}
	c.nics = &nicSet{subnets: newSubnetSet(c.o), byName: map[string]*nic{}, pools: map[string]string{}}
	for _, id := range c.o.Pools {
		c.nics.pools[strings.ToLower(id)] = id
	}
	c.fleet = &fleet{o: c.o, mu: &c.mu, timers: timers, capacity: &c.Capacity, nics: c.nics, disks: c.disks, vms: map[string]*vm{}}
	return c
}

func (o *Options) fill() {
	o.Subscription, o.ResourceGroup = cmp.Or(o.Subscription, "00000000-0000-0000-0000-000000000001"), cmp.Or(o.ResourceGroup, "machines")
	o.Location, o.PageSize = cmp.Or(o.Location, "westeurope"), cmp.Or(o.PageSize, 50)
}

// Machines implements [testcloud.Cloud].
func (c *Cloud) Machines() []testcloud.Machine {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []testcloud.Machine
	for _, v := range c.fleet.ordered() {
		out = append(out, testcloud.Machine{
			ID: nstance.InstanceID(v.tag("nstance-instance-id")), Handle: v.id, Zone: v.zone(), Type: v.size.Name,
			Spot: v.spot(), Status: v.status(),
		})
	}
	return out
}

// withMachine calls fn with the machine of that handle, under the lock.
func (c *Cloud) withMachine(handle string, fn func(*vm) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.fleet.byHandle(handle)
	if v == nil {
		return nstance.Errorf(nstance.NotFound, "no machine %s", handle)
	}
	return fn(v)
}

// Reclaim implements [testcloud.Cloud]: Azure evicts as the machine's eviction
// policy says.
func (c *Cloud) Reclaim(handle string, notice time.Duration) error {
	return c.withMachine(handle, func(v *vm) error {
		if !v.spot() {
			return nstance.Errorf(nstance.Invalid, "machine %s is not spot capacity", handle)
		}
		if v.guest != nil {
			v.guest.Announce("Preempt", time.Now().Add(notice))
		}
		life := v.life
		c.fleet.timers.After(max(notice, 0), func() {
			if v.life == life {
				c.fleet.evict(v)
			}
		})
		return nil
	})
}

// Fail implements [testcloud.Cloud]: the machine is stopped, as after a failure of
// its host that could not be repaired.
func (c *Cloud) Fail(handle string) error {
	return c.withMachine(handle, func(v *vm) error {
		c.fleet.halt(v, powerStopped)
		return nil
	})
}

// SetDelays changes how long the cloud takes for what is asked of it from now on.
func (c *Cloud) SetDelays(d testcloud.Delays) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.o.Delays = d
}

// FailCreates lets the next n creates be accepted and fail later with a code: the
// machine's resource stays, with that code.
func (c *Cloud) FailCreates(n int, code, message string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range n {
		c.fleet.failures = append(c.fleet.failures, failure{code, message})
	}
}

// FailChanges lets the next n deletions and deallocations be accepted and fail later with a
// code: the machine goes on as it was, with that code.
func (c *Cloud) FailChanges(n int, code, message string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range n {
		c.fleet.failing = append(c.fleet.failing, failure{code, message})
	}
}

// FailParts lets the next n PUTs of a network interface, a public address or a disk be accepted
// and fail later with a code: the resource stays, and says only that it has failed. The call is
// one such as DisksClient.BeginCreateOrUpdate.
func (c *Cloud) FailParts(call string, n int, code, message string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range n {
		c.operations.failing[call] = append(c.operations.failing[call], failure{code, message})
	}
}

// RemovePool deletes a backend address pool, and leaves no member in it.
func (c *Cloud) RemovePool(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.nics.pools, strings.ToLower(id))
	for _, n := range c.nics.byName {
		n.leavePool(id)
	}
}

// Left returns the names of machines, network interfaces, public addresses and disks that
// are there.
func (c *Cloud) Left() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for name := range c.fleet.vms {
		out = append(out, "machine "+name)
	}
	for name := range c.nics.byName {
		out = append(out, "interface "+name)
	}
	for name := range c.publics.byName {
		out = append(out, "address "+name)
	}
	for name := range c.disks.byName {
		out = append(out, "disk "+name)
	}
	return out
}

// Close implements [testcloud.Cloud]. What is due later does not happen.
func (c *Cloud) Close() error {
	c.mu.Lock()
	c.fleet.closed = true
	c.fleet.timers.Stop()
	for _, v := range c.fleet.vms {
		c.fleet.stopGuest(v)
	}
	c.mu.Unlock()
	c.fleet.timers.Wait()
	c.fleet.running.Wait()
	return nil
}
