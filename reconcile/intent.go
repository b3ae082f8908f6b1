package reconcile

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/bounded"
	"github.com/nstance-go/nstance/internal/records"
)

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

// readOnDemandDefinition has m, whose machine a new leader found, know the shapes that it
// permits. Without an answer they are taken to be those of its group.
func (r *Reconciler) readOnDemandDefinition(ctx context.Context, m *member) {
	r.mu.Lock()
	unread := m.rec.OnDemand && m.requestedDefinition == nil
	r.mu.Unlock()
	if !unread {
		return
	}
	if _, err := r.definition(ctx, m); err != nil {
		r.log.Warn("definition not read", "instance_id", m.id, "code", nstance.CodeOf(err), "err", err)
	}
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
		if out, err = r.render(ctx, renderRequest(next, def)); err != nil {
			return err
		}
	}
	sum := sha256.Sum256(out.UserData)
	_, err := r.records.Update(ctx, next.ID, func(rec *records.Instance) error {
		if rec.Deleting != nil {
			return errOutdated
		}
		rec.Shape, rec.ShapeChoice, rec.PricePerHour = next.Shape, next.ShapeChoice, next.PricePerHour
		rec.Token, rec.UserDataDigest, rec.FailedLaunch = next.Token, hex.EncodeToString(sum[:]), nil
		rec.AskedAt = r.opts.Now().UTC()
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
	if rec.Token == "" {
		if rec.Shape == (records.Shape{}) { // not granted yet: the shape that it would get if it were alone
			shape, choice, _ := r.places.Choose(m.group.request(def), r.opts.Now())
			rec.Shape, rec.ShapeChoice = pricedShape(shape, def), string(choice)
		}
		rec.Image, rec.Token = def.Image, token(rec)
	}
	r.mu.Unlock()
	out := Rendered{UserData: []byte(def.UserData.Content), Args: def.Args}
	if r.opts.Bootstrap != nil {
		var err error
		if out, err = r.render(ctx, renderRequest(rec, def)); err != nil {
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

func (r *Reconciler) render(ctx context.Context, req RenderRequest) (Rendered, error) {
	ctx, cancel := context.WithTimeout(ctx, bounded.Limit)
	defer cancel()
	return r.opts.Bootstrap.Render(ctx, req)
}

func renderRequest(rec records.Instance, def nstance.Definition) RenderRequest {
	return RenderRequest{
		ID: rec.ID, Group: rec.Key(), OnDemand: rec.OnDemand, InstanceType: rec.Shape.InstanceType, Image: rec.Image, RuntimeHash: rec.RuntimeHash, BootstrapData: rec.BootstrapData,
		CreatedAt: rec.CreatedAt, RegisterBy: rec.RegisterBy(), Definition: def, SignedWith: SignedWith{rec.NonceKeyID, rec.Authorities},
	}
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
	rec.AskedAt = r.opts.Now().UTC()
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

// recordAsk has the record of m say that the provider is asked for its machine now, unless
// it says so: leaders that follow one another quickly know by it when the last call was.
func (r *Reconciler) recordAsk(ctx context.Context, m *member) error {
	now := r.opts.Now()
	if rec, ok := r.records.Get(m.id); ok && now.Sub(rec.AskedAt) < records.AskedFor/2 {
		return nil
	}
	_, err := r.records.Update(ctx, m.id, func(rec *records.Instance) error {
		if rec.Deleting != nil {
			return errOutdated
		}
		rec.AskedAt = now.UTC()
		return nil
	})
	if err != nil {
		return asUnavailable(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refreshRecord(m)
	return nil
}

// token is the provider's idempotency token: the ID and a digest of the shape.
func token(rec records.Instance) string {
	s := rec.Shape
	sum := sha256.Sum256([]byte(s.InstanceType + "\x00" + s.Subnet + "\x00" + string(s.Market) + "\x00" + s.MaxPrice))
	return string(rec.ID) + "-" + hex.EncodeToString(sum[:4])
}

// nextToken is the token of a create after the machine of a former one was lost:
// a provider may answer the former token with that machine.
func nextToken(former, rec records.Instance) string {
	sum := sha256.Sum256([]byte(former.Token + "\x00" + token(rec)))
	return string(rec.ID) + "-" + hex.EncodeToString(sum[:4])
}

// relaunched reports whether a machine was lost before rec's. The provider may
// answer with the loss of the former until it shows the present one.
func relaunched(rec records.Instance) bool { return rec.Token != "" && rec.Token != token(rec) }

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

// errChanged refuses to create a member whose group was redefined before its intent
// was durable. The next plan demands another one.
var errChanged error = &nstance.Error{Code: nstance.Conflict, Msg: "the group's definition changed before the instance was made"}
