package sim

import (
	"context"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
)

// underWay is how long something that was decided before a freeze, or before a
// machine was preserved, may take to be sent.
const underWay = 15 * time.Second

// asker is who asks for things, as a reason.
const asker = "asked for by the simulation"

// wholeShard stands for every group where something is frozen.
var wholeShard nstance.GroupKey

// stopChange freezes a group or the shard for a while.
func (a act) stopChange() {
	key, long := a.group(), a.seconds(20, 240)
	if a.rng.IntN(3) == 0 {
		key = wholeShard
	}
	a.chosen.Lock()
	taken := a.freezing[key]
	a.freezing[key] = true
	a.chosen.Unlock()
	if taken {
		return // one at a time: else nobody knows whose thaw it is
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
			return r.FreezeShard(ctx, "drill")
		}
		return r.Freeze(ctx, key, "drill")
	})
	if err == nil {
		d.check.froze(key)
	}
}

func (d *driver) thaw(key nstance.GroupKey) {
	_ = d.ask(func(ctx context.Context, r *reconcile.Reconciler) error {
		d.check.thaws(key)
		if key == wholeShard {
			return r.ThawShard(ctx, asker)
		}
		return r.Thaw(ctx, key, asker) // NotFound: it has been removed
	})
}

// froze notes that somebody was told of a freeze: it is durable.
func (c *checker) froze(key nstance.GroupKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frozen[key] = time.Now()
}

// thaws notes that somebody asks for the end of a freeze: it may be in force
// from now on.
func (c *checker) thaws(key nstance.GroupKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.frozen, key)
}

// frozenSince returns since when nothing may change of a group, if that is so.
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

// still checks that no machine is asked for in a frozen group.
func (c *checker) still(rec storage.Instance) {
	if since, frozen := c.frozenSince(keyOf(rec)); frozen && time.Since(since) > underWay {
		c.violated("freeze", "machine %s is asked for although %s is frozen for %v", rec.ID, keyOf(rec), time.Since(since))
	}
}

// unmoved checks that nothing is decided about a frozen group: no instance
// begins and none leaves. What was decided before goes on.
func (c *checker) unmoved(old *storage.Instance, now storage.Instance) {
	since, frozen := c.frozenSince(keyOf(now))
	if !frozen {
		return
	}
	since = since.Add(maxStep + time.Second)
	dates := c.dateOf(now.ID)
	switch {
	case old == nil && now.Deleting == nil && dates.created.After(since):
		c.violated("freeze", "%s begins although %s is frozen", now.ID, keyOf(now))
	case (old == nil || leaving(*old) == "") && leaving(now) != "" && dates.left.After(since):
		c.violated("freeze", "%s leaves for %s although %s is frozen", now.ID, leaving(now), keyOf(now))
	}
}

// leftAt is when it was decided that a member leaves, by its leader's clock. A
// deletion without a drain is dated when it is written, which may be tried for a
// while.
func leftAt(rec storage.Instance) time.Time {
	if rec.Drain != nil {
		return rec.Drain.StartedAt
	}
	return rec.Deleting.At.Add(-time.Minute)
}

// drillFreeze freezes a group. The cloud takes a member, people change what they
// want and the leader crashes, and nothing is done about it until the thaw.
func (d *driver) drillFreeze(key nstance.GroupKey) {
	d.freeze(key)
	before := d.machines(key)
	lost := before[0].ID
	if i := slices.IndexFunc(before, func(m nstance.Machine) bool { return m.Market == nstance.Spot }); i >= 0 {
		lost = before[i].ID
		_ = d.cloud.Reclaim(lost, time.Minute)
	} else { // all members have fallen back, and without surge there is no way back
		_ = d.cloud.Kill(lost)
	}
	d.want(key, func(g *nstance.Group) { g.Size++ })
	d.pass(2 * time.Minute)
	d.acts.Go(func() { d.act(12).crashLeader() })
	d.pass(3 * time.Minute)
	d.acts.Wait()
	if n := len(d.machines(key)); n != len(before)-1 {
		d.check.violated("freeze", "group %s had %d machines when it was frozen, lost one, and has %d", key, len(before), n)
	}
	if rec, ok := d.store.record(lost); !ok || leaving(rec) != "" {
		d.check.violated("freeze", "%s was let go although %s is frozen", lost, key)
	}
	d.thaw(key)
	d.pass(5 * time.Minute)
	d.check.settled()
	d.want(key, func(g *nstance.Group) { g.Size-- })
	d.pass(drainTimeout + 2*time.Minute)
	d.check.settled()
}
