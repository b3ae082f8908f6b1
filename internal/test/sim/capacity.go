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

// shortageMemory and reclaimMemory are how long another instance type may be preferred after
// a refusal or a reclaim, and how long a create chosen then may take to be sent. No leader
// here knows how often pools are reclaimed, so a reclaim is remembered for 20 minutes.
const (
	shortageMemory = 5 * time.Minute
	reclaimMemory  = 22 * time.Minute
)

// shortage makes the preferred instance type, or all of them, sold out for a while.
func (a act) shortage() {
	pool, room, long := simcloud.Pool{InstanceType: small}, a.rng.IntN(a.cfg.Size), a.seconds(0, 120)
	if a.rng.IntN(2) == 0 {
		pool = simcloud.Pool{}
	}
	a.cloud.SetCapacity(pool, room)
	a.sleep(long)
	a.cloud.SetCapacity(pool, -1)
}

// recordCreateAnswer records the cloud's answer to a create.
func (c *checker) recordCreateAnswer(err error) {
	if nstance.CodeOf(err) == nstance.Capacity {
		c.recordShortage(shortageMemory)
	}
}

// recordShortage records that other capacity may be preferred for a while.
func (c *checker) recordShortage(memory time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if until := time.Now().Add(memory); until.After(c.shortUntil) {
		c.shortUntil = until
	}
}

// checkPreferred checks that a create is for the preferred instance type, if that has
// capacity. A group with a spread divides itself.
func (c *checker) checkPreferred(spec nstance.MachineSpec) {
	if spec.Group == webToo.Group && spec.Owner.Tenant == webToo.Tenant {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if spec.InstanceType != small && time.Now().After(c.shortUntil) {
		c.violatedLocked("capacity", "machine %s is created as %s although %s has capacity", spec.ID, spec.InstanceType, small)
	}
}

// drillCapacity grows a group while the preferred instance type is sold out. The next
// type is used soon.
func (d *driver) drillCapacity(key nstance.GroupKey) {
	d.pass(shortageMemory)
	d.cloud.SetCapacity(simcloud.Pool{InstanceType: small}, 0)
	d.setGroup(key, func(g *nstance.Group) { g.Size++ })
	d.pass(20 * time.Second)
	if n, want := d.countOthers(key, ""), d.currentGroup(key).Size; n != want {
		d.check.violated("capacity", "group %s has %d machines of %d after 20s, although %s has capacity", key, n, want, large)
	}
	d.cloud.SetCapacity(simcloud.Pool{InstanceType: small}, -1)
	d.setGroup(key, func(g *nstance.Group) { g.Size-- })
	d.pass(drainTimeout + 2*time.Minute)
	d.check.checkSettled()
}
