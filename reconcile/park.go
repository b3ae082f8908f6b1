package reconcile

import (
	"context"
	"errors"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/groupspec"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// beginParking has m sleep. Its drain stands meanwhile, so that nothing uses it.
func (s *shard) beginParking(m *member) {
	if m.drain != nil && !m.drainEnded {
		s.publish(m, nstance.Event{Type: nstance.EventDrainCutShort, Drain: m.drain})
	}
	m.state, m.drainEnded, m.standbyState = nstance.Parking, true, standbyState{}
	m.owe(stepPark)
}

// park takes the next step on the way of m to sleep: the durable mark, withdrawal from load
// balancers, then the provider's Park until the machine is stopped. A crash after the mark
// leaves a member in state parking with its drain, whose machine is looked at, and parked again.
func (r *Reconciler) park(ctx context.Context, m *member) error {
	if err := r.permit(m, stepPark); err != nil {
		return err
	}
	if err := r.markParking(ctx, m); err != nil {
		return err
	}
	r.mu.Lock()
	d, mode, parked := m.rec.Drain, m.rec.Standby.Mode, m.state == nstance.Parked
	r.mu.Unlock()
	if d != nil {
		if err := r.drains.Start(ctx, *d); err != nil && !errors.Is(err, nstance.Conflict) { // which says that it is over
			return err
		}
	}
	if parked {
		return nil
	}
	if !r.balancersLeft(m) {
		return errAgain
	}
	if mode == nstance.ParkRunning {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.fellAsleep(m)
		return nil
	}
	status, mach, err := r.askStatus(ctx, m, nstance.Parking)
	if err != nil || status != nstance.StatusRunning {
		return err
	}
	if err := r.startParking(ctx, m, mach, mode); err != nil {
		return err
	}
	return errAccepted
}

func (r *Reconciler) startParking(ctx context.Context, m *member, mach nstance.Machine, mode nstance.ParkMode) error {
	parking := r.provider.Abilities().Parking
	if parking == nil {
		return nstance.FieldError("warm_pool.mode", "use running, or a provider that can park machines", "%s needs a provider that can", mode)
	}
	if err := r.permit(m, stepPark); err != nil {
		return err
	}
	err := parking.Park(ctx, mach, mode)
	r.mu.Lock()
	defer r.mu.Unlock()
	m.parkFailed = err != nil
	r.queue.Add(m.group.key, false)
	r.tellAttempt(m, &m.published.unparked, "its machine cannot be parked; it is tried again", err)
	return err
}

// markParking makes it durable that m is to sleep. One that did not wake sleeps on with a
// new drain, so that no pod lands on it if its machine is started by other means.
func (r *Reconciler) markParking(ctx context.Context, m *member) error {
	r.mu.Lock()
	need, marked, anew := m.basis(), m.rec.Asleep(), r.drainAnew(m)
	r.mu.Unlock()
	if marked {
		return nil
	}
	_, err := r.records.Update(ctx, m.id, func(rec *records.Instance) error {
		if rec.Deleting != nil || rec.Standby == nil || !need.holds(rec) {
			return errOutdated
		}
		rec.Standby = &records.Standby{Mode: rec.Standby.Mode, Phase: nstance.Parking, Since: r.opts.Now().UTC()}
		if rec.Drain == nil && anew != nil {
			rec.Drain, rec.Generation = anew, anew.Generation
		}
		return nil
	})
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refreshRecord(m)
	if m.drain == nil {
		m.drain = m.rec.Drain
	}
	return nil
}

// drainAnew returns the drain of a member that was woken and is to sleep on; nil: none is
// wanted.
func (s *shard) drainAnew(m *member) *nstance.Drain {
	if m.drain != nil || !m.parkedBefore() || m.group.spec.DrainTimeout <= 0 {
		return nil
	}
	now := s.opts.Now()
	why := nstance.Cause{Kind: nstance.CauseStandby, Message: "it returns to the warm pool"}
	causes := []nstance.Cause{why}
	return s.newDrain(m, plan.Action{Deadline: now.Add(groupspec.DrainLimit(&m.group.spec, causes)), Causes: causes, Voluntary: true}, now)
}

// fellAsleep records that the machine of m is stopped, or has no work.
func (s *shard) fellAsleep(m *member) {
	m.state = nstance.Parked
	if m.rec.Standby.Mode == nstance.ParkRunning {
		m.healthTrack.RestartGrace(s.opts.Now()) // on its way it was not judged: its agent may be restarting
	} else {
		m.agentState = agentState{wasReady: m.wasReady, readyAt: m.readyAt}
		s.opts.Parked(m.id)
	}
	s.rebalance(m.group)
	if m.inheritedAt.IsZero() || s.opts.Now().Sub(m.rec.Standby.Since) < s.opts.Now().Sub(s.began) { // else a former leader has published it
		s.publish(m, nstance.Event{Type: nstance.EventParked})
	}
	s.queue.Add(m.group.key, false)
}
