package reconcile

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/storage"
)

// perform carries out the next step of m and records its outcome, which the next
// plan sees. It runs in a lane.
func (r *Reconciler) perform(ctx context.Context, m *member) {
	r.mu.Lock()
	step, planned := m.step, m.planRevision
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
	case stepWriteNotices:
		err = r.writeNotices(ctx, m)
	case stepNone:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	m.running = false
	r.outcome(m, step, planned, err)
	r.wakeWaiters()
	r.queue.add(m.group.key, step != stepDelete)
}

// errAgain has the step repeated: it has not failed, and is not finished.
var errAgain = errors.New("not finished yet")

// outcome records how a step ended. A failed one is repeated with backoff; a step
// that a newer plan has replaced leaves the newer one in place.
func (r *Reconciler) outcome(m *member, step stepKind, planned int, err error) {
	if rec, ok := r.storedRecord(m.id); ok {
		m.rec, m.durable = rec, true
	}
	r.sendSettledAcks(m)
	if step == stepCreate {
		r.createEndedWith(m, err)
	}
	switch {
	case err == nil && step == stepDelete:
		r.publish(m, nstance.Event{Type: nstance.EventDeleted})
		r.opts.Deleted(m.id)
		r.forget(m)
		return
	case errors.Is(err, errOutdated), m.rec.Deleting != nil && m.step != stepDelete:
		r.trustRecord(m)
		return
	case m.planRevision != planned:
		return
	case err == nil:
		m.step, m.retryDue, m.attempts = stepNone, time.Time{}, 0
		return
	case errors.Is(err, errSoldOut) && !m.rec.OnDemand:
		r.forget(m)
		return
	case errors.Is(err, errUnrepeatable):
		r.abandon(m, err)
		return
	case step == stepCreate && m.throttled && m.grant == grantWanted:
		m.retryDue, m.attempts = time.Time{}, 0
		return
	case step == stepCreate && refused(err):
		r.createRefused(m, err)
		return
	case !errors.Is(err, errAgain):
		r.log.Warn("step failed, will be repeated", "instance_id", m.id, "group", m.group.key.String(), "op", step.String(), "code", nstance.CodeOf(err), "err", err)
	}
	m.attempts++
	m.retryDue = r.retryTime(m, step)
}

// errOutdated refuses a step because the record has changed since it was planned: by
// a late write of a former leader, or because an agent has registered.
var errOutdated error = &nstance.Error{Code: nstance.Conflict, Msg: "the record has changed since this was planned"}

// trustRecord resets m to its record, whatever was planned. The next plan starts
// from there.
func (r *Reconciler) trustRecord(m *member) {
	m.step, m.retryDue, m.attempts = stepNone, time.Time{}, 0
	m.planRevision++
	m.drain, m.drainDeadline, m.drainEnded = m.rec.Drain, time.Time{}, false
	m.formerExecutor, m.operatorGoneAt = "", time.Time{}
	r.rebalance(m.group)
	switch {
	case m.rec.Deleting != nil: // a marked instance is never wanted again
		m.state, m.step, m.deleteCauses = nstance.Deleting, stepDelete, []nstance.Cause{m.rec.Deleting.Why}
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
func (r *Reconciler) createRefused(m *member, err error) {
	if r.retryRefusedRequest(m, err) {
		return
	}
	code := nstance.CodeOf(err)
	m.refusedWith = err
	r.recordReturn(m, false)
	switch {
	case m.rec.OnDemand: // no failure of its group
	case code == nstance.Capacity || code == nstance.Quota: // the admission queue sets the pace
	case !errors.Is(err, errChanged):
		r.failedToBecomeReady(m, err.Error())
	}
	r.publish(m, nstance.Event{Type: nstance.EventCreateFailed, Code: code, Error: err.Error()})
	r.failWithoutMachine(m, nstance.Cause{Kind: nstance.CauseTimeout, Message: "create refused: " + err.Error()})
}

// failWithoutMachine fails m and has its intent deleted.
func (r *Reconciler) failWithoutMachine(m *member, why nstance.Cause) {
	r.admission.ReturnAddress(m.subnet)
	m.subnet = ""
	r.reopenLoss(m)
	m.state, m.step, m.deleteCauses = nstance.Failed, stepDelete, []nstance.Cause{why}
	m.retryDue, m.attempts = time.Time{}, 0
}

// create writes the intent, then asks the provider. When it is repeated,
// it looks for the machine first, and then sends the same bytes again.
func (r *Reconciler) create(ctx context.Context, m *member) error {
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
	if r.lacksGrant(m, rec) {
		return errAgain
	}
	repeated, err := r.beginCall(m, rec)
	if err != nil {
		return err
	}
	mach, err := r.provider.Create(ctx, r.spec(rec, def, rendered))
	r.createEnded(m, err)
	if errors.Is(err, nstance.Conflict) {
		return r.resolveConflict(ctx, m, repeated, err)
	}
	if err != nil {
		return err
	}
	return r.adopt(m, mach)
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

// writeIntent makes the intent durable, unless it is. A record that exists already
// is of an earlier attempt whose answer was lost, or of a former leader for the same
// instance on demand.
func (r *Reconciler) writeIntent(ctx context.Context, m *member, rec storage.Instance) (storage.Instance, error) {
	if stands, ok := r.records.Get(rec.ID); ok {
		return rec, r.adoptStoredIntent(m, rec, stands)
	}
	r.mu.Lock()
	m.durable = true
	r.mu.Unlock()
	written, err := r.records.Create(ctx, rec)
	if errors.Is(err, nstance.Conflict) {
		written, err = r.records.Refresh(ctx, rec.ID)
	}
	if err != nil {
		return rec, asUnavailable(err)
	}
	return written, r.adoptStoredIntent(m, rec, written)
}

// definition returns what m is created from: the recorded definition, or the
// group's present one while m is new.
func (r *Reconciler) definition(ctx context.Context, m *member) (nstance.Definition, error) {
	r.mu.Lock()
	def, digest, fresh := m.group.spec.Definition, m.rec.Definition, m.rec.InfraHash == m.group.hash && m.rec.Definition == ""
	if m.requestedDefinition != nil {
		def, fresh = *m.requestedDefinition, true
	}
	r.mu.Unlock()
	if digest != "" {
		def, err := r.records.Definition(ctx, digest)
		r.mu.Lock()
		if m.definitionErr = err; err == nil && m.rec.OnDemand {
			m.requestedDefinition = &def
		}
		r.mu.Unlock()
		return def, asUnavailable(unrepeatable(r.intended(m), err))
	}
	if !fresh {
		return def, errChanged
	}
	digest, err := r.records.PutDefinition(ctx, def)
	if err != nil {
		return def, asUnavailable(err)
	}
	r.mu.Lock()
	m.rec.Definition = digest
	r.mu.Unlock()
	return def, nil
}

// errChanged refuses to create a member whose group was redefined before its intent
// was durable. The next plan demands another one.
var errChanged error = &nstance.Error{Code: nstance.Conflict, Msg: "the group's definition changed before the instance was made"}

// intended reports whether the intent of m is durable.
func (r *Reconciler) intended(m *member) bool {
	_, ok := r.records.Get(m.id)
	return ok
}

// intent completes m's record and renders its user data.
func (r *Reconciler) intent(ctx context.Context, m *member, def nstance.Definition) (storage.Instance, Rendered, error) {
	r.mu.Lock()
	rec := m.rec
	r.mu.Unlock()
	if rec.Token == "" {
		if rec.Shape == (storage.Shape{}) { // not granted yet
			rec.Shape = r.preferredShape(def)
		}
		rec.Image, rec.Token = def.Image, token(rec)
	}
	out := Rendered{UserData: []byte(def.UserData.Content), Args: def.Args}
	if r.opts.Bootstrap != nil {
		var err error
		if out, err = r.opts.Bootstrap.Render(ctx, &rec, def); err != nil {
			return rec, out, unrepeatable(r.intended(m), err)
		}
	}
	sum := sha256.Sum256(out.UserData)
	digest := hex.EncodeToString(sum[:])
	if rec.UserDataDigest != "" && rec.UserDataDigest != digest {
		return rec, out, fmt.Errorf("%w: its user data renders to other bytes at this server", errUnrepeatable)
	}
	rec.UserDataDigest = digest
	return rec, out, nil
}

// preferredShape returns the shape that a create would be granted if it were alone.
func (r *Reconciler) preferredShape(def nstance.Definition) storage.Shape {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.opts.Now()
	shape, _ := r.admission.Choose(requestFor(def), now)
	return pricedShape(shape, def)
}

// token is the provider's idempotency token: the ID and a digest of the shape.
func token(rec storage.Instance) string {
	s := rec.Shape
	sum := sha256.Sum256([]byte(s.InstanceType + "\x00" + s.Subnet + "\x00" + string(s.Market) + "\x00" + s.MaxPrice))
	return string(rec.ID) + "-" + hex.EncodeToString(sum[:4])
}

func (r *Reconciler) spec(rec storage.Instance, def nstance.Definition, out Rendered) nstance.MachineSpec {
	owner := r.opts.Owner
	owner.Tenant = rec.Tenant
	return nstance.MachineSpec{
		ID: rec.ID, Owner: owner, Group: rec.Group, CreatedAt: rec.CreatedAt, Epoch: rec.CreatedEpoch, Arch: def.Arch,
		Image: rec.Image, InstanceType: rec.Shape.InstanceType, Subnet: rec.Shape.Subnet, Market: rec.Shape.Market,
		MaxPrice: rec.Shape.MaxPrice, Args: out.Args, UserData: out.UserData, Token: rec.Token,
	}
}

// beginCall records and publishes that the create is about to be sent. It reports
// whether an earlier call may have made the machine.
func (r *Reconciler) beginCall(m *member, rec storage.Instance) (repeated bool, err error) {
	if err := r.opts.Check(); err != nil {
		return false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.freezeOf(m.group) != nil {
		return false, errAgain // after the thaw
	}
	if m.grant == granted && m.shape != rec.Shape {
		return false, errAgain // granted while the intent was written
	}
	repeated = m.mayHaveMachine()
	now := r.opts.Now()
	first := m.createSent.IsZero() && m.foundAt.IsZero()
	m.createSent, m.createEnd, m.rec = now, now.Add(r.callTimeout()), rec
	if rec.OnDemand {
		r.wakeWaiters() // its intent is durable
	}
	if m.state == nstance.Pending {
		m.state = nstance.Provisioning
	}
	if !first {
		return repeated, nil
	}
	e := nstance.Event{Type: nstance.EventCreateRequested, Reason: rec.Reason + withMessage(m.requestReason)}
	if rec.Reason == string(plan.ReasonReplace) {
		e.Type, e.Replaces = nstance.EventReplacementRequested, m.replaces
	}
	r.publish(m, e)
	return repeated, nil
}

// adopt records the machine with m's ID as m's, if its marks are.
func (r *Reconciler) adopt(m *member, mach nstance.Machine) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.checkMarks(m, mach); err != nil {
		return err
	}
	if m.state == nstance.Pending || m.state == nstance.Provisioning {
		m.state = nstance.Booting
	}
	r.observeMachine(m, mach, r.opts.Now())
	return nil
}

// resolveConflict finds out what a create conflicts with: m's own machine, one that
// an earlier attempt made and that is gone, or another machine, which makes this
// instance impossible.
func (r *Reconciler) resolveConflict(ctx context.Context, m *member, repeated bool, refusal error) error {
	mach, err := r.provider.Get(ctx, m.id)
	switch {
	case err == nil:
		return r.adopt(m, mach)
	case !errors.Is(err, nstance.NotFound):
		return asUnavailable(err)
	case repeated, nstance.LossCauseOf(err) != "":
		r.markGoneBeforeKnown(m, nstance.LossCauseOf(err), relaunched(m.rec))
		return nil
	}
	return refusal
}

// asUnavailable keeps an error of storage or of a Get from being mistaken for the
// provider's refusal of a create.
func asUnavailable(err error) error {
	if err != nil && refused(err) {
		return &nstance.Error{Code: nstance.Unavailable, Msg: err.Error(), Err: err}
	}
	return err
}

// startDrain makes the planned drain durable, then starts it.
func (r *Reconciler) startDrain(ctx context.Context, m *member) error {
	r.mu.Lock()
	planned, former, notices := m.drain, m.formerExecutor, slices.Clone(m.notices)
	r.mu.Unlock()
	if planned == nil {
		return nil
	}
	var d nstance.Drain
	var said nstance.EventType
	known := false
	_, err := r.records.Update(ctx, m.id, func(rec *storage.Instance) error {
		if rec.Deleting != nil {
			return nstance.Errorf(nstance.Conflict, "instance %s is being deleted", rec.ID)
		}
		d = within(*planned, former, rec)
		if known = reflect.DeepEqual(rec.Drain, &d); known {
			return nil // of an earlier term: only to be announced again
		}
		said = drainEvent(rec.Drain, &d)
		if rec.Drain == nil && hasNotice(d.Causes) {
			rec.Reclaims++
		}
		rec.Drain, rec.Generation, rec.Notices = &d, d.Generation, notices
		return nil
	})
	if err != nil {
		return err
	}
	r.mu.Lock()
	if m.drain == planned {
		m.drain = &d
		if !d.Deadline.Equal(planned.Deadline) {
			m.drainDeadline = time.Time{} // another leader's
		}
	}
	r.mu.Unlock()
	if !known {
		r.publishDrain(m, &d, said)
	}
	return r.opts.Drains.Start(ctx, d)
}

// within merges a planned drain with the recorded one, which may be a late write of
// a former leader: its deadline is only brought forward, and no generation that has
// been cancelled is used again. The recorded executor stays, unless it is the former
// one, which loses the drain.
func within(d nstance.Drain, former nstance.Executor, rec *storage.Instance) nstance.Drain {
	old := rec.Drain
	if old == nil {
		d.Generation = max(d.Generation, rec.Generation+1)
		return d
	}
	d.Generation, d.StartedAt = old.Generation, old.StartedAt
	if former == "" || old.Executor != former {
		d.Executor = old.Executor
	}
	if old.Deadline.Before(d.Deadline) {
		d.Deadline = old.Deadline
	}
	return d
}

// drainEvent names the change from a recorded drain to another.
func drainEvent(was, is *nstance.Drain) nstance.EventType {
	switch {
	case was == nil:
		return nstance.EventDrainStarted
	case was.Executor != is.Executor:
		return nstance.EventDrainReassigned
	}
	return nstance.EventDrainTightened
}

func (r *Reconciler) publishDrain(m *member, d *nstance.Drain, what nstance.EventType) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.publish(m, nstance.Event{Type: what, Drain: d})
}

func hasNotice(causes []nstance.Cause) bool {
	for _, c := range causes {
		if c.Kind == nstance.CauseNotice {
			return true
		}
	}
	return false
}

// cancelDrain makes the end of a drain durable, then cancels it. Earlier
// acknowledgements of it do not count any more.
func (r *Reconciler) cancelDrain(ctx context.Context, m *member) error {
	var ended uint64
	_, err := r.records.Update(ctx, m.id, func(rec *storage.Instance) error {
		if rec.Deleting != nil {
			return nstance.Errorf(nstance.Conflict, "instance %s is being deleted", rec.ID)
		}
		ended = rec.Generation
		if rec.Drain != nil {
			rec.Drain, rec.Notices = nil, nil
			rec.Generation++
		}
		return nil
	})
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.publish(m, nstance.Event{Type: nstance.EventDrainCancelled})
	r.mu.Unlock()
	return r.opts.Drains.Cancel(ctx, m.id, ended)
}
