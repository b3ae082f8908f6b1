package sim

import (
	"context"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/reconcile"
)

// inFlight is how long a call that was decided before a freeze or a preservation may
// take to be sent.
const inFlight = 15 * time.Second

// requester is the requester, as a reason.
const requester = "asked for by the simulation"

// wholeShard is the key for a freeze of the shard.
var wholeShard nstance.GroupKey

// freezeGroup freezes a group or the shard for a while.
func (a act) freezeGroup() {
	key, long := a.group(), a.seconds(20, 240)
	if a.rng.IntN(3) == 0 {
		key = wholeShard
	}
	a.chosen.Lock()
	taken := a.freezing[key]
	a.freezing[key] = true
	a.chosen.Unlock()
	if taken {
		return // one at a time, so that each thaw has its freeze
	}
	a.freeze(key)
	a.sleep(long)
	a.thaw(key)
	a.chosen.Lock()
	defer a.chosen.Unlock()
	a.freezing[key] = false
}

func (d *driver) freeze(key nstance.GroupKey) {
	err := d.ask(func(ctx context.Context, r *reconcile.Reconciler) error {
		if key == wholeShard {
			return r.Admin().FreezeShard(ctx, "drill")
		}
		return r.Admin().Freeze(ctx, key, "drill")
	})
	if err == nil {
		d.check.recordFreeze(key)
	}
}

func (d *driver) thaw(key nstance.GroupKey) {
	_ = d.ask(func(ctx context.Context, r *reconcile.Reconciler) error {
		d.check.recordThaw(key)
		if key == wholeShard {
			return r.Admin().ThawShard(ctx, requester)
		}
		return r.Admin().Thaw(ctx, key, requester) // NotFound: it has been removed
	})
}

// recordFreeze records an acknowledged freeze: it is durable.
func (c *checker) recordFreeze(key nstance.GroupKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frozen[key] = time.Now()
}

// recordThaw records a requested thaw: it may be in force from now on.
func (c *checker) recordThaw(key nstance.GroupKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.frozen, key)
}

// frozenSince returns since when a group is frozen, if it is.
func (c *checker) frozenSince(key nstance.GroupKey) (since time.Time, frozen bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range []nstance.GroupKey{key, wholeShard} {
		if at, ok := c.frozen[k]; ok && (!frozen || at.Before(since)) {
			since, frozen = at, true
		}
	}
	return since, frozen
}

// checkFrozenCreate checks that no machine of a frozen group is created.
func (c *checker) checkFrozenCreate(rec records.Instance) {
	if since, frozen := c.frozenSince(keyOf(rec)); frozen && time.Since(since) > inFlight {
		c.violated("freeze", "machine %s is created although %s is frozen for %v", rec.ID, keyOf(rec), time.Since(since))
	}
}

// checkFrozenSleep checks that no machine of a frozen group is parked or woken.
func (c *checker) checkFrozenSleep(call string, m nstance.Machine) {
	rec, ok := c.w.store.record(m.ID)
	if !ok {
		return
	}
	if since, frozen := c.frozenSince(keyOf(rec)); frozen && time.Since(since) > inFlight {
		c.violated("freeze", "%s of %s although %s is frozen for %v", call, m.ID, keyOf(rec), time.Since(since))
	}
}

// checkFrozenWrite checks that no instance of a frozen group starts or leaves. What was decided
// before continues.
func (c *checker) checkFrozenWrite(old *records.Instance, now records.Instance) {
	since, frozen := c.frozenSince(keyOf(now))
	if !frozen {
		return
	}
	since = since.Add(maxStep + time.Second)
	dates := c.dateOf(now.ID)
	switch {
	case old == nil && now.Deleting == nil && dates.created.After(since):
		c.violated("freeze", "%s starts although %s is frozen", now.ID, keyOf(now))
	case (old == nil || leaving(*old) == "") && leaving(now) != "" && dates.left.After(since):
		c.violated("freeze", "%s leaves for %s although %s is frozen", now.ID, leaving(now), keyOf(now))
	}
}

// leftAt is when it was decided that a member leaves, by its leader's clock. A
// deletion without a drain is dated when it is written, which may be tried for a
// while.
func leftAt(rec records.Instance) time.Time {
	if rec.Drain != nil {
		return rec.Drain.StartedAt
	}
	return rec.Deleting.At.Add(-time.Minute)
}

// drillFreeze freezes a group. A member is reclaimed, the configuration changes and the
// leader crashes; nothing is done until the thaw.
func (d *driver) drillFreeze(key nstance.GroupKey) {
	d.freeze(key)
	before := d.machines(key)
	lost := before[0].ID
	if i := slices.IndexFunc(before, func(m nstance.Machine) bool { return m.Market == nstance.Spot }); i >= 0 {
		lost = before[i].ID
		_ = d.cloud.Reclaim(lost, time.Minute)
	} else { // all members have fallen back, and without surge they stay on demand
		_ = d.cloud.Kill(lost)
	}
	d.setGroup(key, func(g *nstance.Group) { g.Size++ })
	d.pass(2 * time.Minute)
	d.acts.Go(func() { d.act(12).crashLeader() })
	d.pass(3 * time.Minute)
	d.acts.Wait()
	if n := len(d.machines(key)); n != len(before)-1 {
		d.check.violated("freeze", "group %s had %d machines when it was frozen, lost one, and has %d", key, len(before), n)
	}
	if rec, ok := d.store.record(lost); !ok || leaving(rec) != "" {
		d.check.violated("freeze", "%s was removed although %s is frozen", lost, key)
	}
	d.thaw(key)
	d.pass(5 * time.Minute)
	d.check.checkSettled()
	d.setGroup(key, func(g *nstance.Group) { g.Size-- })
	d.pass(drainTimeout + 2*time.Minute)
	d.check.checkSettled()
}
