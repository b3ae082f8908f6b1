package reconcile

import (
	"context"
	"errors"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
)

// wake takes the next step of m's waking: the durable mark, which ends its drain, then the
// provider's Wake until the machine runs. A crash after the mark leaves a member in state
// waking without a drain, whose machine is looked at, and woken again.
func (r *Reconciler) wake(ctx context.Context, m *member) error {
	if err := r.permit(m, stepWake); err != nil {
		return err
	}
	if err := r.markWaking(ctx, m); err != nil {
		return err
	}
	r.mu.Lock()
	running, mach, known := m.rec.Standby.Mode == nstance.ParkRunning, m.machine, m.attempts == 0 && m.machine.Status == nstance.StatusStopped
	if running {
		r.awoke(m, r.opts.Now())
	}
	r.mu.Unlock()
	switch {
	case running:
		return nil
	case !known: // else it was not woken since the provider showed it: the first call waits for no other
		status, found, err := r.askStatus(ctx, m, nstance.Waking)
		if err != nil || status != nstance.StatusStopped {
			return err
		}
		mach = found
	}
	if err := r.startWaking(ctx, m, mach); err != nil {
		return err
	}
	return errAccepted
}

func (r *Reconciler) startWaking(ctx context.Context, m *member, mach nstance.Machine) error {
	parking := r.provider.Abilities().Parking
	if parking == nil {
		return nstance.Errorf(nstance.Invalid, "the provider cannot wake machines")
	}
	if err := r.permit(m, stepWake); err != nil {
		return err
	}
	err := parking.Wake(ctx, mach)
	r.mu.Lock()
	defer r.mu.Unlock()
	m.wakeFailed = err != nil
	if errors.Is(err, nstance.NotFound) { // the next Get decides
		return asUnavailable(err)
	}
	r.tellAttempt(m, &m.published.unwoken, "its machine does not start; it is tried again", err)
	return err
}

// markWaking makes it durable that m is to run, and ends its drain. The certificates that it
// slept with are renewed before they count: also a pending one, since only the registrar
// knows whether it is in use.
func (r *Reconciler) markWaking(ctx context.Context, m *member) error {
	r.mu.Lock()
	marked, ended := m.parkedBefore() && !m.rec.Asleep() && m.rec.Drain == nil, m.rec.Generation
	r.mu.Unlock()
	if marked {
		return r.drains.Cancel(ctx, m.id, ended) // it may have failed
	}
	_, err := r.records.Update(ctx, m.id, func(rec *records.Instance) error {
		if rec.Deleting != nil || rec.Standby == nil {
			return errOutdated
		}
		ended = rec.Generation
		next := records.Standby{Mode: rec.Standby.Mode, Phase: nstance.Waking, Since: r.opts.Now().UTC()}
		if next.Mode != nstance.ParkRunning {
			next.Serial, next.PendingSerial = serialOf(rec.Current), serialOf(rec.Pending)
		}
		rec.Standby = &next
		if rec.Drain != nil {
			rec.Drain, rec.Notices, rec.Drifted = nil, nil, nil
			rec.Generation++
		}
		return nil
	})
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.refreshRecord(m)
	m.drainState = drainState{}
	r.publish(m, nstance.Event{Type: nstance.EventWakeRequested})
	r.mu.Unlock()
	return r.drains.Cancel(ctx, m.id, ended)
}

func serialOf(k *records.KeyRecord) string {
	if k == nil {
		return ""
	}
	return k.Serial
}

// awoke records that the machine of m runs. It is ready when its agent reports.
func (s *shard) awoke(m *member, now time.Time) {
	m.state, m.awokeAt = nstance.Booting, now
	m.owe(stepNone)
	if m.rec.Standby.Mode != nstance.ParkRunning {
		connected, grace := m.connected, m.graceUntil
		m.agentState = agentState{healthTrack: s.health.Begin(now, true), connected: connected, heard: connected, readyAt: m.readyAt}
		if !m.wokenThisTerm {
			m.graceUntil = grace
		}
	}
	m.wasReady, m.wakeFailed = false, false
	s.rebalance(m.group)
	if m.wokenThisTerm {
		s.publish(m, nstance.Event{Type: nstance.EventWoken})
	}
	s.queue.Add(m.group.key, true)
}
