package sim

import (
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// The instance types that groups permit, in order of preference.
const (
	small = "small"
	large = "large"
)

// scarce is for how long after the cloud had no room for an instance type, or took
// a machine of it, another may be preferred; and how long what was chosen then
// may take to be asked for.
const scarce = 5 * time.Minute

// shortage lets the preferred instance type, or everything, sell out for a while.
func (a act) shortage() {
	pool, room, long := simcloud.Pool{InstanceType: small}, a.rng.IntN(a.cfg.Size), a.seconds(0, 120)
	if a.rng.IntN(2) == 0 {
		pool = simcloud.Pool{}
	}
	a.cloud.SetCapacity(pool, room)
	a.sleep(long)
	a.cloud.SetCapacity(pool, -1)
}

// answered notes how the cloud answered a create.
func (c *checker) answered(err error) {
	if nstance.CodeOf(err) == nstance.Capacity {
		c.scarcer()
	}
}

// scarcer notes that there may be no room at the cloud for what groups prefer.
func (c *checker) scarcer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.scarce = time.Now()
}

// preferred checks that a machine is of the instance type that its group prefers,
// if that can be had.
func (c *checker) preferred(spec nstance.MachineSpec) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if spec.InstanceType != small && (c.scarce.IsZero() || time.Since(c.scarce) > scarce) {
		c.note("capacity", "machine %s is to be %s, and nothing speaks against %s", spec.ID, spec.InstanceType, small)
	}
}

// drillCapacity makes a group larger while the preferred instance type is sold
// out. What is added is of the next one, and soon.
func (d *driver) drillCapacity(key nstance.GroupKey) {
	d.pass(scarce)
	d.cloud.SetCapacity(simcloud.Pool{InstanceType: small}, 0)
	d.want(key, func(g *nstance.Group) { g.Size++ })
	d.pass(20 * time.Second)
	if n, want := d.others(key, ""), d.wanted(key).Size; n != want {
		d.check.violated("capacity", "group %s has %d machines of %d after 20s, although there is room for %s", key, n, want, large)
	}
	d.cloud.SetCapacity(simcloud.Pool{InstanceType: small}, -1)
	d.want(key, func(g *nstance.Group) { g.Size-- })
	d.pass(drainTimeout + 2*time.Minute)
	d.check.settled()
}
