package sim

import (
	"math"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
)

// age gives a group an age limit for a while.
func (a act) age() {
	key, may, must := a.group(), a.seconds(300, 1200), a.seconds(900, 2400)
	which := a.rng.IntN(3)
	a.setGroup(key, func(g *nstance.Group) {
		if which != 0 {
			g.Expiry.EligibleAge = may
		}
		if which != 1 {
			g.Expiry.ForcedAge = must
		}
		if e := &g.Expiry; e.ForcedAge > 0 { // two acts may be at one group
			e.EligibleAge = min(e.EligibleAge, e.ForcedAge)
		}
	})
	a.sleep(a.seconds(60, 300))
	a.setGroup(key, func(g *nstance.Group) { g.Expiry = nstance.Expiry{OnDemandAge: orderAge} })
}

// checkExpiry checks that members that leave for their age have reached it.
func (c *checker) checkExpiry(old *records.Instance, now records.Instance) {
	if old == nil || leaving(*old) != "" || leaving(now) != nstance.CauseExpired {
		return
	}
	least := time.Duration(math.MaxInt64)
	c.w.eachRecent(keyOf(now), func(s groupVersion) {
		limit := s.expiry.ForcedAge
		if now.OnDemand {
			limit = s.expiry.OnDemandAge
		}
		if limit > 0 {
			least = min(least, limit*9/10)
		}
	})
	dates := c.dateOf(now.ID)
	if is := time.Since(dates.created); !dates.ageWrong && is < least-2*maxStep {
		c.violated("expiry", "%s leaves for its age of %v, limit %v", now.ID, is, least)
	}
}

// drillExpiry makes the members of a group eligible for their age. They are replaced one
// at a time, and the new ones stay.
func (d *driver) drillExpiry(key nstance.GroupKey) {
	const old = 12 * time.Minute
	began := time.Now().Truncate(time.Millisecond) // precision of instance IDs
	for _, m := range d.machines(key) {
		d.pass(old - time.Since(m.CreatedAt))
	}
	d.setGroup(key, func(g *nstance.Group) { g.Expiry.EligibleAge, g.DrainTimeout = old, drainTimeout/6 })
	d.pass(10 * time.Minute)
	for _, m := range d.machines(key) {
		if m.CreatedAt.Before(began) {
			d.check.violated("expiry", "%s is %v old and was not replaced", m.ID, time.Since(m.CreatedAt))
		}
	}
	d.setGroup(key, func(g *nstance.Group) { g.Expiry.EligibleAge, g.DrainTimeout = 0, drainTimeout })
	d.pass(3 * time.Minute)
	d.check.checkSettled()
}
