package reconcile

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/reconcile/internal/wallclock"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// create writes the intent, then asks the provider. When it is repeated,
// it looks for the machine first, and then sends the same bytes again.
//
//	a crash after                    leaves
//	the definition is stored         no member: a new one is decided; the definition is garbage
//	the intent is written            a member in state provisioning: its create is repeated
//	the call is sent or answered     the same: the same token makes the same machine
func (r *Reconciler) create(ctx context.Context, m *member) error {
	if err := r.provider.Blocked(); err != nil {
		return err
	}
	if is := r.failedLaunch(m); is != nil {
		return r.replaceFailedMachine(ctx, m, *is)
	}
	if found, err := r.findMachine(ctx, m); found || err != nil {
		return err
	}
	if err := r.checkGrant(m); err != nil {
		return err
	}
	def, err := r.definition(ctx, m)
	if err != nil {
		return err
	}
	if err := r.reshape(ctx, m, def); err != nil {
		return err
	}
	rec, rendered, err := r.intent(ctx, m, def)
	if err != nil {
		return err
	}
	if rec, err = r.writeIntent(ctx, m, rec); err != nil {
		return err
	}
	if r.lacksGrant(m) {
		return errAgain
	}
	if err := r.recordAsk(ctx, m); err != nil {
		return err
	}
	return r.sendCreate(ctx, m, rec, def, rendered)
}

// sendCreate asks the provider once for the machine of a durable intent.
func (r *Reconciler) sendCreate(ctx context.Context, m *member, rec records.Instance, def nstance.Definition, rendered Rendered) error {
	if err := r.permit(m, stepCreate); err != nil {
		return err
	}
	repeated, hostLimit, err := r.beginCall(m, rec)
	if err != nil {
		return err
	}
	spec := machineSpec(r.opts.Owner, rec, def, rendered)
	spec.HostLimit = hostLimit
	mach, err := r.provider.Create(ctx, spec)
	r.createEnded(m, err)
	if errors.Is(err, nstance.Conflict) {
		return r.resolveConflict(ctx, m, repeated, err)
	}
	if err != nil {
		return err
	}
	return r.adopt(m, mach)
}

// findMachine looks for the machine that an earlier call may have made, and
// adopts it. Without one it returns false when the create may be sent, again.
func (r *Reconciler) findMachine(ctx context.Context, m *member) (found bool, err error) {
	r.mu.Lock()
	expected, repeatFrom := m.mayHaveMachine(), r.repeatFrom(m)
	// What was lost with a former token is known: it is not lost once more.
	another := m.needsNewToken || relaunched(m.rec) && r.opts.Now().Before(r.absenceProvenAt(m))
	r.mu.Unlock()
	if !expected {
		return false, nil
	}
	asked := r.opts.Now()
	mach, err := r.provider.Get(ctx, m.id)
	switch {
	case err == nil:
		r.readOnDemandDefinition(ctx, m)
		return true, r.adopt(m, mach)
	case !errors.Is(err, nstance.NotFound):
		return false, asUnavailable(err)
	case absenceOf(err).certain() && !another:
		r.markGoneBeforeKnown(m, absenceOf(err), false)
		return true, nil
	case r.opts.Now().Before(repeatFrom):
		return false, errAgain
	}
	if gone, registered := r.missRegistered(m, absenceOf(err), asked); registered {
		if gone {
			return true, nil
		}
		return false, errAgain
	}
	if err := r.stillWanted(ctx, m.id); err != nil {
		return false, err
	}
	return false, r.provenRefusal(m)
}

// missRegistered handles that the provider, asked at that instant, does not know the machine of m.
// One whose agent has registered was there, though no create was answered: it is not created
// again, but lost as any other.
func (r *Reconciler) missRegistered(m *member, is absence, asked time.Time) (gone, registered bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !m.registered() {
		return false, false
	}
	r.handleMissing(m, is, asked)
	return m.gone, true
}

// maxUnanswered is how often a create without a definite answer is repeated before another
// shape is tried, if there is one.
const maxUnanswered = 3

// provenRefusal returns what the provider's last answer to the create of m means, now that
// no machine has come of it: an error that the provider did not classify is a definite
// refusal; no answer at all is none, unless there are other shapes. Nil: it is repeated.
func (r *Reconciler) provenRefusal(m *member) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.opts.Now()
	if m.createSent.IsZero() || m.answeredWith == nil || now.Before(r.absenceProvenAt(m)) {
		return nil
	}
	answer := nstance.Errorf(nstance.Invalid, "no machine came of a create that was answered: %w", m.answeredWith)
	shape, definition := capacityShape(m.rec.Shape), m.definitionKey()
	switch nstance.CodeOf(m.answeredWith) {
	case nstance.Internal:
		m.answeredWith = answer
		return answer
	case nstance.Ambiguous, nstance.Unavailable:
		if m.unanswered < maxUnanswered || len(r.places.Candidates(m.request(), now)) < 2 {
			return nil
		}
		m.unanswered = 0
		r.places.UnansweredFor(definition, shape, m.createSent, clip.Words(m.answeredWith.Error()), now)
		m.answeredWith = answer
		return answer
	}
	return nil
}

// stillWanted reads an intent again before its create is repeated: a former
// leader's late write may have marked it.
func (r *Reconciler) stillWanted(ctx context.Context, id nstance.InstanceID) error {
	rec, err := r.records.Refresh(ctx, id)
	if err == nil && rec.Deleting != nil {
		return errOutdated
	}
	return asUnavailable(err)
}

// checkGrant fails with errSoldOut when a create that has just been granted is not
// worth sending: its shape has been refused meanwhile.
func (r *Reconciler) checkGrant(m *member) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !m.durable && m.grant == granted && r.places.SoldOut(m.definitionKey(), capacityShape(m.shape), m.grantedAt, r.opts.Now()) {
		return errSoldOut
	}
	return nil
}

// lacksGrant has the create of m, whose intent is durable now, wait for a grant if
// it has none.
func (r *Reconciler) lacksGrant(m *member) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !m.rec.OnDemand || m.grant == granted {
		return false
	}
	m.grant = grantWanted
	r.refreshRecord(m)
	return true
}

// beginCall records and publishes that the create is about to be sent. It reports
// whether an earlier call may have made the machine, and how many of its group may be on one host.
func (r *Reconciler) beginCall(m *member, rec records.Instance) (repeated bool, hostLimit int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.registered() {
		return false, 0, errAgain // its machine is there, or was: see absentOnRecord
	}
	if m.grant == granted && m.shape != rec.Shape {
		return false, 0, errAgain // granted while the intent was written
	}
	now := r.opts.Now()
	if r.places.Avoided(capacityShape(rec.Shape), now) {
		return false, 0, errAvoided
	}
	repeated = m.mayHaveMachine()
	first := m.createSent.IsZero() && m.inheritedAt.IsZero()
	m.createSent, m.lastCreateEnd = now, now.Add(r.callTimeout())
	r.refreshRecord(m)
	if rec.OnDemand {
		r.wakeWaiters() // its intent is durable
	}
	if m.state == nstance.Pending {
		m.state = nstance.Provisioning
	}
	if !first {
		return repeated, m.group.hostLimit(), nil
	}
	e := nstance.Event{Type: nstance.EventCreateRequested, Reason: rec.Reason + withMessage(m.requestReason) + shapeReason(rec)}
	if rec.Reason == string(plan.ReasonReplace) {
		e.Type, e.Replaces = nstance.EventReplacementRequested, rec.Replaces
	}
	r.publish(m, e)
	return repeated, m.group.hostLimit(), nil
}

func machineSpec(owner nstance.Owner, rec records.Instance, def nstance.Definition, out Rendered) nstance.MachineSpec {
	owner.Tenant = rec.Tenant
	return nstance.MachineSpec{
		ID: rec.ID, Owner: owner, Group: rec.Group, CreatedAt: rec.CreatedAt, Epoch: rec.CreatedEpoch, Arch: def.Arch,
		Image: rec.Image, InstanceType: rec.Shape.InstanceType, Subnet: rec.Shape.Subnet, Market: rec.Shape.Market,
		MaxPrice: rec.Shape.MaxPrice, Args: out.Args, UserData: out.UserData, Token: rec.Token, Park: parkMode(rec),
	}
}

// createEnded records how a create call ended. A throttled one has definitely made
// nothing: it is repeated with another grant.
func (r *Reconciler) createEnded(m *member, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m.lastCreateEnd = r.opts.Now()
	if err != nil {
		m.answeredWith = err
	}
	if errors.Is(err, nstance.Ambiguous) || errors.Is(err, nstance.Unavailable) {
		m.unanswered++
	}
	if errors.Is(err, nstance.Throttled) {
		m.lastCreateEnd, m.grant, m.throttled, m.shape = time.Time{}, grantWanted, true, m.rec.Shape
	}
}

// adopt records the machine with m's ID as m's, if its marks are.
func (r *Reconciler) adopt(m *member, mach nstance.Machine) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.checkMarks(m, mach); err != nil {
		return err
	}
	m.recordMade()
	r.observeMachine(m, mach, r.opts.Now())
	return nil
}

// resolveConflict finds out what a create conflicts with: m's own machine, one that
// an earlier attempt made and that is gone, or another machine, which makes this
// instance impossible.
func (r *Reconciler) resolveConflict(ctx context.Context, m *member, repeated bool, refusal error) error {
	mach, err := r.provider.Get(ctx, m.id)
	var shown bool
	r.locked(func() { shown = r.agentShows(m, r.opts.Now()) })
	switch {
	case err == nil:
		return r.adopt(m, mach)
	case !errors.Is(err, nstance.NotFound):
		return asUnavailable(err)
	case !absenceOf(err).certain() && shown: // the cloud does not show it yet
		return errAgain
	case repeated, absenceOf(err).certain():
		r.markGoneBeforeKnown(m, absenceOf(err), relaunched(m.rec))
		return nil
	}
	return refusal
}

// markGoneBeforeKnown records that the machine of m existed and is gone, although no
// create was ever answered. Final: the provider creates no other one with m's ID.
func (r *Reconciler) markGoneBeforeKnown(m *member, is absence, final bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m.recordMade()
	if !final && r.retryLostLaunch(m, is, r.opts.Now()) {
		return
	}
	m.taken = !is.certain() // the time in which nothing was known of it is too short for more
	r.markGone(m, "it was made, and the provider does not know it any more", is, r.opts.Now())
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
	s.places.ReturnAddress(m.subnet)
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

// asUnavailable keeps an error of storage or of a Get from being mistaken for the
// provider's refusal of a create.
func asUnavailable(err error) error {
	if err != nil && refused(err) {
		return &nstance.Error{Code: nstance.Unavailable, Msg: err.Error(), Err: err}
	}
	return err
}

// formerCallsEnd is when the last call of a former leader for the machine of m was sent, at the
// latest: before this term found its record, and not long after the instant in it. So terms
// shorter than a consistency window do not each begin to wait anew. Zero: there was none.
func (s *shard) formerCallsEnd(m *member) time.Time {
	end, recorded := m.inheritedAt, m.rec.AskedAt.Add(records.AskedFor+clocksApart)
	if m.rec.AskedAt.IsZero() || m.rec.FailedLaunch != nil || !recorded.Before(end) || !s.reached(recorded, s.opts.Now()) {
		return end
	}
	return recorded
}

// repeatFrom is when a create that seems to have made nothing may be repeated: by
// then the provider shows what it has made. A former leader's call that is still in
// flight does no harm: the same bytes make the same machine.
func (s *shard) repeatFrom(m *member) time.Time {
	return latest(m.lastCreateEnd, s.formerCallsEnd(m)).Add(s.opts.ConsistencyWindow)
}

// absenceProvenAt is from when on NotFound proves that there is no machine and that
// none will come: one consistency window after the last call that may have made
// it has ended, be it a former leader's. No call is sent for an instance that has
// registered.
func (s *shard) absenceProvenAt(m *member) time.Time {
	if !m.mayHaveMachine() {
		return time.Time{}
	}
	end := s.formerCallsEnd(m)
	if !end.IsZero() && !m.registered() {
		end = end.Add(s.callTimeout())
	}
	from := latest(m.lastCreateEnd, end).Add(s.opts.ConsistencyWindow)
	if recorded := s.absentOnRecord(m); !recorded.IsZero() && recorded.Before(from) && s.reached(recorded, s.opts.Now()) {
		return recorded
	}
	return from
}

// absentOnRecord is that by the record of an instance that is being deleted, so that its
// deletion ends although every term is short; zero: the record does not say. No call is sent
// after the instance has registered, or once its deletion is durable.
func (s *shard) absentOnRecord(m *member) time.Time {
	switch {
	case m.rec.Deleting == nil || !m.lastCreateEnd.IsZero():
		return time.Time{}
	case m.registered():
		return m.rec.RegisteredAt.Add(s.opts.ConsistencyWindow + clocksApart)
	}
	return m.rec.Deleting.At.Add(s.callTimeout() + s.opts.ConsistencyWindow + clocksApart)
}

// clocksApart is how far the clocks of two leaders may be apart while both are trusted.
const clocksApart = 2 * wallclock.Limit

// checkMarks fails with Conflict, and raises an alarm, unless a machine carries
// the ID and the marks of m.
func (s *shard) checkMarks(m *member, mach nstance.Machine) error {
	if mach.ID == m.id && s.opts.ownerOf(m).Owns(mach.Owner) {
		return nil
	}
	s.alarmContested(m, nstance.Event{Reason: "machine " + mach.ProviderID + " of another owner carries this instance's ID; it was left alone"})
	return nstance.Errorf(nstance.Conflict, "machine %s belongs to another owner", mach.ProviderID)
}

// isTwin reports whether mach, which has the marks of m, is another machine than that of m, and
// raises an alarm then: a copy has its tags, too. What it does says nothing about m.
func (s *shard) isTwin(m *member, mach nstance.Machine) bool {
	known := cmp.Or(m.machine.ProviderID, m.rec.ProviderID)
	if known == "" || mach.ProviderID == "" || mach.ProviderID == known {
		return false
	}
	s.alarmContested(m, nstance.Event{Reason: "machine " + mach.ProviderID + " carries this instance's marks, whose machine is " + known + "; it was left alone: remove its marks, or delete it"})
	return true
}

// alarmContested raises an alarm about the machine of m, once in a term. It needs
// the lock.
func (s *shard) alarmContested(m *member, e nstance.Event) {
	if m.published.contested {
		return
	}
	m.published.contested = true
	e.Type = nstance.EventAlarm
	s.publish(m, e)
}
