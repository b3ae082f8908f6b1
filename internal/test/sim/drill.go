package sim

import (
	"math/rand/v2"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// drill checks, with nothing else going wrong, what must happen in time.
func (d *driver) drill() {
	size := d.wanted(web).Size
	d.drillReclaim(size)
	d.drillRefusal(size)
	d.pass(10 * time.Minute)
	d.check.settled()
	d.drillStray()
	d.drillSuccession(size)
	d.drillTakeover(size)
	d.pass(10 * time.Minute)
	d.check.settled()
	d.drillSilence(web)
	d.drillBalancer(web)
	d.drillFreeze(webToo)
	d.drillPreserve(web)
	d.drillRollback(webToo)
	d.drillOrder()
	d.drillRemoval()
	d.drillExpiry(webToo)
	d.drillLateIntent()
	d.drillClock(webToo)
	d.drillCapacity(web)
	d.drillLosses(web)
	d.drillMarkets(webToo)
	d.drillPending(webToo, false)
	d.drillPending(web, true)
	d.drillUndefined()
}

// drillSilence cuts every agent of a group off. As long as the provider says
// that their machines run, none is replaced.
func (d *driver) drillSilence(key nstance.GroupKey) {
	all := ids(d.machines(key))
	d.separate(1, all...)
	d.pass(6 * time.Minute)
	for _, id := range all {
		if rec, ok := d.store.record(id); !ok || leaving(rec) != "" {
			d.check.violated("breaker", "%s is let go while nobody of group %s can be heard", id, key)
		}
	}
	d.separate(-1, all...)
	d.pass(3 * time.Minute)
	d.check.settled()
}

// drillStray makes a machine without a record. It goes by the rule for orphans
// alone, and soon: the leader has led for a while, and there is one only.
func (d *driver) drillStray() {
	id, err := d.makeStray()
	if err != nil {
		d.check.violated("I1", "the cloud refuses a machine: %v", err)
		return
	}
	d.pass(4 * time.Minute)
	if _, err := d.cloud.Truth(id); err != nil {
		d.check.violated("I10", "machine %s without a record was collected before it was old enough", id)
	}
	d.pass(8 * time.Minute)
	if _, err := d.cloud.Truth(id); err == nil {
		d.check.violated("I1", "machine %s without a record is still there after 12m", id)
	}
}

// drillSuccession takes a machine whose hooks hang while one leader crashes and
// the next one retires: neither does the drain begin again nor is the notice
// acted on twice, and the third leader deletes the machine in time.
func (d *driver) drillSuccession(size int) {
	d.hang.Add(1)
	defer d.hang.Add(-1)
	id := d.machines(web)[0].ID
	if d.cloud.Reclaim(id, 2*time.Minute) != nil {
		d.check.violated("I8", "machine %s does not run", id)
		return
	}
	d.pass(8 * time.Second)
	before, _ := d.store.record(id)
	for _, end := range []func(*process){(*process).crash, (*process).retire} {
		d.acts.Go(func() { d.act(8).succeedLeader(end) })
		d.pass(30 * time.Second)
	}
	after, ok := d.store.record(id)
	if before.Drain == nil || !ok || after.Drain == nil || after.Drain.Generation != before.Drain.Generation {
		d.check.violated("I9", "the drain of %s was %v and is %v after two leaders", id, before.Drain, after.Drain)
	}
	if n := d.others(web, id); n != size {
		d.check.violated("I9", "after two leaders there are %d other machines beside %s, of %d wanted", n, id, size)
	}
	d.pass(2*time.Minute - 68*time.Second - 3*time.Second)
	if rec, ok := d.store.record(id); ok && rec.Deleting == nil {
		d.check.violated("I3", "%s is not being deleted although its deadline has passed", id)
	}
	d.acts.Wait()
}

// drillTakeover makes a group smaller while a new leader has heard of nobody
// yet. Until it has, or they have had the time to be heard, none is surplus: it
// might be the ones that serve.
func (d *driver) drillTakeover(size int) {
	all := ids(d.machines(web))
	d.separate(1, all...)
	d.acts.Go(func() { d.act(9).crashLeader() })
	d.pass(time.Second)
	d.want(web, func(g *nstance.Group) { g.Size = size / 2 })
	for range 60 {
		if r, _ := d.leader(); r != nil {
			break
		}
		d.pass(time.Second)
	}
	d.pass(reportInterval / 2)
	for _, id := range all {
		if rec, ok := d.store.record(id); ok && leaving(rec) == nstance.CauseSurplus {
			d.check.violated("I4", "%s is surplus to a new leader that has heard of nobody", id)
		}
	}
	d.separate(-1, all...)
	d.acts.Wait()
	d.pass(5 * time.Minute)
	d.check.settled()
	d.want(web, func(g *nstance.Group) { g.Size = size })
}

// drillReclaim takes a machine whose hooks hang. The replacement does not wait
// for it to go, and its own deletion begins before the cloud takes it.
func (d *driver) drillReclaim(size int) {
	d.hang.Add(1)
	defer d.hang.Add(-1)
	id := d.machines(web)[0].ID
	if d.cloud.Reclaim(id, 100*time.Second) != nil {
		d.check.violated("I8", "machine %s does not run", id)
		return
	}
	d.pass(10 * time.Second)
	if n := d.others(web, id); n != size {
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
	machines := d.machines(web)
	id := machines[len(machines)-1].ID
	d.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Code: nstance.Denied})
	d.pass(5 * time.Minute)
	if d.cloud.Reclaim(id, 100*time.Second) != nil {
		d.check.violated("I8", "machine %s does not run", id)
		return
	}
	d.pass(15 * time.Second)
	if n := d.others(web, id); n != size {
		d.check.violated("I8", "15s after the notice for %s and one refusal there are %d other machines, of %d wanted", id, n, size)
	}
}

// drillLateIntent stops a leader while it writes what it is about to make, and
// lets it go on when the next one has read every record and nothing of that is
// wanted any more: first the group has become smaller, then it is gone.
func (d *driver) drillLateIntent() {
	key := nstance.GroupKey{Tenant: webToo.Tenant, Group: "late"}
	d.late(key, func(g *nstance.Group) { *g = d.newGroup(key, 1) }, func(g *nstance.Group) { g.Size = 1 })
	d.check.settled()
	d.late(key, func(g *nstance.Group) { g.Size = side }, func(g *nstance.Group) { g.Removing = true })
	d.pass(8 * time.Minute) // nobody describes the group: the intents wait until it is too late for a machine
	d.check.settled()
}

// late lets a leader's writes for one wish land when the next leader knows
// another only.
func (d *driver) late(key nstance.GroupKey, wish, other func(*nstance.Group)) {
	thaw := func() {}
	for _, p := range d.all() {
		if r, _ := p.leading(); r != nil {
			thaw = p.link.freeze()
		}
	}
	d.want(key, wish)
	d.pass(time.Second)
	d.want(key, other)
	for range 60 {
		if r, _ := d.leader(); r != nil {
			break
		}
		d.pass(time.Second)
	}
	d.pass(15 * time.Second)
	thaw()
	d.pass(8 * time.Minute) // more than a full pass, and what follows from it
}

// others counts the machines of a group that run or will, apart from one.
func (d *driver) others(key nstance.GroupKey, id nstance.InstanceID) (n int) {
	for _, m := range d.machines(key) {
		if m.ID != id && !m.Status.Dead() {
			n++
		}
	}
	return n
}

// act returns something to do with luck of its own.
func (d *driver) act(stream uint64) act {
	return act{d, rand.New(rand.NewPCG(d.cfg.Seed, stream))}
}
