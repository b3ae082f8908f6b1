package sim

import (
	"math/rand/v2"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// drill checks, without other faults, what must happen in time.
func (d *driver) drill() {
	size := d.currentGroup(web).Size
	d.drillReclaim(size)
	d.drillRefusal(size)
	d.pass(10 * time.Minute)
	d.check.checkSettled()
	d.drillStray()
	d.drillSuccession(size)
	d.drillTakeover(size)
	d.pass(10 * time.Minute)
	d.check.checkSettled()
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
	d.drillAvoid(web)
	d.drillBridge()
	d.drillSilentBridge()
	d.drillAdvice(web)
	d.drillUnwell(web)
	d.drillUnhealthy(web)
	d.drillHalt(web)
	d.drillDrains(web)
}

// drillSilence partitions every agent of a group. As long as the provider shows their
// machines running, none is replaced.
func (d *driver) drillSilence(key nstance.GroupKey) {
	all := ids(d.machines(key))
	d.partition(1, all...)
	d.pass(6 * time.Minute)
	for _, id := range all {
		if rec, ok := d.store.record(id); !ok || leaving(rec) != "" {
			d.check.violated("breaker", "%s is removed while all agents of group %s are silent", id, key)
		}
	}
	d.partition(-1, all...)
	d.pass(3 * time.Minute)
	d.check.checkSettled()
}

// drillStray creates a machine without a record. It is collected by the rule for
// orphans, and soon: the leader has led for a while, and it is the only one.
func (d *driver) drillStray() {
	id, err := d.makeStray()
	if err != nil {
		d.check.violated("I1", "the cloud refuses a machine: %v", err)
		return
	}
	d.pass(4 * time.Minute)
	if _, err := d.cloud.Truth(id); err != nil {
		d.check.violated("I10", "machine %s without a record was collected too early", id)
	}
	d.pass(8 * time.Minute)
	if _, err := d.cloud.Truth(id); err == nil {
		d.check.violated("I1", "machine %s without a record is still there after 12m", id)
	}
}

// drillSuccession reclaims a machine whose hooks hang while one leader crashes and the
// next one retires. The drain does not start again, the notice is handled once, and the
// third leader deletes the machine in time.
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
		d.acts.Go(func() { d.act(8).replaceLeader(end) })
		d.pass(30 * time.Second)
	}
	after, ok := d.store.record(id)
	if before.Drain == nil || !ok || after.Drain == nil || after.Drain.Generation != before.Drain.Generation {
		d.check.violated("I9", "the drain of %s was %v and is %v after two leaders", id, before.Drain, after.Drain)
	}
	if n := d.countOthers(web, id); n != size {
		d.check.violated("I9", "after two leaders there are %d other machines beside %s, size is %d", n, id, size)
	}
	d.pass(2*time.Minute - 68*time.Second - 3*time.Second)
	if rec, ok := d.store.record(id); ok && rec.Deleting == nil {
		d.check.violated("I3", "%s is not being deleted although its deadline has passed", id)
	}
	d.acts.Wait()
}

// drillTakeover shrinks a group while a new leader has no reports yet. Until members
// have reported, or had the time to, none is surplus: it might be a ready one.
func (d *driver) drillTakeover(size int) {
	all := ids(d.machines(web))
	d.partition(1, all...)
	d.acts.Go(func() { d.act(9).crashLeader() })
	d.pass(time.Second)
	d.setGroup(web, func(g *nstance.Group) { g.Size = size / 2 })
	for range 60 {
		if r, _ := d.leader(); r != nil {
			break
		}
		d.pass(time.Second)
	}
	d.pass(reportInterval / 2)
	for _, id := range all {
		if rec, ok := d.store.record(id); ok && leaving(rec) == nstance.CauseSurplus {
			d.check.violated("I4", "%s is surplus to a new leader without reports", id)
		}
	}
	d.partition(-1, all...)
	d.acts.Wait()
	d.pass(5 * time.Minute)
	d.check.checkSettled()
	d.setGroup(web, func(g *nstance.Group) { g.Size = size })
}

// drillReclaim reclaims a machine whose hooks hang. The replacement does not wait for
// it, and its deletion starts before the reclaim.
func (d *driver) drillReclaim(size int) {
	d.hang.Add(1)
	defer d.hang.Add(-1)
	id := d.machines(web)[0].ID
	if d.cloud.Reclaim(id, 100*time.Second) != nil {
		d.check.violated("I8", "machine %s does not run", id)
		return
	}
	d.pass(10 * time.Second)
	if n := d.countOthers(web, id); n != size {
		d.check.violated("I9", "10s after the notice for %s there are %d other machines, size is %d", id, n, size)
	}
	d.pass(87 * time.Second)
	if rec, ok := d.store.record(id); ok && rec.Deleting == nil {
		d.check.violated("I3", "%s is not being deleted although its deadline has passed", id)
	}
}

// drillRefusal reclaims a machine and refuses the first replacement definitely. The next
// one follows after the first backoff.
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
	if n := d.countOthers(web, id); n != size {
		d.check.violated("I8", "15s after the notice for %s and one refusal there are %d other machines, size is %d", id, n, size)
	}
}

// drillLateIntent stops a leader while it writes intents, and resumes it when the next
// one has read every record and no longer needs them: first the group has become
// smaller, then it is gone.
func (d *driver) drillLateIntent() {
	key := nstance.GroupKey{Tenant: webToo.Tenant, Group: "late"}
	d.drillLateWrites(key, func(g *nstance.Group) { *g = d.newGroup(key, 1) }, func(g *nstance.Group) { g.Size = 1 })
	d.check.checkSettled()
	d.drillLateWrites(key, func(g *nstance.Group) { g.Size = side }, func(g *nstance.Group) { g.Removing = true })
	d.pass(8 * time.Minute) // unknown group: the intents wait until their nonces expire
	d.check.checkSettled()
}

// drillLateWrites makes a leader's writes for one group definition land after the next leader has
// another one.
func (d *driver) drillLateWrites(key nstance.GroupKey, wish, other func(*nstance.Group)) {
	thaw := func() {}
	for _, p := range d.all() {
		if r, _ := p.leading(); r != nil {
			thaw = p.link.freeze()
		}
	}
	d.setGroup(key, wish)
	d.pass(time.Second)
	d.setGroup(key, other)
	for range 60 {
		if r, _ := d.leader(); r != nil {
			break
		}
		d.pass(time.Second)
	}
	d.pass(15 * time.Second)
	thaw()
	d.pass(8 * time.Minute) // more than a full pass and its consequences
}

// countOthers counts the running or booting machines of a group, except one.
func (d *driver) countOthers(key nstance.GroupKey, id nstance.InstanceID) (n int) {
	for _, m := range d.machines(key) {
		if m.ID != id && !m.Status.Dead() {
			n++
		}
	}
	return n
}

// act returns an act with a random source of its own.
func (d *driver) act(stream uint64) act {
	return act{d, rand.New(rand.NewPCG(d.cfg.Seed, stream))}
}
