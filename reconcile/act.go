package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// perform carries out the next step of m and records its outcome, which the next
// plan sees. It runs in a lane. Each step is a file, with what a crash leaves above it:
// create, drain, balancing, park, wake, remove. What is permitted now is in freeze.go.
func (r *Reconciler) perform(ctx context.Context, m *member) {
	r.mu.Lock()
	step, planned := m.step, m.revision
	r.mu.Unlock()
	var err error
	switch step {
	case stepCreate:
		err = r.create(ctx, m)
	case stepDrain:
		err = r.startDrain(ctx, m)
	case stepCancel:
		err = r.cancelDrain(ctx, m)
	case stepDelete:
		err = r.remove(ctx, m)
	case stepPark:
		err = r.park(ctx, m)
	case stepWake:
		err = r.wake(ctx, m)
	case stepWriteNotices:
		err = r.writeNotices(ctx, m)
	case stepNone, stepBalance:
	}
	over := r.opts.Check() != nil
	r.mu.Lock()
	defer r.mu.Unlock()
	m.running = false
	if over && (err != nil || step != stepDelete) { // what is durable now, the next leader may not have read: no call relies on it
		return
	}
	r.outcome(m, step, planned, err)
	r.wakeWaiters()
	r.queue.Add(m.group.key, step != stepDelete)
}

// resume hands every due step to a lane. While surplus members stay because a new
// leader has not heard from all members yet, an intent of a former leader among them
// is not made a machine.
func (s *shard) resume(g *group, c *plan.Census, now time.Time) {
	surplus := c.Counts().Surplus
	for _, m := range g.members {
		if s.heldBack(m, m.step) {
			continue
		}
		if (surplus > 0 || !g.defined()) && m.inheritedIntent(s.opts.Epoch) && !s.lapsed(m, now) { // without a definition all are surplus
			surplus--
			continue
		}
		if m.step != stepNone && !m.running && (m.step != stepCreate || m.grant != grantWanted) && !m.retryDue.After(now) {
			s.submit(m)
		}
	}
}

// inheritedIntent reports whether m is an intent of a former leader for which no
// machine is known.
func (m *member) inheritedIntent(epoch uint64) bool {
	return m.step == stepCreate && !m.rec.OnDemand && !m.machineKnown() && m.rec.CreatedEpoch < epoch
}

// lapsed deletes m, an intent for a group without a definition, once its
// registration timeout has passed, and reports whether it has: such a group is not
// planned, so no plan does.
func (s *shard) lapsed(m *member, now time.Time) bool {
	by := m.registerBy()
	if m.group.defined() || by.IsZero() || !s.reached(by, now) {
		return false
	}
	s.applyTo(m, plan.Action{Kind: plan.Delete, ID: m.id, Causes: []nstance.Cause{{Kind: nstance.CauseTimeout, Message: "its group had no definition until its registration timeout"}}}, now)
	return true
}

func (s *shard) submit(m *member) {
	m.running = true
	to := s.urgent
	switch {
	case m.step == stepDelete:
		to = s.deletions
	case voluntary(m):
		to = s.ordinary
	}
	to.Submit(m)
}

// voluntary reports whether the next step of m can wait for others.
func voluntary(m *member) bool {
	switch m.step {
	case stepCreate:
		return m.rec.Reason != string(plan.ReasonReplace)
	case stepDrain:
		return m.drain.Voluntary
	case stepPark:
		return true
	}
	return false
}

// outcome records how a step ended. A failed one is repeated with backoff; a step
// that a newer plan has replaced leaves the newer one in place.
func (s *shard) outcome(m *member, step stepKind, planned int, err error) {
	s.refreshRecord(m)
	m.Settle(m.consequenceDurable, m.withdrawalIgnored())
	m.obstacle.record(step, err, s.opts.Now())
	if step == stepCreate {
		s.createEndedWith(m, err)
	}
	switch {
	case err == nil && step == stepDelete:
		s.publish(m, nstance.Event{Type: nstance.EventDeleted})
		s.opts.Deleted(m.id)
		s.forget(m)
		return
	case errors.Is(err, errOutdated), m.rec.Deleting != nil && m.step != stepDelete:
		s.trustRecord(m)
		return
	case m.revision != planned:
		return
	case err == nil:
		m.owe(stepNone)
		return
	case errors.Is(err, errSoldOut) && !m.rec.OnDemand:
		s.forget(m)
		return
	case errors.Is(err, errUnrepeatable):
		s.abandon(m, err)
		return
	case step == stepCreate && m.throttled && m.grant == grantWanted:
		m.owe(stepCreate)
		s.refuseAvoided(m)
		return
	case step == stepCreate && refused(err):
		s.createRefused(m, err)
		return
	case !errors.Is(err, errAgain):
		s.log.Warn("step failed, will be repeated", "instance_id", m.id, "group", m.group.key.String(), "op", step.String(), "code", nstance.CodeOf(err), "err", err)
	}
	m.attempts++
	m.retryDue = s.retryTime(m, step, err)
}

// refreshRecord has m be what is known to be durable of it. What a write returned is not
// used: another one may have been made since.
func (s *shard) refreshRecord(m *member) {
	if rec, ok := s.storedRecord(m.id); ok {
		m.rec, m.durable = rec, true
	}
}

// errAgain has the step repeated: it has not failed, and is not finished.
var errAgain = errors.New("not finished yet")

// errAccepted is errAgain of a step that the provider has accepted, and has not carried out.
var errAccepted = fmt.Errorf("%w: the provider has accepted it", errAgain)

// errOutdated refuses a step because the record has changed since it was planned: by
// a late write of a former leader, or because an agent has registered.
var errOutdated error = &nstance.Error{Code: nstance.Conflict, Msg: "the record has changed since this was planned"}

// trustRecord resets m to its record, whatever was planned. The next plan starts
// from there.
func (s *shard) trustRecord(m *member) {
	m.owe(stepNone)
	m.drainState, m.failedLaunch = drainState{drain: m.rec.Drain}, nil
	s.rebalance(m.group)
	switch {
	case m.rec.Deleting != nil: // a marked instance is never wanted again
		m.state, m.step, m.deleteCauses = nstance.Deleting, stepDelete, []nstance.Cause{m.rec.Deleting.Why}
	case m.parkedOrWokenOnRecord():
		m.restoreSleep()
	case m.drain != nil:
		m.state, m.step = nstance.Draining, stepDrain // which announces it
	case m.rec.FailedLaunch != nil && !m.registered():
		m.restoreIntent()
	default:
		m.state, m.deleteCauses = nstance.Booting, nil
	}
}

// retryTime is when a step that did not succeed is repeated: after its backoff, and
// as soon as the provider's answer is a proof.
func (s *shard) retryTime(m *member, step stepKind, err error) time.Time {
	now := s.opts.Now()
	if step == stepDelete && m.life == lifeRecorded && errors.Is(err, errAgain) { // it was recorded while the step ran
		return now
	}
	at, proof := now.Add(sleep.Backoff(m.attempts, firstStepRetry, lastStepRetry)), time.Time{}
	switch {
	case step == stepCreate && m.mayHaveMachine():
		proof = s.repeatFrom(m)
	case step == stepDelete && !m.machineKnown():
		proof = s.absenceProvenAt(m)
	}
	if proof.After(now) {
		at = earliest(at, proof)
	}
	return at
}

// A step that failed is repeated after firstStepRetry, doubling to lastStepRetry.
const (
	firstStepRetry = 250 * time.Millisecond
	lastStepRetry  = 10 * time.Second
)
