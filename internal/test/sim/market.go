package sim

import (
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/storage"
)

// The group webToo keeps a member on demand, and falls back to on-demand.
const (
	base        = 1
	returnAfter = 2 * time.Minute
)

var spotPool = simcloud.Pool{Market: nstance.Spot}

// noSpot lets all spot capacity sell out for a while.
func (a act) noSpot() {
	long := a.seconds(30, 400)
	a.cloud.SetCapacity(spotPool, 0)
	a.sleep(long)
	a.cloud.SetCapacity(spotPool, -1)
}

// takings are the causes for which a machine that never ran is taken without any
// fault of what it was made from.
var takings = []nstance.LossCause{nstance.LossReclaimed, nstance.LossCapacity, nstance.LossQuota, nstance.LossHost}

// failStarts accepts a few machines that never start.
func (a act) failStarts() {
	cause := takings[a.rng.IntN(len(takings))]
	a.cloud.FailStarts(simcloud.Pool{}, cause, 1+a.rng.IntN(a.cfg.Size))
}

// lost notes what the cloud says of a machine: for some causes there may be no
// room for others like it.
func (c *checker) lost(cause nstance.LossCause) {
	switch cause {
	case nstance.LossReclaimed, nstance.LossCapacity, nstance.LossQuota:
		c.scarcer()
	}
}

// drillLosses takes a machine and those that are made in its place while they
// boot. No definition is charged with that, and each is replaced at once.
func (d *driver) drillLosses(key nstance.GroupKey) {
	d.cloud.FailStarts(simcloud.Pool{}, nstance.LossHost, 2)
	_ = d.cloud.Kill(d.machines(key)[0].ID)
	for range 36 {
		d.pass(10 * time.Second)
		if r, _ := d.leader(); r != nil {
			if g, err := r.Group(key); err != nil || g.Failures > 0 {
				d.check.violated("loss", "group %s is charged with %d failures for machines that were taken: %v", key, g.Failures, err)
			}
		}
	}
	d.cloud.FailStarts(simcloud.Pool{}, "", 0)
	d.check.settled()
}

// baseLeft checks a write by which a ready member leaves for voluntary work: other
// on-demand machines make up the base.
func (c *checker) baseLeft(now storage.Instance) {
	key := keyOf(now)
	if key != webToo || now.Shape.Market != nstance.OnDemand {
		return
	}
	floor, others := min(base, c.w.smallest(key)), 0
	if c.w.surgeless(key) {
		floor--
	}
	for _, r := range c.w.store.members(key) {
		if r.ID != now.ID && r.Shape.Market == nstance.OnDemand && (leaving(*r) == "" || c.lostSince(r.ID, now.ID) || c.returns(*r)) {
			others++
		}
	}
	if others < floor {
		c.violated("base", "on-demand member %s leaves for %s: %d others, of a base of %d", now.ID, leaving(now), others, floor)
	}
}

// divided checks that a group has so many on-demand machines and so many others.
func (d *driver) divided(key nstance.GroupKey, onDemand, spot int, when string) {
	for _, m := range d.machines(key) {
		if m.Market == nstance.OnDemand {
			onDemand--
		} else {
			spot--
		}
	}
	if onDemand != 0 || spot != 0 {
		d.check.violated("market", "%s, group %s has %d on-demand machines too few, and %d others", when, key, onDemand, spot)
	}
}

// returned lets time pass until a group has gone back to spot. After failures
// that may take hours. Without surge there is no way back.
func (d *driver) returned(key nstance.GroupKey) {
	for range 24 * 12 {
		if r, _ := d.leader(); r != nil {
			g, err := r.Group(key)
			if err == nil && g.Leaving == 0 && g.Ready == g.Size && (g.ReturnAt.IsZero() || g.Rollout.MaxSurge.N == 0) {
				return
			}
		}
		d.pass(5 * time.Minute)
	}
	d.check.violated("market", "group %s has not gone back to spot in a day", key)
}

// drillMarkets loses all spot machines of a group while there is no spot capacity:
// it falls back to on-demand, and goes back one at a time when it can.
func (d *driver) drillMarkets(key nstance.GroupKey) {
	size := d.wanted(key).Size
	d.want(key, func(g *nstance.Group) { g.Rollout.MaxSurge.N = 1 })
	d.returned(key)
	d.divided(key, base, size-base, "at first")
	d.cloud.SetCapacity(spotPool, 0)
	for _, m := range d.machines(key) {
		if m.Market == nstance.Spot {
			_ = d.cloud.Kill(m.ID) // it may be on its way out already
		}
	}
	d.pass(6 * time.Minute)
	d.divided(key, size, 0, "without spot capacity")
	d.cloud.SetCapacity(spotPool, -1)
	d.returned(key)
	d.divided(key, base, size-base, "when there is spot capacity again")
	d.check.settled()
}
