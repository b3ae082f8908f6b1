package sim

import (
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// The group webToo keeps one member on demand and falls back to on-demand.
const (
	base        = 1
	returnAfter = 2 * time.Minute
)

var spotPool = simcloud.Pool{Market: nstance.Spot}

// sellOutSpot makes all spot capacity sold out for a while.
func (a act) sellOutSpot() {
	long := a.seconds(30, 400)
	a.cloud.SetCapacity(spotPool, 0)
	a.sleep(long)
	a.cloud.SetCapacity(spotPool, -1)
}

// harmlessLosses are the causes of the loss of a machine that never ran for which its
// definition is not responsible.
var harmlessLosses = []nstance.LossCause{nstance.LossReclaimed, nstance.LossCapacity, nstance.LossQuota, nstance.LossHost}

// failStarts makes the cloud accept a few machines that never start.
func (a act) failStarts() {
	cause := harmlessLosses[a.rng.IntN(len(harmlessLosses))]
	a.cloud.FailStarts(simcloud.Pool{}, cause, 1+a.rng.IntN(a.cfg.Size))
}

// recordLoss records the cause of a loss: some causes mean that capacity is missing.
func (c *checker) recordLoss(cause nstance.LossCause) {
	switch cause {
	case nstance.LossReclaimed:
		c.recordShortage(reclaimMemory)
	case nstance.LossCapacity, nstance.LossQuota:
		c.recordShortage(shortageMemory)
	}
}

// drillLosses loses a machine and its replacements while they boot. They are not
// failures of the definition, and each is replaced at once.
func (d *driver) drillLosses(key nstance.GroupKey) {
	d.cloud.FailStarts(simcloud.Pool{}, nstance.LossHost, 2)
	_ = d.cloud.Kill(d.machines(key)[0].ID)
	for range 36 {
		d.pass(10 * time.Second)
		if r, _ := d.leader(); r != nil {
			if g, err := r.Group(key); err != nil || g.Failures > 0 {
				d.check.violated("loss", "group %s has %d failures for reclaimed machines: %v", key, g.Failures, err)
			}
		}
	}
	d.cloud.FailStarts(simcloud.Pool{}, "", 0)
	d.check.checkSettled()
}

// checkBase checks a write by which a ready member leaves voluntarily: other on-demand
// machines must make up the base.
func (c *checker) checkBase(now records.Instance) {
	key := keyOf(now)
	if key != webToo || now.Shape.Market != nstance.OnDemand {
		return
	}
	floor, others := min(base, c.w.smallest(key)), 0
	if c.w.anyWithoutSurge(key) {
		floor--
	}
	for _, r := range c.w.store.members(key) {
		if r.ID != now.ID && r.Shape.Market == nstance.OnDemand && (leaving(*r) == "" || c.lostSince(r.ID, now.ID) || c.causesWithdrawn(*r)) {
			others++
		}
	}
	if others < floor {
		c.violated("base", "on-demand member %s leaves for %s: %d others, of a base of %d", now.ID, leaving(now), others, floor)
	}
}

// requireMarkets checks the numbers of a group's on-demand machines and others.
func (d *driver) requireMarkets(key nstance.GroupKey, onDemand, spot int, when string) {
	for _, m := range d.machines(key) {
		if m.Market == nstance.OnDemand {
			onDemand--
		} else {
			spot--
		}
	}
	if onDemand != 0 || spot != 0 {
		d.check.violated("market", "%s, group %s lacks %d on-demand machines, and has %d others", when, key, onDemand, spot)
	}
}

// awaitSpot advances the clock until a group has returned to spot. After failures that
// may take hours; without surge it cannot.
func (d *driver) awaitSpot(key nstance.GroupKey) {
	for range 24 * 12 {
		if r, _ := d.leader(); r != nil {
			g, err := r.Group(key)
			if err == nil && g.Leaving == 0 && g.Ready == g.Size && (g.ReturnAt.IsZero() || g.Rollout.MaxSurge.N == 0) {
				return
			}
		}
		d.pass(5 * time.Minute)
	}
	d.check.violated("market", "group %s has not returned to spot in a day", key)
}

// drillMarkets loses all spot machines of a group while spot is sold out: it falls back
// to on-demand, and returns one at a time when spot has capacity.
func (d *driver) drillMarkets(key nstance.GroupKey) {
	size := d.currentGroup(key).Size
	d.setGroup(key, func(g *nstance.Group) { g.Rollout.MaxSurge.N = 1 })
	d.awaitSpot(key)
	d.requireMarkets(key, base, size-base, "initially")
	d.cloud.SetCapacity(spotPool, 0)
	for _, m := range d.machines(key) {
		if m.Market == nstance.Spot {
			_ = d.cloud.Kill(m.ID) // it may be stopping already
		}
	}
	d.pass(6 * time.Minute)
	d.requireMarkets(key, size, 0, "without spot capacity")
	d.cloud.SetCapacity(spotPool, -1)
	d.awaitSpot(key)
	d.requireMarkets(key, base, size-base, "with spot capacity again")
	d.check.checkSettled()
}
