package sim

import (
	"context"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile"
)

// retireOne stops a server in an orderly way: it releases the lease.
func (a act) retireOne() { a.replaceServer(a.rng.IntN(a.cfg.Servers), (*process).retire) }

// succession reclaims a machine whose hooks hang, and hands its drain over to several
// leaders.
func (a act) succession() {
	a.hang.Add(1)
	defer a.hang.Add(-1)
	a.reclaim()
	for range 1 + a.rng.IntN(4) {
		a.sleep(a.seconds(0, 15))
		if a.rng.IntN(2) == 0 {
			a.crashLeader()
		} else {
			a.replaceLeader((*process).retire)
		}
	}
	a.sleep(a.seconds(0, 60))
}

// strayOne creates a machine with the shard's marks and without a record, unless there
// is one already: several need a decision by an operator.
func (a act) strayOne() {
	a.mu.Lock()
	last := a.stray
	a.mu.Unlock()
	if _, err := a.cloud.Truth(last); last != "" && err == nil {
		return
	}
	_, _ = a.makeStray() // the cloud may refuse
}

func (d *driver) makeStray() (nstance.InstanceID, error) {
	id, err := nstance.NewInstanceID("web", time.Now())
	if err != nil {
		return "", err
	}
	d.mu.Lock()
	d.stray = id
	d.mu.Unlock()
	marks := owner
	marks.Tenant = web.Tenant
	_, err = d.cloud.Create(context.Background(), nstance.MachineSpec{
		ID: id, Owner: marks, Group: web.Group, CreatedAt: time.Now().UTC(), Epoch: 1, Arch: nstance.AMD64,
		InstanceType: small, Market: nstance.Spot, Token: string(id), UserData: []byte("stray"),
	})
	return id, err
}

// throttle refuses a share of all calls, to storage and to the cloud.
func (a act) throttle() {
	share := 0.2 + a.rng.Float64()*0.6
	for _, p := range a.all() {
		p.link.set(func(l *link) { l.refuse = share })
	}
	a.sleep(a.seconds(5, 90))
	for _, p := range a.all() {
		p.link.set(func(l *link) { l.refuse = 0 })
	}
}

// changeOperatorMode changes the mode of an operator.
func (a act) changeOperatorMode() {
	a.operators[a.rng.IntN(len(a.operators))].setMode(operatorMode(a.rng.IntN(int(manners))))
}

// reconfigure changes a group's rollout and drain settings.
func (a act) reconfigure() {
	key := a.group()
	surge, timeouts := nstance.Count{N: a.rng.IntN(4)}, []time.Duration{0, time.Minute, drainTimeout, 8 * time.Minute}
	timeout := timeouts[a.rng.IntN(len(timeouts))]
	a.setGroup(key, func(g *nstance.Group) { g.Rollout.MaxSurge, g.DrainTimeout = surge, timeout })
}

// step sets a server's wall clock forward or back.
func (a act) step() {
	off := time.Duration(a.rng.Int64N(int64(2*maxStep))) - maxStep
	a.one().wall.step(off)
}

// ask calls the leader until the request succeeds or is refused definitely.
func (d *driver) ask(what func(context.Context, *reconcile.Reconciler) error) (err error) {
	for range 100 {
		if r, _ := d.leader(); r != nil {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			err = what(ctx, r)
			cancel()
			switch nstance.CodeOf(err) {
			case "", nstance.NotFound, nstance.Conflict, nstance.Invalid:
				return err
			}
		}
		d.sleep(3 * time.Second)
	}
	return nstance.Errorf(nstance.Unavailable, "no leader succeeds: %w", err)
}
