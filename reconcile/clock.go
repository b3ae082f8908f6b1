package reconcile

import (
	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/reconcile/wallclock"
	"github.com/nstance-go/nstance/storage"
)

func newClock(o *Options, store storage.Store) *wallclock.Clock {
	dated := o.Dated
	if dated == nil {
		dated, _ = store.(storage.Dated)
	}
	return wallclock.New(wallclock.Options{Wall: o.Now, Elapsed: o.Elapsed, Dated: dated})
}

// updateClock finds out whether the wall clock can be trusted. While it cannot,
// nothing goes because of the time in a record: it is asked before any member is
// judged, and needs the lock.
func (r *Reconciler) updateClock() {
	if !r.clock.Look() {
		return
	}
	e := nstance.Event{Type: nstance.EventClockRight, Time: r.opts.Now().UTC(), Reason: "deletes by deadline and for age go on"}
	if why := r.clock.Distrust(); why != "" {
		e.Type, e.Reason = nstance.EventClockWrong, why+"; deletes by deadline and for age wait"
		r.log.Warn("this server's clock cannot be trusted, deletes by deadline and for age wait", "reason", why)
	} else {
		r.log.Info("this server's clock can be trusted again, deletes by deadline and for age go on")
	}
	r.opts.Journal(e)
	for key := range r.groups {
		r.queue.add(key, false)
	}
}

// clockRight looks at the clock, and reports whether the time in a record may
// decide something. Whatever now it is about was read before. It needs the lock.
func (r *Reconciler) clockRight() bool {
	r.updateClock()
	return r.clock.Distrust() == ""
}

// ClockRight looks at the clock, and reports whether the time in what is stored
// may decide something. Whatever now that is about is to be read before.
func (r *Reconciler) ClockRight() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.clockRight()
}

// ClockHold returns the hold of everything that the time in a record decides,
// and whether there is one: while this server's clock cannot be trusted.
func (r *Reconciler) ClockHold() (HoldView, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return HoldView{Hold: plan.Hold{Kind: plan.HoldClock, Reason: r.clock.Distrust()}, Since: r.clock.Since()}, r.clock.Distrust() != ""
}
