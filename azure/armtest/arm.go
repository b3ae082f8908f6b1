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
	"maps"
	"net/http"
	"net/netip"
	"slices"
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
	o Options

	Capacity testcloud.Capacity // types are sizes; zones "" are the location as a whole
	Faults   testcloud.Faults   // by the SDK's names such as VirtualMachinesClient.Get

	mu         sync.Mutex
	closed     bool
	serial     int
	vms        map[string]*vm // by lower-case name
	nics       map[string]*nic
	disks      map[string]*disk
	publics    map[string]*public
	subnets    map[string]*subnet // by lower-case ID
	pools      map[string]string  // their IDs by lower-case ID
	operations operations
	failures   []failure // of the next accepted creates
	failing    []failure // of the next accepted deletions and deallocations
	rates      rates
	effects    []func() // to run without the lock

}

var (
	_ http.Handler    = (*Cloud)(nil)
	_ testcloud.Cloud = (*Cloud)(nil)
)

// New returns a cloud without machines. nil is allowed.
func New(o *Options) *Cloud {
	c := &Cloud{
		vms: map[string]*vm{}, nics: map[string]*nic{}, disks: map[string]*disk{}, publics: map[string]*public{},
		subnets: map[string]*subnet{}, pools: map[string]string{},
	}
	if o != nil {
		c.o = *o
	}
	c.o.fill()
	for i, id := range slices.Sorted(maps.Keys(c.o.Subnets)) {
		c.subnets[strings.ToLower(id)] = newSubnet(id, c.o.Subnets[id], i)
	}
	for i, id := range c.o.DualStack {
		if s := c.subnets[strings.ToLower(id)]; s != nil {
			s.prefix6 = netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0, 0, byte(i + 1)}), 64)
		}
	}
	for _, id := range c.o.Pools {
		c.pools[strings.ToLower(id)] = id
	}
	return c
}

func (o *Options) fill() {
	if o.Subscription == "" {
		o.Subscription = "00000000-0000-0000-0000-000000000001"
	}
	if o.ResourceGroup == "" {
		o.ResourceGroup = "machines"
	}
	if o.Location == "" {
		o.Location = "westeurope"
	}
	if o.PageSize == 0 {
		o.PageSize = 50
	}
}

// update runs f with the lock, and then what f leaves to be done without it.
func (c *Cloud) update(f func()) {
	c.mu.Lock()
	f()
	effects := c.effects
	c.effects = nil
	c.mu.Unlock()
	for _, effect := range effects {
		effect()
	}
}

// after runs f with the lock when d is over; zero means now, a negative d never.
// It needs the lock.
func (c *Cloud) after(d time.Duration, f func()) {
	switch {
	case d == 0:
		f()
	case d > 0 && !c.closed:
		time.AfterFunc(d, func() {
			c.update(func() {
				if !c.closed {
					f()
				}
			})
		})
	}
}

// Machines implements [testcloud.Cloud].
func (c *Cloud) Machines() []testcloud.Machine {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []testcloud.Machine
	for _, v := range c.ordered() {
		out = append(out, testcloud.Machine{
			ID: nstance.InstanceID(v.tag("nstance-instance-id")), Handle: v.id, Zone: v.zone(), Type: v.size.Name,
			Spot: v.spot(), Status: v.status(),
		})
	}
	return out
}

// Reclaim implements [testcloud.Cloud]: Azure evicts as the machine's eviction
// policy says.
func (c *Cloud) Reclaim(handle string, notice time.Duration) (err error) {
	c.update(func() {
		v := c.byHandle(handle)
		switch {
		case v == nil:
			err = nstance.Errorf(nstance.NotFound, "no machine %s", handle)
		case !v.spot():
			err = nstance.Errorf(nstance.Invalid, "machine %s is not spot capacity", handle)
		default:
			c.announce(v, time.Now().Add(notice))
			life := v.life
			c.after(max(notice, 0), func() {
				if v.life == life {
					c.evict(v)
				}
			})
		}
	})
	return err
}

// Fail implements [testcloud.Cloud]: the machine is stopped, as after a failure of
// its host that could not be repaired.
func (c *Cloud) Fail(handle string) (err error) {
	c.update(func() {
		v := c.byHandle(handle)
		if v == nil {
			err = nstance.Errorf(nstance.NotFound, "no machine %s", handle)
			return
		}
		c.halt(v, powerStopped)
	})
	return err
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
		c.failures = append(c.failures, failure{code, message})
	}
}

// FailChanges lets the next n deletions and deallocations be accepted and fail later with a
// code: the machine goes on as it was, with that code.
func (c *Cloud) FailChanges(n int, code, message string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range n {
		c.failing = append(c.failing, failure{code, message})
	}
}

// RemovePool deletes a backend address pool, and leaves no member in it.
func (c *Cloud) RemovePool(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pools, strings.ToLower(id))
	for _, n := range c.nics {
		n.leavePool(id)
	}
}

// Close implements [testcloud.Cloud]. What is due later does not happen.
func (c *Cloud) Close() error {
	c.update(func() {
		c.closed = true
		for _, v := range c.vms {
			c.stopGuest(v)
		}
	})
	return nil
}

func (c *Cloud) byHandle(handle string) *vm {
	for _, v := range c.vms {
		if strings.EqualFold(v.id, handle) {
			return v
		}
	}
	return nil
}
