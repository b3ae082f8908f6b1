package sim

import (
	"context"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
)

// avoidablePools are the pools that the simulation avoids.
var avoidablePools = []reconcile.Pool{
	{InstanceType: small}, {InstanceType: large}, {Market: nstance.Spot}, {Market: nstance.OnDemand}, {InstanceType: small, Market: nstance.Spot},
}

// avoidPool has a pool avoided for a while, often while creates are throttled, and sometimes
// members replaced that are there.
func (a act) avoidPool() {
	pool, drain, long := avoidablePools[a.rng.IntN(len(avoidablePools))], a.rng.IntN(3) == 0, a.seconds(20, 240)
	a.chosen.Lock()
	taken := a.avoiding[pool]
	a.avoiding[pool] = true
	a.chosen.Unlock()
	if taken {
		return // one at a time, so that each release has its avoidance
	}
	if a.rng.IntN(2) == 0 {
		a.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Times: 5 + a.rng.IntN(20), Code: nstance.Throttled})
		a.storm()
		a.sleep(a.seconds(1, 10))
	}
	a.avoid(pool, drain)
	a.sleep(long)
	a.release(pool)
	a.chosen.Lock()
	defer a.chosen.Unlock()
	a.avoiding[pool] = false
}

// avoid has a pool avoided for longer than any clock is wrong.
func (d *driver) avoid(pool reconcile.Pool, drain bool) {
	d.check.recordShortage(shortageMemory)
	err := d.ask(func(ctx context.Context, r *reconcile.Reconciler) error {
		_, _, err := r.Admin().AvoidPool(ctx, reconcile.AvoidedPool{Pool: pool, Until: time.Now().Add(15 * 24 * time.Hour), Reason: "drill", Drain: drain}, false)
		return err
	})
	if err == nil {
		d.check.recordAvoided(pool)
	}
}

func (d *driver) release(pool reconcile.Pool) {
	d.check.recordShortage(shortageMemory) // what is created from now on may have been chosen before
	_ = d.ask(func(ctx context.Context, r *reconcile.Reconciler) error {
		d.check.recordReleased(pool)
		_, err := r.Admin().ReleasePool(ctx, pool, requester, false)
		return err
	})
	d.check.recordShortage(shortageMemory)
}

// recordAvoided records an acknowledged avoidance: it is durable.
func (c *checker) recordAvoided(pool reconcile.Pool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.avoided[pool] = time.Now()
}

// recordReleased records a requested release: it may be in force from now on.
func (c *checker) recordReleased(pool reconcile.Pool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.avoided, pool)
}

// checkAvoidedCreate checks that no machine is created in an avoided pool.
func (c *checker) checkAvoidedCreate(spec nstance.MachineSpec) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for pool, since := range c.avoided {
		matches := (pool.InstanceType == "" || pool.InstanceType == spec.InstanceType) && (pool.Market == "" || pool.Market == spec.Market)
		if matches && time.Since(since) > inFlight {
			c.violatedLocked("avoid", "machine %s is created as %s %s although %s is avoided for %v", spec.ID, spec.InstanceType, spec.Market, pool, time.Since(since))
		}
	}
}

// drillAvoid avoids the preferred instance type of a spot group without a fallback, and then
// all of spot, while members are lost and the leader crashes. The first loss is replaced with
// the other type, the second waits until the release.
func (d *driver) drillAvoid(key nstance.GroupKey) {
	preferred, spot := reconcile.Pool{InstanceType: small}, reconcile.Pool{Market: nstance.Spot}
	size := d.currentGroup(key).Size
	lose := func() {
		for _, m := range d.machines(key) {
			if m.InstanceType == small && m.Status == nstance.StatusRunning {
				_ = d.cloud.Kill(m.ID)
				return
			}
		}
	}
	others := len(d.ofType(key, large))
	d.avoid(preferred, false)
	lose()
	d.acts.Go(func() { d.act(13).crashLeader() })
	d.pass(8 * time.Minute)
	d.acts.Wait()
	if n, l := len(d.machines(key)), len(d.ofType(key, large)); n != size || l != others+1 {
		d.check.violated("avoid", "group %s has %d machines of %d, %d of them %s, after a loss while %s is avoided", key, n, size, l, large, preferred)
	}
	d.avoid(spot, false)
	lose()
	d.pass(8 * time.Minute)
	if n := len(d.machines(key)); n != size-1 {
		d.check.violated("avoid", "group %s has %d machines of %d after a loss while %s is avoided", key, n, size, spot)
	}
	d.release(spot)
	d.release(preferred)
	d.pass(5 * time.Minute)
	d.check.checkSettled()
}

// ofType returns a group's machines of an instance type.
func (d *driver) ofType(key nstance.GroupKey, instanceType string) (out []nstance.Machine) {
	for _, m := range d.machines(key) {
		if m.InstanceType == instanceType {
			out = append(out, m)
		}
	}
	return out
}
