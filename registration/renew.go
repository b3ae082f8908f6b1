package registration

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/pki"
)

// Renew implements nstance.Registrar. A key that is current already is refused
// as Invalid: each renewal needs a new one. The write also promotes a pending
// certificate if id shows that one.
func (r *Registrar) Renew(ctx context.Context, id nstance.Identity, csr []byte) (nstance.Credential, error) {
	now := r.opts.Now()
	if err := r.limits.subject(id, now); err != nil {
		return nstance.Credential{}, err
	}
	if !now.Before(id.NotAfter) {
		return nstance.Credential{}, refuseField(nstance.Denied, "", "register again",
			"certificate %s expired at %s", id.Serial, id.NotAfter.UTC().Format(time.RFC3339))
	}
	rec, err := r.holder(id)
	if err != nil {
		return nstance.Credential{}, err
	}
	issued, err := r.renew(ctx, rec, id, csr)
	if err != nil {
		return nstance.Credential{}, err
	}
	return r.credential(issued), nil
}

func (r *Registrar) renew(ctx context.Context, rec holder, id nstance.Identity, csr []byte) (*KeyRecord, error) {
	key, err := ParseCSR(csr)
	if err != nil {
		return nil, err
	}
	s, _, err := r.check(ctx, rec, id)
	if err != nil {
		return nil, err
	}
	now := r.opts.Now()
	standing, err := s.succeed(id, &KeyRecord{Fingerprint: pki.KeyFingerprint(key)}, now) // on a copy: signing is worth it only if needed
	if standing != nil || err != nil {
		return standing, err
	}
	issued, err := r.issue(id, key, now)
	if err != nil {
		return nil, err
	}
	return r.recordRenewal(ctx, rec, id, issued)
}

func (r *Registrar) recordRenewal(ctx context.Context, rec holder, id nstance.Identity, issued *KeyRecord) (*KeyRecord, error) {
	var (
		standing *KeyRecord
		found    Succession
	)
	now := r.opts.Now()
	err := rec.update(ctx, func(s *Succession) (err error) {
		found = *s
		if standing, err = s.succeed(id, issued, now); err == nil && standing != nil {
			return errStanding
		}
		return err
	})
	switch {
	case errors.Is(err, errStanding):
		return standing, nil
	case errors.Is(err, errSuperseded):
		return nil, r.superseded(id, found)
	case err != nil:
		return nil, fmt.Errorf("%s %s: %w", id.Role, id.Subject, err)
	}
	r.recorded("renew", id, issued)
	r.journalRenewal(id, issued, !now.Before(id.NotAfter))
	return issued, nil
}

// journalRenewal leaves out what every agent does one and a half times a day: in
// a large fleet it would push everything else out of the journal.
func (r *Registrar) journalRenewal(id nstance.Identity, issued *KeyRecord, recovered bool) {
	was := "replaces"
	switch {
	case recovered:
		was = "replaces, by recovery, the expired"
	case id.Role == nstance.RoleAgent && issued.Issuer == id.Issuer:
		return
	}
	r.opts.Journal(r.event(nstance.EventCertificateRenewed, id, "certificate %s until %s %s %s",
		issued.Serial, issued.NotAfter.UTC().Format(time.RFC3339), was, id.Serial))
}

// Verify checks, at each connection, what the certificate alone cannot say:
// that its holder still exists and that its serial is the current or the
// pending one. For a pending one promote is true: the caller then folds
// Succession.Promote into the next write of the record; until then both stand.
// It fails with NotFound when the instance is deleted or unknown, Denied when
// the certificate has been superseded (with an alarm) or the operator revoked.
func (r *Registrar) Verify(ctx context.Context, id nstance.Identity) (promote bool, err error) {
	rec, err := r.holder(id)
	if err != nil {
		return false, err
	}
	_, promote, err = r.check(ctx, rec, id)
	return promote, err
}

// check reads storage before it refuses: a former leader's late write may have
// issued the certificate that this one has not heard of.
func (r *Registrar) check(ctx context.Context, rec holder, id nstance.Identity) (Succession, bool, error) {
	var s Succession
	for _, fresh := range []bool{false, true} {
		var err error
		if s, err = rec.read(ctx, fresh); err != nil {
			return Succession{}, false, fmt.Errorf("%s %s: %w", id.Role, id.Subject, err)
		}
		if good, pending := s.holds(id); good {
			return s, pending, nil
		}
		if fresh && s.Open {
			s, err := r.occupy(ctx, rec, id)
			return s, false, err
		}
	}
	return Succession{}, false, r.superseded(id, s)
}

// occupy makes the certificate of id, the first that is shown for an open
// record, the current one. Its key, its serial and who signed it are all that is kept of it.
func (r *Registrar) occupy(ctx context.Context, rec holder, id nstance.Identity) (Succession, error) {
	var taken Succession
	err := rec.update(ctx, func(s *Succession) error {
		taken = *s
		if good, _ := s.holds(id); !good && !s.Open {
			return errSuperseded // another one was faster
		} else if !good {
			s.Current, s.Open = &KeyRecord{Fingerprint: id.Key, Serial: id.Serial, Issuer: id.Issuer, NotAfter: id.NotAfter}, false
		}
		taken = *s
		return nil
	})
	switch {
	case errors.Is(err, errSuperseded):
		return Succession{}, r.superseded(id, taken)
	case err != nil:
		return Succession{}, fmt.Errorf("%s %s: %w", id.Role, id.Subject, err)
	}
	r.opts.Log.Info("certificate taken for an adopted machine", "subject", id.Subject, "tenant", id.Tenant, "serial", id.Serial)
	return taken, nil
}

// superseded refuses a certificate that the record s does not hold. One that ends
// after the current one has not been superseded: the record is older than it is,
// as after storage was put back, and its holder has done nothing wrong.
func (r *Registrar) superseded(id nstance.Identity, s Succession) error {
	why := fmt.Sprintf("certificate %s was shown although it has been superseded", id.Serial)
	if s.Current != nil && id.NotAfter.After(s.Current.NotAfter) {
		why = fmt.Sprintf("certificate %s was shown, which is newer than the record says: was storage put back to an earlier state?", id.Serial)
		r.alarm(id, "%s", why)
	} else {
		r.alarm(id, "%s", why)
		r.opts.Exposed(id, why)
	}
	return refuseField(nstance.Denied, "", "register again", "certificate %s of %s has been superseded", id.Serial, id.Subject)
}

// A holder is the record of one certificate's holder, of either kind.
type holder interface {
	// read fails with NotFound or Denied when the holder is no more.
	read(ctx context.Context, fresh bool) (Succession, error)
	// update is one conditional write, refused like read.
	update(ctx context.Context, fn func(*Succession) error) error
}

func (r *Registrar) holder(id nstance.Identity) (holder, error) {
	switch id.Role {
	case nstance.RoleAgent:
		instance, err := nstance.ParseInstanceID(id.Subject)
		return agentHolder{r.records, id, instance, nil}, err
	case nstance.RoleOperator, nstance.RoleAdmin:
		return operatorHolder{r.records, id}, nil
	}
	return nil, nstance.Errorf(nstance.Denied, "certificates of role %q are not registered", id.Role)
}

type agentHolder struct {
	records  Records
	who      nstance.Identity
	instance nstance.InstanceID
	also     func(*Registration) // what else changes in the same write; nil: nothing
}

func (h agentHolder) live(reg Registration) error {
	switch {
	case reg.Deleting:
		return nstance.Errorf(nstance.NotFound, "instance is being deleted")
	case reg.Tenant != h.who.Tenant:
		return nstance.Errorf(nstance.Denied, "certificate names tenant %q, the record %q", h.who.Tenant, reg.Tenant)
	}
	return nil
}

func (h agentHolder) read(ctx context.Context, fresh bool) (Succession, error) {
	read := h.records.Registration
	if fresh {
		read = h.records.RefreshRegistration
	}
	reg, err := read(ctx, h.instance)
	if err != nil {
		return Succession{}, err
	}
	return reg.Succession, h.live(reg)
}

func (h agentHolder) update(ctx context.Context, fn func(*Succession) error) error {
	_, err := h.records.UpdateRegistration(ctx, h.instance, func(reg *Registration) error {
		if err := h.live(*reg); err != nil {
			return err
		}
		if h.also != nil {
			h.also(reg)
		}
		return fn(&reg.Succession)
	})
	return err
}

type operatorHolder struct {
	records Records
	who     nstance.Identity
}

func (h operatorHolder) live(op OperatorRegistration) error {
	switch {
	case op.Revoked:
		return revoked(op)
	case op.Role != h.who.Role:
		return nstance.Errorf(nstance.Denied, "certificate states role %s, the record %s", h.who.Role, op.Role)
	}
	return nil
}

func (h operatorHolder) read(ctx context.Context, _ bool) (Succession, error) {
	op, err := h.records.Operator(ctx, h.who.Tenant, h.who.Subject)
	if err != nil {
		return Succession{}, err
	}
	return op.Succession, h.live(op)
}

func (h operatorHolder) update(ctx context.Context, fn func(*Succession) error) error {
	_, err := h.records.UpdateOperator(ctx, h.who.Tenant, h.who.Subject, func(op *OperatorRegistration) error {
		if err := h.live(*op); err != nil {
			return err
		}
		return fn(&op.Succession)
	})
	return err
}
