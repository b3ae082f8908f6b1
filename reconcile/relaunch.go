package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/records"
)

// The end of a machine before its agent registers may be a late refusal of its create. An
// instance on demand, whose ID its caller chose, then gets another machine under the same record.

// lateRefusals are the causes that are late refusals, with the codes of the creates that fail so.
var lateRefusals = map[nstance.LossCause]nstance.Code{
	nstance.LossCapacity: nstance.Capacity, nstance.LossQuota: nstance.Quota, nstance.LossThrottled: nstance.Throttled, nstance.LossInvalid: nstance.Invalid,
}

// refusal returns the end of a machine as the answer to its create; nil: it is none. Words of
// the cloud that are not listed refuse the shape.
func (is absence) refusal() error {
	code := lateRefusals[is.cause]
	if is.cause == "" && is.words != "" {
		code = nstance.Invalid
	}
	if code == "" {
		return nil
	}
	return nstance.Errorf(code, "the provider accepted the machine and could not start it: %s", cmp.Or(is.answer, string(is.cause)))
}

// launching reports whether m is an instance on demand whose machine boots, and which is to stay.
func (m *member) launching() bool {
	leaving := m.rec.Deleting != nil || m.drain != nil || m.removalCause != nil
	return m.rec.OnDemand && !m.registered() && m.state == nstance.Booting && !leaving
}

// lateRefusal returns the end of the machine of m as the answer to its create; nil: it is none.
func (m *member) lateRefusal(is absence) error {
	if reclaimed := is.cause == "" && reclaimNoticed(m.Standing); reclaimed || !m.launching() {
		return nil
	}
	return is.refusal()
}

// leftToCreate reports whether the create of m handles mach: it deletes a machine that did not
// start, and looks for one before it repeats a call.
func (m *member) leftToCreate(mach nstance.Machine) bool {
	return m.failedLaunch != nil || m.rec.OnDemand && m.step == stepCreate && mach.Status.Dead()
}

// unexplained reports whether a list shows a machine of m that did not start, without a reason:
// it is asked about alone, because a list does not say why.
func (m *member) unexplained(mach nstance.Machine) bool {
	return m.launching() && !m.gone && mach.Status.Dead() && endOf(mach) == absence{}
}

// launchRetryable reports whether the end of the machine of m is a late refusal after which it
// is worth another create: for want of capacity, quota or rate, or of this shape alone.
func (s *shard) launchRetryable(m *member, is absence, now time.Time) bool {
	refusal := m.lateRefusal(is)
	if refusal == nil || s.launchOver(m, now) {
		return false
	}
	return !errors.Is(refusal, nstance.Invalid) || s.places.Candidates(m.request(), now).AnotherThan(capacityShape(m.rec.Shape))
}

// retryLostLaunch asks again for such a machine, of which the provider has nothing left,
// and reports whether it does.
func (s *shard) retryLostLaunch(m *member, is absence, now time.Time) bool {
	if !s.launchRetryable(m, is, now) {
		return false
	}
	s.launchAgain(m, is, now)
	return true
}

// launchAgain has m, of whose machine the provider has nothing left, asked for again.
func (s *shard) launchAgain(m *member, is absence, now time.Time) {
	m.answeredWith = is.refusal()
	code, words := nstance.CodeOf(m.answeredWith), clip.Words(m.answeredWith.Error())
	if code == nstance.Capacity || code == nstance.Quota {
		s.places.Explain(capacityShape(m.rec.Shape), words, now)
	}
	s.publish(m, nstance.Event{Type: nstance.EventCreateFailed, Code: code, Error: words, Reason: "it is tried again"})
	m.loss = loss{cause: is.cause, words: is.answer, explained: is.words != ""}
	s.rememberLoss(m, now)
	m.loss, m.failedLaunch, m.needsNewToken = loss{}, nil, true
	m.returnToIntent()
	s.requestAnotherGrant(m)
}

// returnToIntent resumes the create of m, without its machine.
func (m *member) returnToIntent() {
	m.machine, m.machineSince, m.missingSince = nstance.Machine{}, time.Time{}, time.Time{}
	m.state = nstance.Provisioning
	m.owe(stepCreate)
}

// recordFailedLaunch has the machine of m, which the provider still shows and could not start,
// deleted by the create, and then asked for again.
func (m *member) recordFailedLaunch(is absence) {
	m.failedLaunch, m.answeredWith = &is, is.refusal()
	m.returnToIntent()
}

// restoreIntent resumes the create of m as its record says.
func (m *member) restoreIntent() {
	if mark := m.rec.FailedLaunch; mark != nil {
		m.recordFailedLaunch(absence{mark.Cause, mark.Words, mark.Words})
		return
	}
	m.returnToIntent()
}

// failedLaunch returns how the machine of m ended that did not start; nil: there is none.
func (r *Reconciler) failedLaunch(m *member) *absence {
	r.mu.Lock()
	defer r.mu.Unlock()
	return m.failedLaunch
}

// replaceFailedMachine deletes the machine of m that did not start, until the provider answers
// NotFound, and then has m asked for again, with another token.
//
//	a crash after                    leaves
//	the mark is written              a member in state provisioning: all below is repeated
//	the provider accepts Delete      the same: Delete is sent until it answers NotFound
//	the next token is written        an intent as any other: the same write removes the mark
func (r *Reconciler) replaceFailedMachine(ctx context.Context, m *member, is absence) error {
	if _, err := r.definition(ctx, m); err != nil { // which says what may be granted next
		return err
	}
	if err := r.markFailedLaunch(ctx, m, is); err != nil {
		return err
	}
	err := r.deleteFailedMachine(ctx, m)
	switch {
	case errors.Is(err, nstance.NotFound):
		return r.leaveFailedMachine(m)
	case err == nil:
		err = errAccepted
	case !errors.Is(err, errAgain) && !errors.Is(err, errOutdated):
		err = fmt.Errorf("its machine did not start and is to be deleted: %w", asUnavailable(err))
	}
	r.locked(func() { m.missingSince = time.Time{} })
	return err
}

// markFailedLaunch makes durable that the machine of m is deleted, and m is not. The mark of a
// former leader is written again: a late write of that leader could remove it.
func (r *Reconciler) markFailedLaunch(ctx context.Context, m *member, is absence) error {
	if rec, known := r.records.Get(m.id); known && rec.FailedLaunch != nil && rec.Epoch == r.opts.Epoch {
		return nil
	}
	_, err := r.records.Update(ctx, m.id, func(rec *records.Instance) error {
		if rec.Deleting != nil || rec.Registered() {
			return errOutdated
		}
		rec.FailedLaunch = &records.FailedLaunch{At: r.opts.Now().UTC(), Cause: is.cause, Words: is.words}
		return nil
	})
	return asUnavailable(err)
}

// deleteFailedMachine sends Delete once: also where the provider shows no machine, of which a
// part may be left.
func (r *Reconciler) deleteFailedMachine(ctx context.Context, m *member) error {
	mach, err := r.provider.Get(ctx, m.id)
	switch {
	case errors.Is(err, nstance.NotFound):
		mach = r.unseen(m)
	case err != nil:
		return err
	}
	r.locked(func() {
		if err = r.checkMarks(m, mach); err == nil && m.registered() {
			err = errOutdated // it runs, whatever was said of it
		}
	})
	if err != nil {
		return err
	}
	if err := r.permit(m, stepCreate); err != nil {
		return err
	}
	return r.provider.Delete(ctx, mach)
}

// leaveFailedMachine has m asked for again once it is proven that there is no machine, and that
// no earlier call, be it a former leader's, changes the next one.
func (r *Reconciler) leaveFailedMachine(m *member) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.opts.Now()
	if m.missingSince.IsZero() {
		m.missingSince = now
	}
	proven := latest(m.missingSince.Add(r.opts.ConsistencyWindow), r.absenceProvenAt(m))
	if m.failedLaunch == nil || m.step != stepCreate || now.Before(proven) {
		return errAgain
	}
	r.launchAgain(m, *m.failedLaunch, now)
	return nil
}
