package sim

import (
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// drill checks, with nothing else going wrong, what must happen in time.
func (d *driver) drill() {
	size := d.wanted().Size
	d.drillReclaim(size)
	d.drillRefusal(size)
	d.pass(10 * time.Minute)
	d.check.settled(size)
}

// drillReclaim takes a machine whose hooks hang. The replacement does not wait
// for it to go, and its own deletion begins before the cloud takes it.
func (d *driver) drillReclaim(size int) {
	d.hang.Add(1)
	defer d.hang.Add(-1)
	id := d.cloud.Machines()[0].ID
	if d.cloud.Reclaim(id, 100*time.Second) != nil {
		d.check.violated("I8", "machine %s does not run", id)
		return
	}
	d.pass(10 * time.Second)
	if n := d.others(id); n != size {
		d.check.violated("I9", "10s after the notice for %s there are %d other machines, of %d wanted", id, n, size)
	}
	d.pass(87 * time.Second)
	if rec, ok := d.store.record(id); ok && rec.Deleting == nil {
		d.check.violated("I3", "%s is not being deleted although its deadline has passed", id)
	}
}

// drillRefusal takes a machine and refuses the first replacement for good. The
// next one is tried after the first backoff.
func (d *driver) drillRefusal(size int) {
	machines := d.cloud.Machines()
	id := machines[len(machines)-1].ID
	d.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Code: nstance.Denied})
	d.pass(5 * time.Minute)
	if d.cloud.Reclaim(id, 100*time.Second) != nil {
		d.check.violated("I8", "machine %s does not run", id)
		return
	}
	d.pass(15 * time.Second)
	if n := d.others(id); n != size {
		d.check.violated("I8", "15s after the notice for %s and one refusal there are %d other machines, of %d wanted", id, n, size)
	}
}

// others counts the machines that run or will, apart from one.
func (d *driver) others(id nstance.InstanceID) (n int) {
	for _, m := range d.cloud.Machines() {
		if m.ID != id && !m.Status.Dead() {
			n++
		}
	}
	return n
}
