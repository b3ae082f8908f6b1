package reconcile

import (
	"time"

	"github.com/nstance-go/nstance"
)

// A loss is what is known about the end of a member's machine. The zero loss is
// a machine that is not gone.
type loss struct {
	gone  bool
	cause nstance.LossCause // as far as the provider says
	taken bool              // nothing that the machine was made from is to blame
}

// machineLost reports whether a machine in this status is lost.
func machineLost(s nstance.MachineStatus) bool { return s.Dead() }

// observeMachine records the provider's answer about the machine of m. It needs the
// lock.
func (r *Reconciler) observeMachine(m *member, mach nstance.Machine, now time.Time) {
	m.machine = mach
	r.recordMachine(m, now)
	r.compareMarket(m)
	ending := mach.Status == nstance.StatusStopping || mach.Status == nstance.StatusDeleting
	switch {
	case ending && r.launchRetryable(m, mach.Cause, now): // once nothing is left of it
	case machineLost(mach.Status):
		r.markGone(m, "the provider says "+string(mach.Status), mach.Cause, now)
	case m.gone:
		m.loss = loss{}
	}
}

// markGone records that the machine of m is gone, and what that says about its shape.
// It needs the lock.
func (r *Reconciler) markGone(m *member, why string, cause nstance.LossCause, now time.Time) {
	if m.gone {
		return
	}
	m.loss = loss{gone: true, cause: cause, taken: m.taken || r.takenByCloud(m, cause)}
	r.rebalance(m.group)
	if m.state == nstance.Deleting {
		return
	}
	if cause != "" {
		why += ": " + string(cause)
	}
	r.publish(m, nstance.Event{Type: nstance.EventMachineGone, Reason: why})
	r.rememberLoss(m, now)
}

// takenByCloud reports whether a machine that is gone for cause was taken from
// m, whatever it was made from. Spot capacity that ends without a cause counts
// as reclaimed. Any other machine without a cause may have been powered off by
// its own image.
func (r *Reconciler) takenByCloud(m *member, cause nstance.LossCause) bool {
	switch cause {
	case nstance.LossInvalid, nstance.LossGuest:
		return false
	case "":
		return m.market() == nstance.Spot
	}
	return true
}

// rememberLoss tells the admission queue what the end of a machine says about its
// shape.
func (r *Reconciler) rememberLoss(m *member, now time.Time) {
	shape := capacityShape(m.rec.Shape)
	switch m.cause {
	case nstance.LossCapacity:
		r.admission.Lost(shape, now)
	case nstance.LossQuota:
		r.admission.LostQuota(shape, m.definition().Subnets, now)
	case nstance.LossReclaimed:
		r.admission.Reclaimed(shape, now)
	}
}

// markGoneBeforeKnown records that the machine of m existed and is gone, although no
// create was ever answered. Final: the provider creates no other one with m's ID.
func (r *Reconciler) markGoneBeforeKnown(m *member, cause nstance.LossCause, final bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.state == nstance.Pending || m.state == nstance.Provisioning {
		m.state = nstance.Booting
	}
	if !final && r.retryLostLaunch(m, cause, r.opts.Now()) {
		return
	}
	m.taken = cause == "" // the time in which nothing was known of it is too short for more
	r.markGone(m, "it was made, and the provider does not know it any more", cause, r.opts.Now())
}
