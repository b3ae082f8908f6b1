package reconcile

import (
	"errors"
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/sleep"
)

// outcome records how a step ended. A failed one is repeated with backoff; a step
// that a newer plan has replaced leaves the newer one in place.
func (s *shard) outcome(m *member, step stepKind, planned int, err error) {
	s.refreshRecord(m)
	s.sendSettledAcks(m)
	s.recordObstacle(m, step, err)
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
	m.drainState = drainState{drain: m.rec.Drain}
	s.rebalance(m.group)
	switch {
	case m.rec.Deleting != nil: // a marked instance is never wanted again
		m.state, m.step, m.deleteCauses = nstance.Deleting, stepDelete, []nstance.Cause{m.rec.Deleting.Why}
	case m.parkedOrWokenOnRecord():
		s.restoreSleep(m)
	case m.drain != nil:
		m.state, m.step = nstance.Draining, stepDrain // which announces it
	default:
		m.state, m.deleteCauses = nstance.Booting, nil
	}
}

// refused reports whether a create definitely made no machine and never will.
func refused(err error) bool {
	switch nstance.CodeOf(err) {
	case nstance.Invalid, nstance.Capacity, nstance.Quota, nstance.Denied, nstance.Conflict:
		return true
	}
	return false
}

// createRefused fails m, which is not counted any more, and has its intent deleted.
func (s *shard) createRefused(m *member, err error) {
	if s.retryRefusedRequest(m, err) {
		return
	}
	code := nstance.CodeOf(err)
	words := clip.Words(err.Error())
	m.refusedWith = err
	s.recordReturn(m, false)
	switch {
	case m.rec.OnDemand: // no failure of its group
	case code == nstance.Capacity || code == nstance.Quota: // the admission queue sets the pace
	case errors.Is(err, errChanged):
	case err == m.answeredWith && s.shapesLeft(m): //nolint:errorlint // the provider's answer itself
	default:
		s.failedToBecomeReady(m, words)
	}
	s.publish(m, nstance.Event{Type: nstance.EventCreateFailed, Code: code, Error: words})
	s.failWithoutMachine(m, nstance.Cause{Kind: nstance.CauseTimeout, Message: "create refused: " + words})
}

// failWithoutMachine fails m and has its intent deleted.
func (s *shard) failWithoutMachine(m *member, why nstance.Cause) {
	s.admission.ReturnAddress(m.subnet)
	m.subnet = ""
	s.reopenLoss(m)
	m.state, m.deleteCauses = nstance.Failed, []nstance.Cause{why}
	m.owe(stepDelete)
}

// abandon gives up an intent that has no machine and cannot get one. The next plan
// deletes it and demands another instance: the definition did not fail. An instance
// on demand cannot get another ID, so it fails.
func (s *shard) abandon(m *member, err error) {
	why := nstance.Cause{Kind: nstance.CauseAbandoned, Message: err.Error()}
	if !m.rec.OnDemand {
		m.removalCause = &why
		m.owe(stepNone)
		return
	}
	m.refusedWith = &nstance.Error{Code: nstance.Unavailable, Msg: err.Error(), Remedy: "make a new ID, and ask again", Err: err}
	s.publish(m, nstance.Event{Type: nstance.EventCreateFailed, Code: nstance.Unavailable, Error: m.refusedWith.Error()})
	s.failWithoutMachine(m, why)
}

// errUnrepeatable ends an intent without a machine: this server cannot render the
// same bytes that its create was, or may have been, sent with.
var errUnrepeatable error = &nstance.Error{Code: nstance.Unavailable, Msg: "its create cannot be repeated"}

// unrepeatable turns a definite failure to read or render the definition of a durable
// intent into errUnrepeatable: its create may have been sent with bytes that are lost.
func unrepeatable(durable bool, err error) error {
	if durable && (refused(err) || errors.Is(err, nstance.NotFound)) {
		return fmt.Errorf("%w: %w", errUnrepeatable, err)
	}
	return err
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

// errChanged refuses to create a member whose group was redefined before its intent
// was durable. The next plan demands another one.
var errChanged error = &nstance.Error{Code: nstance.Conflict, Msg: "the group's definition changed before the instance was made"}

// asUnavailable keeps an error of storage or of a Get from being mistaken for the
// provider's refusal of a create.
func asUnavailable(err error) error {
	if err != nil && refused(err) {
		return &nstance.Error{Code: nstance.Unavailable, Msg: err.Error(), Err: err}
	}
	return err
}
