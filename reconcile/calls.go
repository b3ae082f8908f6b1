package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

// machineCalls is what is known of the provider's answers about one member:
// whether a create may have made its machine, and from when on the provider
// would know. All of it is guarded by the reconciler's lock.
type machineCalls struct {
	createSent time.Time // when this term last asked for the machine; zero: not yet
	createEnd  time.Time // when the last call of this term that may have made it ended; while that lasts, when it ends at the latest; zero: none may have
	foundAt    time.Time // when this term found the intent of a former leader, whose call may still be under way; zero: the intent is this term's

	deleteAccepted bool // the provider has found the machine and ends it
	removed        bool // the provider has nothing left of the machine, which leaves the record
}

// mayHaveMachine reports whether a call may have made the machine.
func (c *machineCalls) mayHaveMachine() bool { return !c.createEnd.IsZero() || !c.foundAt.IsZero() }

// repeatFrom is when a create that seems to have made nothing may be repeated: by
// then the provider shows what it has made. A former leader's call that is still in
// flight does no harm: the same bytes make the same machine.
func (r *Reconciler) repeatFrom(m *member) time.Time {
	return latest(m.createEnd, m.foundAt).Add(r.opts.ConsistencyWindow)
}

// absentFrom is from when on NotFound proves that there is no machine and that
// none will come: one consistency window after the last call that may have made
// it has ended, be it a former leader's. An instance that has registered needed
// no further call.
func (r *Reconciler) absentFrom(m *member) time.Time {
	if !m.mayHaveMachine() {
		return time.Time{}
	}
	end := m.foundAt
	if !end.IsZero() && !m.registered() {
		end = end.Add(r.callTimeout())
	}
	return latest(m.createEnd, end).Add(r.opts.ConsistencyWindow)
}

// checkMarks fails with Conflict, and raises an alarm, unless a machine carries
// the ID and the marks of m. It needs the lock.
func (r *Reconciler) checkMarks(m *member, mach nstance.Machine) error {
	if mach.ID == m.id && r.opts.ownerOf(m).Owns(mach.Owner) {
		return nil
	}
	r.alarmContested(m, nstance.Event{Reason: "machine " + mach.ProviderID + " of another owner carries this instance's ID; it was left alone"})
	return nstance.Errorf(nstance.Conflict, "machine %s belongs to another owner", mach.ProviderID)
}

// alarmContested raises an alarm about the machine of m, once in a term. It needs
// the lock.
func (r *Reconciler) alarmContested(m *member, e nstance.Event) {
	if m.published.contested {
		return
	}
	m.published.contested = true
	e.Type = nstance.EventAlarm
	r.publish(m, e)
}

// A step that failed is repeated after firstStepRetry, doubling to lastStepRetry.
const (
	firstStepRetry = 250 * time.Millisecond
	lastStepRetry  = 10 * time.Second
)

// retryTime is when a step that did not succeed is repeated: after its backoff, and
// as soon as the provider's answer is a proof. It needs the lock.
func (r *Reconciler) retryTime(m *member, step stepKind) time.Time {
	now := r.opts.Now()
	at, proof := now.Add(sleep.Backoff(m.attempts, firstStepRetry, lastStepRetry)), time.Time{}
	switch {
	case step == stepCreate && m.mayHaveMachine():
		proof = r.repeatFrom(m)
	case step == stepDelete && !m.machineKnown():
		proof = r.absentFrom(m)
	}
	if proof.After(now) {
		at = earliest(at, proof)
	}
	return at
}

// findMachine looks for the machine that an earlier call may have made, and
// adopts it. Without one it returns false when the create may be sent, again.
func (r *Reconciler) findMachine(ctx context.Context, m *member) (found bool, err error) {
	r.mu.Lock()
	expected, repeatFrom := m.mayHaveMachine(), r.repeatFrom(m)
	another := relaunched(m.rec) && r.opts.Now().Before(r.absentFrom(m))
	r.mu.Unlock()
	if !expected {
		return false, nil
	}
	mach, err := r.provider.Get(ctx, m.id)
	switch {
	case err == nil:
		return true, r.adopt(m, mach)
	case !errors.Is(err, nstance.NotFound):
		return false, asUnavailable(err)
	case nstance.LossCauseOf(err) != "" && !another:
		r.markGoneBeforeKnown(m, nstance.LossCauseOf(err), false)
		return true, nil
	case r.opts.Now().Before(repeatFrom):
		return false, errAgain
	}
	return false, r.stillWanted(ctx, m.id)
}

// createEnded records how a create call ended. A throttled one has definitely made
// nothing: it is repeated with another grant.
func (r *Reconciler) createEnded(m *member, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m.createEnd = r.opts.Now()
	if errors.Is(err, nstance.Throttled) {
		m.createEnd, m.grant, m.throttled, m.shape = time.Time{}, grantWanted, true, m.rec.Shape
	}
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

// abandon gives up an intent that has no machine and cannot get one. The next plan
// deletes it and demands another instance: the definition did not fail. An instance
// on demand cannot get another ID, so it fails. It needs the lock.
func (r *Reconciler) abandon(m *member, err error) {
	why := nstance.Cause{Kind: nstance.CauseAbandoned, Message: err.Error()}
	m.retryDue, m.attempts = time.Time{}, 0
	if !m.rec.OnDemand {
		m.step, m.removalCause = stepNone, &why
		return
	}
	m.refusedWith = &nstance.Error{Code: nstance.Unavailable, Msg: err.Error(), Remedy: "make a new ID, and ask again", Err: err}
	r.publish(m, nstance.Event{Type: nstance.EventCreateFailed, Code: nstance.Unavailable, Error: m.refusedWith.Error()})
	r.failWithoutMachine(m, why)
}
