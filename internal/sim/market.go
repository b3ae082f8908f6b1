package sim

import (
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

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
