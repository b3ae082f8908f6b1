package registration

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/keyring"
)

func (r *Registrar) registerAgent(ctx context.Context, a applicant) (*KeyRecord, error) {
	id := nstance.InstanceID(a.claims.Subject)
	reg, err := r.records.Registration(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("instance %s: %w", id, err)
	}
	if err := entitled(reg, a.claims); err != nil {
		return nil, err
	}
	if reg.Current != nil {
		return r.standing(ctx, reg, a)
	}
	if err := a.claims.InTime(a.now); err != nil {
		return nil, err
	}
	return r.registerFresh(ctx, id, a)
}

// registerFresh changes the record from issued to registered in one conditional
// write. If another request was faster, its result decides.
func (r *Registrar) registerFresh(ctx context.Context, id nstance.InstanceID, a applicant) (*KeyRecord, error) {
	holder := a.identity()
	issued, err := r.issue(holder, a.key, a.now)
	if err != nil {
		return nil, err
	}
	var found Registration
	_, err = r.records.UpdateRegistration(ctx, id, func(reg *Registration) error {
		found = *reg
		if err := entitled(found, a.claims); err != nil {
			return err
		}
		if reg.Current != nil {
			return errIssued
		}
		reg.Current, reg.RegisteredAt = issued, a.now.UTC()
		reg.Addresses, reg.Hostname = a.addresses, a.hostname
		return nil
	})
	if errors.Is(err, errIssued) {
		return r.standing(ctx, found, a)
	}
	if err != nil {
		return nil, fmt.Errorf("instance %s: %w", id, err)
	}
	r.logIssued("register", holder, issued)
	return issued, nil
}

// standing answers for an instance that has a certificate: the same key gets the
// same certificate, until it has been renewed.
func (r *Registrar) standing(ctx context.Context, reg Registration, a applicant) (*KeyRecord, error) {
	if reg.Current.Fingerprint == a.keyPrint {
		return reg.Current, nil
	}
	reg, err := r.records.RefreshRegistration(ctx, reg.ID)
	if err != nil {
		return nil, fmt.Errorf("instance %s: %w", a.claims.Subject, err)
	}
	if err := entitled(reg, a.claims); err != nil {
		return nil, err
	}
	return r.sameKey(reg.Current, a)
}

func (r *Registrar) sameKey(current *KeyRecord, a applicant) (*KeyRecord, error) {
	if current != nil && current.Fingerprint == a.keyPrint {
		return current, nil
	}
	r.alarm(a.identity(), "nonce %s was used again with another key, or after a renewal", a.claims.JTI)
	return nil, foreign("if the first use was not yours, delete the instance or revoke the operator",
		"nonce has been used already with another key")
}

// entitled compares what the nonce claims with the instance's record.
func entitled(reg Registration, c keyring.Claims) error {
	id := nstance.InstanceID(c.Subject)
	switch {
	case reg.Deleting:
		return nstance.Errorf(nstance.NotFound, "instance %s is being deleted", id)
	case id.Kind() != reg.Kind:
		return foreign("the instance is replaced", "nonce is for an instance of kind %s, whose record says kind %s", id.Kind(), reg.Kind)
	case reg.Open:
		return foreign("the agent's own certificate is good; if it has none, delete the instance",
			"nonce may have been used before instance %s was adopted", id)
	case c.Tenant != reg.Tenant || c.Group != reg.Group || c.OnDemand != reg.OnDemand:
		return foreign("the instance is replaced", "nonce is for %s, whose record says %s",
			placeOf(c.Tenant, c.Group, c.OnDemand), placeOf(reg.Tenant, reg.Group, reg.OnDemand))
	}
	return nil
}

func placeOf(t nstance.TenantID, g nstance.GroupID, onDemand bool) string {
	s := nstance.GroupKey{Tenant: t, Group: g}.String()
	if onDemand {
		s += " on demand"
	}
	return s
}

func (a applicant) identity() nstance.Identity {
	id := nstance.Identity{Subject: a.claims.Subject, Role: a.claims.Kind, Tenant: a.claims.Tenant}
	if id.Role != nstance.RoleAgent {
		id.Subject = operatorName(a.claims)
	}
	return id
}

// operatorName derives the client name from the nonce, so that it is unique
// without coordination, and the same at each repeat.
func operatorName(c keyring.Claims) string {
	sum := sha256.Sum256([]byte(c.JTI))
	return string(c.Kind) + "-" + hex.EncodeToString(sum[:8])
}

func (r *Registrar) registerOperator(ctx context.Context, a applicant) (*KeyRecord, error) {
	holder := a.identity()
	standing, err := r.records.Operator(ctx, holder.Tenant, holder.Subject)
	switch {
	case err == nil:
		return r.standingOperator(standing, a)
	case !errors.Is(err, nstance.NotFound):
		return nil, fmt.Errorf("%s %s: %w", holder.Role, holder.Subject, err)
	}
	if err := a.claims.InTime(a.now); err != nil {
		return nil, err
	}
	issued, err := r.issue(holder, a.key, a.now)
	if err != nil {
		return nil, err
	}
	standing, err = r.records.ConsumeNonce(ctx, a.claims.JTI, OperatorRegistration{
		Name: holder.Subject, Role: holder.Role, Tenant: holder.Tenant, JTI: a.claims.JTI, NonceExpiry: a.claims.Expiry, Hostname: a.hostname,
		RegisteredAt: a.now.UTC(), Succession: Succession{Current: issued},
	})
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", holder.Role, holder.Subject, err)
	}
	if standing.Current != nil && standing.Current.Serial == issued.Serial {
		r.logIssued("register", holder, issued)
		r.opts.Journal(r.event(eventtype.OperatorRegistered, holder, "certificate %s until %s", issued.Serial, issued.NotAfter.UTC().Format(time.RFC3339)))
	}
	return r.standingOperator(standing, a)
}

func (r *Registrar) standingOperator(op OperatorRegistration, a applicant) (*KeyRecord, error) {
	switch {
	case op.Revoked:
		return nil, revoked(op)
	case op.JTI != a.claims.JTI || op.Role != a.claims.Kind || op.Tenant != a.claims.Tenant:
		return nil, foreign("mint a new one with nstance-admin cluster nonce", "nonce does not match the record of %s", op.Name)
	}
	return r.sameKey(op.Current, a)
}

func revoked(op OperatorRegistration) error {
	return refuseField(nstance.Denied, "", "register again with a new nonce", "%s %s has been revoked", op.Role, op.Name)
}
