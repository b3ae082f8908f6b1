package registration

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/keyring"
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
	key, err := keyring.ParseCSR(csr)
	if err != nil {
		return nil, err
	}
	s, _, err := r.check(ctx, rec, id)
	if err != nil {
		return nil, err
	}
	now := r.opts.Now()
	standing, err := s.succeed(id, &KeyRecord{Fingerprint: pki.KeyFingerprint(key)}, now) // on a copy, to sign only if needed
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
			return errIssued
		}
		return err
	})
	switch {
	case errors.Is(err, errIssued):
		return standing, nil
	case errors.Is(err, errSuperseded):
		return nil, r.superseded(id, found)
	case err != nil:
		return nil, fmt.Errorf("%s %s: %w", id.Role, id.Subject, err)
	}
	r.logIssued("renew", id, issued)
	r.journalRenewal(id, issued, !now.Before(id.NotAfter))
	return issued, nil
}

// journalRenewal skips the ordinary renewals of agents, one and a half a day each:
// in a large fleet they would push all other events out of the journal.
func (r *Registrar) journalRenewal(id nstance.Identity, issued *KeyRecord, recovered bool) {
	relation := "replaces"
	switch {
	case recovered:
		relation = "replaces, by recovery, the expired"
	case id.Role == nstance.RoleAgent && issued.Issuer == id.Issuer:
		return
	}
	r.opts.Journal(r.event(eventtype.CertificateRenewed, id, "certificate %s until %s %s %s",
		issued.Serial, issued.NotAfter.UTC().Format(time.RFC3339), relation, id.Serial))
}

// Verify checks, at each connection, that the certificate's holder still exists
// and that its serial is the current or the pending one. For a pending one promote
// is true: the caller then calls Succession.Promote in the next write of the
// record; until then both are valid. It fails with NotFound when the instance is
// deleted or unknown, Denied when the certificate has been superseded (with an
// alarm) or the operator revoked.
func (r *Registrar) Verify(ctx context.Context, id nstance.Identity) (promote bool, err error) {
	rec, err := r.holder(id)
	if err != nil {
		return false, err
	}
	_, promote, err = r.check(ctx, rec, id)
	return promote, err
}

// check reads storage before it refuses: a late write of a former leader may have
// issued the certificate.
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
			s, err := r.claimOpen(ctx, rec, id)
			return s, false, err
		}
	}
	return Succession{}, false, r.superseded(id, s)
}

// claimOpen makes the certificate of id, the first that is used for an open
// record, the current one. It stores its key, serial and issuer only.
func (r *Registrar) claimOpen(ctx context.Context, rec holder, id nstance.Identity) (Succession, error) {
	var claimed Succession
	err := rec.update(ctx, func(s *Succession) error {
		claimed = *s
		if valid, _ := s.holds(id); !valid && !s.Open {
			return errSuperseded // another certificate was faster
		} else if !valid {
			s.Current, s.Open = &KeyRecord{Fingerprint: id.Key, Serial: id.Serial, Issuer: id.Issuer, NotAfter: id.NotAfter}, false
		}
		claimed = *s
		return nil
	})
	switch {
	case errors.Is(err, errSuperseded):
		return Succession{}, r.superseded(id, claimed)
	case err != nil:
		return Succession{}, fmt.Errorf("%s %s: %w", id.Role, id.Subject, err)
	}
	r.opts.Log.Info("certificate of an adopted machine accepted as its current one", "subject", id.Subject, "tenant", id.Tenant, "serial", id.Serial)
	return claimed, nil
}

// superseded refuses a certificate that the record s does not hold. If it ends
// after the current one it has not been superseded: the record is older than the
// certificate, as after storage was restored from a backup, and Exposed is not
// called.
func (r *Registrar) superseded(id nstance.Identity, s Succession) error {
	why := fmt.Sprintf("superseded certificate %s was used: there may be a copy of the key", id.Serial)
	if s.Current != nil && id.NotAfter.After(s.Current.NotAfter) {
		why = fmt.Sprintf("certificate %s was used, which is newer than the record: was storage restored from a backup?", id.Serial)
		r.alarm(id, "%s", why)
	} else {
		r.alarm(id, "%s", why)
		r.opts.Exposed(id, why)
	}
	return refuseField(nstance.Denied, "", "register again", "certificate %s of %s has been superseded", id.Serial, id.Subject)
}

// A holder is the record of one certificate's holder, of either kind.
type holder interface {
	// read fails with NotFound or Denied when the holder is deleted or revoked.
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

// ofRecords is an error of Records about a holder: storage that denies this server something,
// as with credentials that have expired, says nothing about the holder.
func ofRecords(err error) error {
	if nstance.CodeOf(err) != nstance.Denied {
		return err
	}
	return &nstance.Error{Code: nstance.Unavailable, Msg: err.Error(), Err: err}
}

type agentHolder struct {
	records     Records
	identity    nstance.Identity
	instance    nstance.InstanceID
	extraUpdate func(*Registration) // in the same write; nil: none
}

func (h agentHolder) live(reg Registration) error {
	switch {
	case reg.Deleting:
		return nstance.Errorf(nstance.NotFound, "instance is being deleted")
	case reg.Tenant != h.identity.Tenant:
		return nstance.Errorf(nstance.Denied, "certificate names tenant %q, the record %q", h.identity.Tenant, reg.Tenant)
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
		return Succession{}, ofRecords(err)
	}
	return reg.Succession, h.live(reg)
}

func (h agentHolder) update(ctx context.Context, fn func(*Succession) error) error {
	var refusal error // of the change, by the record as it was last read
	_, err := h.records.UpdateRegistration(ctx, h.instance, func(reg *Registration) error {
		if refusal = h.live(*reg); refusal != nil {
			return refusal
		}
		if h.extraUpdate != nil {
			h.extraUpdate(reg)
		}
		refusal = fn(&reg.Succession)
		return refusal
	})
	if refusal == nil {
		err = ofRecords(err)
	}
	return err
}

type operatorHolder struct {
	records  Records
	identity nstance.Identity
}

func (h operatorHolder) live(op OperatorRegistration) error {
	switch {
	case op.Revoked:
		return revoked(op)
	case op.Role != h.identity.Role:
		return nstance.Errorf(nstance.Denied, "certificate states role %s, the record %s", h.identity.Role, op.Role)
	}
	return nil
}

func (h operatorHolder) read(ctx context.Context, _ bool) (Succession, error) {
	op, err := h.records.Operator(ctx, h.identity.Tenant, h.identity.Subject)
	if err != nil {
		return Succession{}, ofRecords(err)
	}
	return op.Succession, h.live(op)
}

func (h operatorHolder) update(ctx context.Context, fn func(*Succession) error) error {
	var refusal error // as above
	_, err := h.records.UpdateOperator(ctx, h.identity.Tenant, h.identity.Subject, func(op *OperatorRegistration) error {
		if refusal = h.live(*op); refusal == nil {
			refusal = fn(&op.Succession)
		}
		return refusal
	})
	if refusal == nil {
		err = ofRecords(err)
	}
	return err
}
