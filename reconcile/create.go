package reconcile

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// create writes the intent, then asks the provider. When it is repeated,
// it looks for the machine first, and then sends the same bytes again.
func (r *Reconciler) create(ctx context.Context, m *member) error {
	if err := r.provider.Blocked(); err != nil {
		return err
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
	if err := r.permit(m, stepCreate); err != nil {
		return err
	}
	repeated, err := r.beginCall(m, rec)
	if err != nil {
		return err
	}
	spec := r.spec(rec, def, rendered)
	spec.HostLimit = r.hostLimit(m)
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
	mach, err := r.provider.Get(ctx, m.id)
	switch {
	case err == nil:
		return true, r.adopt(m, mach)
	case !errors.Is(err, nstance.NotFound):
		return false, asUnavailable(err)
	case nstance.LossCauseOf(err) != "" && !another:
		r.markGoneBeforeKnown(m, absenceOf(err), false)
		return true, nil
	case r.opts.Now().Before(repeatFrom):
		return false, errAgain
	}
	if err := r.stillWanted(ctx, m.id); err != nil {
		return false, err
	}
	return false, r.provenRefusal(m)
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
	shape, definition := capacityShape(m.rec.Shape), r.definitionOf(m)
	switch nstance.CodeOf(m.answeredWith) {
	case nstance.Internal:
		m.answeredWith = answer
		return answer
	case nstance.Ambiguous, nstance.Unavailable:
		if m.unanswered < maxUnanswered || !r.admission.Alternatives(r.memberRequest(m)) {
			return nil
		}
		m.unanswered = 0
		r.admission.UnansweredFor(definition, shape, m.createSent, clip.Words(m.answeredWith.Error()), now)
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
	if !m.durable && m.grant == granted && r.admission.SoldOut(r.definitionOf(m), capacityShape(m.shape), m.grantedAt, r.opts.Now()) {
		return errSoldOut
	}
	return nil
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

// intended reports whether the intent of m is durable.
func (r *Reconciler) intended(m *member) bool {
	_, ok := r.records.Get(m.id)
	return ok
}

// reshape gives m, an instance on demand whose intent names another shape, the
// one that was granted. That is durable before the provider is asked for it. It has another
// token, with which a provider makes another machine: no call with the former one may be under
// way any more, and the latest look has found no machine.
func (r *Reconciler) reshape(ctx context.Context, m *member, def nstance.Definition) error {
	r.mu.Lock()
	rec, shape, price, choice, retoken := m.rec, m.shape, m.price, m.choiceOnRecord(), m.needsNewToken
	wanted := m.durable && m.grant == granted && (shape != rec.Shape || retoken)
	proven := !r.opts.Now().Before(r.absenceProvenAt(m))
	r.mu.Unlock()
	switch {
	case !wanted:
		return nil
	case !proven:
		return errAgain
	}
	former := rec
	rec.Shape, rec.UserDataDigest, rec.ShapeChoice, rec.PricePerHour = shape, "", choice, price
	rec.Token = token(rec)
	if retoken || relaunched(former) {
		rec.Token = nextToken(former, rec)
	}
	if err := r.writeShape(ctx, rec, def); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	m.needsNewToken = false
	r.refreshRecord(m)
	return nil
}

// writeShape makes another shape durable, and the digest of the user data, which may
// contain it.
func (r *Reconciler) writeShape(ctx context.Context, next records.Instance, def nstance.Definition) error {
	out := Rendered{UserData: []byte(def.UserData.Content)}
	if r.opts.Bootstrap != nil {
		var err error
		if out, err = r.opts.Bootstrap.Render(ctx, renderRequest(next, def)); err != nil {
			return err
		}
	}
	sum := sha256.Sum256(out.UserData)
	_, err := r.records.Update(ctx, next.ID, func(rec *records.Instance) error {
		if rec.Deleting != nil {
			return errOutdated
		}
		rec.Shape, rec.ShapeChoice, rec.PricePerHour = next.Shape, next.ShapeChoice, next.PricePerHour
		rec.Token, rec.UserDataDigest = next.Token, hex.EncodeToString(sum[:])
		return nil
	})
	return asUnavailable(err)
}

// intent completes m's record and renders its user data.
func (r *Reconciler) intent(ctx context.Context, m *member, def nstance.Definition) (records.Instance, Rendered, error) {
	r.mu.Lock()
	rec := m.rec
	if !rec.OnDemand && rec.UserDataDigest == "" {
		rec.BootstrapData = m.group.spec.BootstrapData
	}
	r.mu.Unlock()
	if rec.Token == "" {
		if rec.Shape == (records.Shape{}) { // not granted yet
			rec.Shape, rec.ShapeChoice = r.preferredShape(m.group, def)
		}
		rec.Image, rec.Token = def.Image, token(rec)
	}
	out := Rendered{UserData: []byte(def.UserData.Content), Args: def.Args}
	if r.opts.Bootstrap != nil {
		var err error
		if out, err = r.opts.Bootstrap.Render(ctx, renderRequest(rec, def)); err != nil {
			return rec, out, unrepeatable(r.intended(m), err)
		}
		rec.NonceKeyID, rec.Authorities = out.SignedWith.NonceKeyID, out.SignedWith.Authorities
	}
	sum := sha256.Sum256(out.UserData)
	digest := hex.EncodeToString(sum[:])
	if rec.UserDataDigest != "" && rec.UserDataDigest != digest {
		return rec, out, fmt.Errorf("%w: its user data renders to other bytes at this server", errUnrepeatable)
	}
	rec.UserDataDigest = digest
	return rec, out, nil
}

func renderRequest(rec records.Instance, def nstance.Definition) RenderRequest {
	return RenderRequest{
		ID: rec.ID, Group: rec.Key(), OnDemand: rec.OnDemand, InstanceType: rec.Shape.InstanceType, Image: rec.Image, RuntimeHash: rec.RuntimeHash, BootstrapData: rec.BootstrapData,
		CreatedAt: rec.CreatedAt, RegisterBy: rec.RegisterBy(), Definition: def, SignedWith: SignedWith{rec.NonceKeyID, rec.Authorities},
	}
}

// preferredShape returns the shape that a create would be granted if it were alone, and
// why.
func (r *Reconciler) preferredShape(g *group, def nstance.Definition) (records.Shape, string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.opts.Now()
	shape, choice, _ := r.admission.Choose(r.requestFor(g, def), now)
	return pricedShape(shape, def), string(choice)
}

// writeIntent makes the intent durable, unless it is. A record that exists already
// is of an earlier attempt whose answer was lost, or of a former leader for the same
// instance on demand.
func (r *Reconciler) writeIntent(ctx context.Context, m *member, rec records.Instance) (records.Instance, error) {
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

// adoptStoredIntent compares the stored intent with the one that was to be written. A
// former leader may have written one for the same ID a moment ago, or an earlier
// attempt rendered other bytes: then the stored one counts, and the step is repeated.
func (r *Reconciler) adoptStoredIntent(m *member, meant, stands records.Instance) error {
	switch {
	case stands.Deleting != nil:
		return errOutdated
	case stands.Definition == meant.Definition && stands.Shape == meant.Shape && stands.UserDataDigest == meant.UserDataDigest:
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	m.inheritedAt = r.opts.Now()
	r.refreshRecord(m)
	return errAgain
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
// whether an earlier call may have made the machine.
func (r *Reconciler) beginCall(m *member, rec records.Instance) (repeated bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.registered() {
		return false, errAgain // its machine is there, or was: see absentOnRecord
	}
	if m.grant == granted && m.shape != rec.Shape {
		return false, errAgain // granted while the intent was written
	}
	now := r.opts.Now()
	if r.admission.Avoided(capacityShape(rec.Shape), now) {
		return false, errAvoided
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
		return repeated, nil
	}
	e := nstance.Event{Type: nstance.EventCreateRequested, Reason: rec.Reason + withMessage(m.requestReason) + shapeReason(rec)}
	if rec.Reason == string(plan.ReasonReplace) {
		e.Type, e.Replaces = nstance.EventReplacementRequested, rec.Replaces
	}
	r.publish(m, e)
	return repeated, nil
}

func (s *shard) spec(rec records.Instance, def nstance.Definition, out Rendered) nstance.MachineSpec {
	owner := s.opts.Owner
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
	case nstance.LossCauseOf(err) == "" && r.isShown(m): // the cloud does not show it yet
		return errAgain
	case repeated, nstance.LossCauseOf(err) != "":
		r.markGoneBeforeKnown(m, absenceOf(err), relaunched(m.rec))
		return nil
	}
	return refusal
}

// isShown is agentShows for steps.
func (r *Reconciler) isShown(m *member) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.agentShows(m, r.opts.Now())
}

// markGoneBeforeKnown records that the machine of m existed and is gone, although no
// create was ever answered. Final: the provider creates no other one with m's ID.
func (r *Reconciler) markGoneBeforeKnown(m *member, is absence, final bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.state == nstance.Pending || m.state == nstance.Provisioning {
		m.state = nstance.Booting
	}
	if !final && r.retryLostLaunch(m, is, r.opts.Now()) {
		return
	}
	m.taken = is.cause == "" // the time in which nothing was known of it is too short for more
	r.markGone(m, "it was made, and the provider does not know it any more", is, r.opts.Now())
}
