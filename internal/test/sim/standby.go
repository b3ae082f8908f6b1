package sim

import (
	"context"
	"strconv"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
)

const (
	poolSize  = 2
	claimants = 3 // nodes that claim a stand-by machine
)

func claimant(i int) string { return "node-" + strconv.Itoa(i) }

var _ nstance.Parker = linkedProvider{}

// ParkModes implements [nstance.Parker].
func (p linkedProvider) ParkModes() []nstance.ParkMode { return p.cloud.ParkModes() }

// Park implements [nstance.Parker].
func (p linkedProvider) Park(ctx context.Context, m nstance.Machine, mode nstance.ParkMode) (err error) {
	if p.c.checkTermAtSend(p.p, "a park") {
		p.c.checkSleep("park", m, nstance.Parking)
		p.c.checkFrozenSleep("park", m)
	}
	lerr := p.l.carry(ctx, func() {
		err = p.cloud.Park(context.WithoutCancel(ctx), m, mode)
		p.c.logTrace("park %s for %s: %v", m.ID, p.p.name, err)
	})
	if lerr != nil {
		return lerr
	}
	return err
}

// Wake implements [nstance.Parker].
func (p linkedProvider) Wake(ctx context.Context, m nstance.Machine) (err error) {
	if p.c.checkTermAtSend(p.p, "a wake") {
		p.c.checkSleep("wake", m, nstance.Waking)
		p.c.checkFrozenSleep("wake", m)
	}
	lerr := p.l.carry(ctx, func() {
		err = p.cloud.Wake(context.WithoutCancel(ctx), m)
		p.c.logTrace("wake %s for %s: %v", m.ID, p.p.name, err)
	})
	if lerr != nil {
		return lerr
	}
	return err
}

// checkSleep checks that a machine is parked or woken only after the durable mark for it.
func (c *checker) checkSleep(call string, m nstance.Machine, phase nstance.State) {
	rec, ok := c.w.store.record(m.ID)
	if !ok || rec.Standby == nil || rec.Standby.Phase != phase {
		c.violated("standby", "%s of %s without a durable mark: %v", call, m.ID, rec.Standby)
	}
}

// checkStandbyCreate checks that a group has no more stand-by machines than its pool, but for
// one that is exchanged: its mark may be on the way.
func (c *checker) checkStandbyCreate(spec nstance.MachineSpec, rec records.Instance) {
	n := 0
	for _, r := range c.w.store.all() {
		if keyOf(*r) == keyOf(rec) && r.Standby != nil && r.ID != spec.ID && r.Deleting == nil && r.Preserve == nil && !c.w.isMute(r.ID) && c.w.cloud.exists(r.ID) && staysInPool(*r) {
			n++
		}
	}
	switch {
	case n > poolSize && !c.isLate(spec.ID):
		c.violated("standby", "stand-by machine %s is created beside %d of %d", spec.ID, n, poolSize)
	case spec.Market != nstance.OnDemand || spec.Park != rec.Standby.Mode:
		c.violated("standby", "stand-by machine %s is created as %s, parked %q", spec.ID, spec.Market, spec.Park)
	}
}

// staysInPool reports whether a stand-by instance is not drained for anything but to be
// parked.
func staysInPool(r records.Instance) bool {
	cause := leaving(r)
	return cause == "" || cause == nstance.CauseStandby
}

// exists reports whether there is a machine that is not ending.
func (c truthCloud) exists(id nstance.InstanceID) bool {
	m, err := c.Truth(id)
	return err == nil && m.Status != nstance.StatusDeleting && m.Status != nstance.StatusFailed
}

// checkPools checks at the end that every pool is complete and asleep.
func (c *checker) checkPools() {
	asleep := map[nstance.GroupKey]int{}
	for _, r := range c.w.store.all() {
		if r.Standby == nil {
			continue
		}
		m, err := c.w.cloud.Truth(r.ID)
		if !r.Asleep() || err != nil || m.Status != nstance.StatusStopped {
			c.violated("standby", "%s of group %s is %s, its record says %v (%v)", r.ID, keyOf(*r), m.Status, r.Standby, err)
		}
		asleep[keyOf(*r)]++
	}
	for _, g := range c.w.desiredGroups() {
		if n := asleep[g.Key]; n != g.WarmPool.Size && !g.Removing {
			c.violated("standby", "group %s has %d stand-by machines of %d", g.Key, n, g.WarmPool.Size)
		}
	}
}

// isIdle reports whether a machine is a stand-by one that is not awake in place of others.
func (c *checker) isIdle(id nstance.InstanceID) bool {
	rec, _ := c.w.store.record(id)
	return rec.Standby != nil && rec.Standby.Phase != nstance.Waking
}

// renew renews the certificate that the machine slept with, and reports whether the agent
// has one that counts.
func (a *agent) renew(r *reconcile.Reconciler) bool {
	a.w.mu.Lock()
	held := a.w.serials[a.id]
	a.w.mu.Unlock()
	if rec, _ := r.Admin().Internals().Records().Get(a.id); !rec.Outlived(strconv.Itoa(held)) {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err := r.Admin().Internals().Records().Update(ctx, a.id, func(rec *records.Instance) error {
		if rec.Deleting != nil {
			return nstance.Errorf(nstance.NotFound, "deleted")
		}
		if p := rec.Pending; p != nil && p.Serial == strconv.Itoa(held) { // as the registrar does, which promotes with the next renewal
			rec.Current = p
		}
		rec.Pending = &records.KeyRecord{Serial: strconv.Itoa(held + 1)}
		return nil
	})
	if err != nil {
		return false
	}
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	a.w.serials[a.id] = held + 1
	return true
}

// sleeping returns the parked machines.
func (d *driver) sleeping() (out []nstance.InstanceID) {
	for _, m := range d.cloud.Machines() {
		if m.Status == nstance.StatusStopped {
			out = append(out, m.ID)
		}
	}
	return out
}

// disturbStandby has parked machines fail to start or to stop, end, or run without a
// call of a server.
func (a act) disturbStandby() {
	at, what, times := a.rng.Float64(), a.rng.IntN(6), 1+a.rng.IntN(5)
	lost := a.rng.IntN(2) == 1
	switch what {
	case 0:
		a.cloud.Inject(simcloud.Fault{Op: simcloud.OpWake, Code: nstance.Capacity, Times: times})
	case 1:
		a.cloud.Inject(simcloud.Fault{Op: simcloud.OpWake, Lost: lost, Times: times})
	case 2:
		a.cloud.Inject(simcloud.Fault{Op: simcloud.OpPark, Lost: lost, Times: times})
	case 3:
		a.cloud.Inject(simcloud.Fault{Op: simcloud.OpWake, Delay: 14 * time.Second})
	default:
		asleep := a.sleeping()
		if len(asleep) == 0 {
			return
		}
		id := asleep[int(at*float64(len(asleep)))]
		if what == 4 {
			_ = a.cloud.Kill(id) // it may be starting already
			return
		}
		if m, err := a.cloud.Truth(id); err == nil {
			_ = a.cloud.Wake(context.Background(), m) // likewise
		}
	}
}

// claim has stand-by machines run in place of nodes of others for a while.
func (a act) claim() {
	node, long := claimant(a.rng.IntN(claimants)), a.seconds(10, 200)
	err := a.ask(func(ctx context.Context, r *reconcile.Reconciler) error {
		_, _, err := r.Admin().ClaimStandby(ctx, pooled, reconcile.Claim{Node: node, Until: time.Now().Add(time.Hour)})
		return err
	})
	if err != nil {
		return // the server whose clock is wrong may refuse the time
	}
	a.sleep(long)
	a.releaseClaim(node)
}

func (d *driver) releaseClaim(node string) {
	_ = d.ask(func(ctx context.Context, r *reconcile.Reconciler) error {
		_, err := r.Admin().ReleaseStandby(ctx, pooled, node)
		return err
	})
}

// drillBridge reclaims a member: its replacement is requested, and a stand-by machine runs
// long before that is ready, also where the leader crashes in between and the first machine
// does not start. Then it sleeps again.
func (d *driver) drillBridge() {
	d.pass(5 * time.Minute)
	d.check.checkSettled()
	d.cloud.Inject(simcloud.Fault{Op: simcloud.OpWake, Code: nstance.Capacity})
	lost := ""
	for _, m := range d.machines(pooled) {
		if m.Status == nstance.StatusRunning && m.Market == nstance.Spot {
			lost = string(m.ID)
			_ = d.cloud.Reclaim(m.ID, 2*time.Minute)
			break
		}
	}
	if lost == "" {
		d.check.violated("standby", "no member of group %s runs on spot", pooled)
		return
	}
	d.pass(time.Second)
	d.acts.Go(func() { d.act(14).crashLeader() })
	d.pass(40 * time.Second)
	awake := 0
	for _, r := range d.store.all() {
		if keyOf(*r) == pooled && r.Standby != nil && r.Standby.Phase == nstance.Waking && d.cloud.running()[r.ID] {
			awake++
		}
	}
	if n := d.countOthers(pooled, nstance.InstanceID(lost)); awake == 0 && n < d.currentGroup(pooled).Size {
		d.check.violated("standby", "no stand-by machine of group %s runs in place of %s", pooled, lost)
	}
	d.acts.Wait()
	d.pass(12 * time.Minute)
	d.check.checkSettled()
}

// drillSilentBridge has stand-by machines run whose agents do not come back. They are found out
// by their silence, as any member is, before the time for their start is over.
func (d *driver) drillSilentBridge() {
	asleep, awake := d.sleeping(), map[nstance.InstanceID]time.Time{}
	d.partition(1, asleep...)
	err := d.ask(func(ctx context.Context, r *reconcile.Reconciler) error {
		_, _, err := r.Admin().ClaimStandby(ctx, pooled, reconcile.Claim{Node: claimant(0), Until: time.Now().Add(time.Hour)})
		return err
	})
	for range 5 * 60 {
		d.pass(time.Second)
		for _, id := range asleep {
			rec, ok := d.store.record(id)
			if !ok || rec.Standby == nil || rec.Standby.Phase != nstance.Waking || leaving(rec) != "" || !d.cloud.running()[id] {
				continue
			}
			if awake[id].IsZero() {
				awake[id] = time.Now()
			}
			if time.Since(awake[id]) > 3*time.Minute {
				awake[id] = time.Now()
				d.check.violated("standby", "%s runs for 3m in place of a node, and its agent has never been heard", id)
			}
		}
	}
	if len(awake) == 0 {
		d.check.violated("standby", "no stand-by machine of group %s runs in place of a node: %v", pooled, err)
	}
	d.releaseClaim(claimant(0))
	d.partition(-1, asleep...)
	d.pass(12 * time.Minute)
	d.check.checkSettled()
}
