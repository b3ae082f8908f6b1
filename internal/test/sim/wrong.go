package sim

import (
	"context"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile"
)

// setClockWrong sets a server's wall clock wrong by hours, more often the leader's, and right
// again after a while.
func (a act) setClockWrong() {
	p, off := a.one(), a.hours()
	if a.rng.IntN(4) > 0 {
		p = a.leading(p)
	}
	p.wall.step(off)
	a.sleep(a.seconds(20, 480))
	p.wall.step(0)
}

// hours returns a random clock error: one to five hours, ahead or behind.
func (a act) hours() time.Duration {
	off := time.Hour + a.seconds(0, 4*3600)
	if a.rng.IntN(2) == 0 {
		return -off
	}
	return off
}

// leading returns the leading process, or another.
func (d *driver) leading(other *process) *process {
	for _, p := range d.all() {
		if r, _ := p.leading(); r != nil {
			return p
		}
	}
	return other
}

// setStorageClockWrong sets storage's clock wrong for a while, by less than a server's: two clocks
// with the same error are undetectable.
func (a act) setStorageClockWrong() {
	off := 10*time.Minute + a.seconds(0, 1800)
	if a.rng.IntN(2) == 0 {
		off = -off
	}
	a.storage.step(off)
	a.sleep(a.seconds(20, 300))
	a.storage.step(0)
}

// deleteDelayed deletes instances that a server with a wrong clock has delayed by hours, as an
// operator does: the next leader trusts the record.
func (d *driver) deleteDelayed() {
	soon := time.Now().Add(10 * time.Minute)
	for _, rec := range d.store.all() {
		if rec.Preserve != nil && rec.Preserve.Until.After(soon) {
			_ = d.ask(func(ctx context.Context, r *reconcile.Reconciler) error {
				return r.Admin().Preserve(ctx, rec.ID, time.Now(), requester)
			})
		}
		if rec.Drain != nil && rec.Drain.Deadline.After(soon) {
			_ = d.ask(func(ctx context.Context, r *reconcile.Reconciler) error {
				return r.Delete(ctx, rec.ID, requester, true)
			})
		}
	}
}

// wrongClock sets the leader's clock or storage's wrong, and returns a function that
// sets it right.
func (d *driver) wrongClock() (right func()) {
	a := d.act(16)
	clock, off := a.leading(a.one()).wall, a.hours()
	if a.dated && a.rng.IntN(3) == 0 {
		clock, off = &a.storage, off/6
	}
	clock.step(off)
	return func() { clock.step(0) }
}

// drillClock sets the leader's clock or storage's wrong while a machine is draining, one
// is preserved and one does not register: by a clock that is ahead all of them would be
// over, and every member too old. None is removed before the clock is right again, a
// loss is still replaced, and then everything continues.
func (d *driver) drillClock(key nstance.GroupKey) {
	d.hang.Add(1)
	all := d.machines(key)
	one, two := all[0].ID, all[1].ID
	age := time.Duration(0)
	for _, m := range all {
		age = max(age, time.Since(m.CreatedAt))
	}
	age = (age + 40*time.Minute) * 10 / 9 // the ID's jitter takes up to a tenth
	d.setGroup(key, func(g *nstance.Group) { g.DrainTimeout, g.Expiry.ForcedAge = 7*time.Minute, age })
	_ = d.ask(func(ctx context.Context, r *reconcile.Reconciler) error {
		_, err := r.Drain(ctx, one, requester)
		return err
	})
	d.preserve(two, 7*time.Minute)
	d.pass(time.Minute)
	d.acts.Go(func() { d.act(15).crashLeader() })
	d.pass(40 * time.Second)
	d.acts.Wait()

	right := d.wrongClock()
	d.withoutAgent(1)
	lost := d.machines(web)[0].ID
	_ = d.cloud.Kill(lost)
	d.pass(4 * time.Minute)
	for _, m := range d.machines(key) {
		if rec, ok := d.store.record(m.ID); !ok || rec.Deleting != nil || leaving(rec) != "" && m.ID != one {
			d.check.violated("clock", "%s leaves by a clock that is wrong", m.ID)
		}
	}
	if n := d.countOthers(web, lost); n != d.currentGroup(web).Size {
		d.check.violated("clock", "while a clock is wrong there are %d machines of group %s, size is %d", n, web, d.currentGroup(web).Size)
	}
	right()
	d.pass(4 * time.Minute)
	if _, err := d.cloud.Truth(one); err == nil {
		d.check.violated("clock", "%s still exists, its drain is over and every clock right", one)
	}
	d.hang.Add(-1)
	d.setGroup(key, func(g *nstance.Group) { g.DrainTimeout, g.Expiry.ForcedAge = drainTimeout, 0 })
	d.pass(7 * time.Minute)
	d.check.checkSettled()
}
