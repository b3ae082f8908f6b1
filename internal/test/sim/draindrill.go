package sim

import (
	"context"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile"
)

// drillDrains has drains withdrawn, given to another executor and shortened, while hooks hang.
func (d *driver) drillDrains(key nstance.GroupKey) {
	d.hang.Add(1)
	defer d.hang.Add(-1)
	d.setOperators(silent)
	d.pass(30 * time.Second)

	kept := d.member(key)
	d.put(d.noticed, kept)
	_ = d.cloud.Reclaim(kept, 10*time.Minute) // it runs
	d.pass(15 * time.Second)
	if rec, ok := d.store.record(kept); !ok || rec.Drain == nil {
		d.check.violated("drain", "%s is not drained 15s after its notice", kept)
	}
	_ = d.cloud.Withdraw(kept) // likewise
	d.pass(15 * time.Second)
	if rec, ok := d.store.record(kept); !ok || leaving(rec) == nstance.CauseNotice {
		d.check.violated("drain", "%s is drained 15s after its notice was withdrawn", kept)
	}
	d.pass(4 * time.Minute) // until its replacement is gone

	id := d.member(key)
	_ = d.ask(func(ctx context.Context, r *reconcile.Reconciler) error {
		_, err := r.Drain(ctx, id, requester)
		return err
	})
	executor := func(want nstance.Executor, why string) time.Time {
		d.pass(30 * time.Second)
		rec, ok := d.store.record(id)
		if !ok || rec.Drain == nil || rec.Drain.Executor != want {
			d.check.violated("drain", "%s has drain %v %s, which is for %s", id, rec.Drain, why, want)
			return time.Now()
		}
		return rec.Drain.Deadline
	}
	executor(nstance.ExecutorOperator, "while its operator watches")
	d.setOperators(absent)
	before := executor(nstance.ExecutorAgent, "after its operator has left")
	d.put(d.noticed, id)
	_ = d.cloud.Reclaim(id, time.Minute) // it runs
	d.pass(15 * time.Second)
	if rec, ok := d.store.record(id); ok && (rec.Drain == nil || !rec.Drain.Deadline.Before(before)) {
		d.check.violated("drain", "a notice of a minute has not shortened the drain of %s: %v", id, rec.Drain)
	}
	d.pass(time.Minute)
	if rec, ok := d.store.record(id); ok && rec.Deleting == nil {
		d.check.violated("drain", "%s is not being deleted although its drain has ended", id)
	}
	d.pass(5 * time.Minute)
	d.check.checkSettled()
}

func (d *driver) setOperators(m operatorMode) {
	for _, o := range d.operators {
		o.setMode(m)
	}
}
