package operators

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/validate"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/server/internal/ports"
	"github.com/nstance-go/nstance/storage"
)

// ListKeys implements the RPC.
func (o *Service) ListKeys(ctx context.Context, _ *apiv1.ListKeysRequest) (*apiv1.ListKeysResponse, error) {
	t, resp := callerOf(ctx).term, &apiv1.ListKeysResponse{}
	if err := o.Keys.Refresh(ctx); err != nil {
		return nil, err
	}
	for _, set := range []string{keyring.Identity, keyring.Workload, keyring.Nonces} {
		resp.Keys = append(resp.Keys, t.keyMessages(set, o.Ring.Set(set))...)
	}
	return resp, nil
}

// RotateKey implements the RPC.
func (o *Service) RotateKey(ctx context.Context, req *apiv1.RotateKeyRequest) (*apiv1.RotateKeyResponse, error) {
	c := callerOf(ctx)
	if err := c.term.Lease.Err(); err != nil {
		return nil, ports.ErrTermEnded
	}
	r := keyring.Rotation{Set: req.GetName(), Step: keyring.Step(req.GetStep()), DryRun: req.GetDryRun()}
	switch {
	case !req.GetForce():
		r.Free = c.term.Records.Unused(r.Set)
	case r.Step != keyring.StepFinish:
		return nil, nstance.FieldError("force", "leave it out", "is for step finish, not %.20q", req.GetStep())
	}
	if !req.GetForce() && r.Step != keyring.StepAbort && !c.term.Internals.ClockRight() {
		return nil, &nstance.Error{
			Code: nstance.Unavailable, Msg: "steps of a rotation wait for each other and for what a key has signed, and this server's clock cannot be trusted",
			Remedy: "set it right, and repeat",
		}
	}
	before := o.Ring.Set(r.Set)
	set, err := o.Ring.Rotate(ctx, r)
	o.Keys.HandleChanges()
	if done := len(set.Keys) > 0; done && !r.DryRun && phasesOf(before) != phasesOf(set) {
		c.term.Journal(nstance.Event{
			Time: o.Now().UTC(), Type: eventtype.KeysRotated, Tenant: c.Tenant,
			Reason: fmt.Sprintf("%s of the %s keys by %s: %s", r.Step, r.Set, c.Subject, phasesOf(set)),
		})
	}
	if err != nil {
		return nil, err
	}
	return &apiv1.RotateKeyResponse{Keys: c.term.keyMessages(r.Set, set)}, nil
}

// phasesOf returns the keys of a set with their phases, in one line.
func phasesOf(s keyring.KeySet) string {
	var out []string
	for _, k := range s.Keys {
		out = append(out, k.ID+" "+string(k.Phase))
	}
	return strings.Join(out, ", ")
}

func (t *Term) keyMessages(set string, s keyring.KeySet) []*apiv1.Key {
	var out []*apiv1.Key
	for _, k := range s.Keys {
		holders, until, known := t.Records.CountInstances(set, k)
		m := &apiv1.Key{
			Name: set, Id: k.ID, Phase: string(k.Phase), CreatedAt: wire.Time(k.CreatedAt), Since: wire.Time(k.Since),
			NotAfter: wire.Time(k.NotAfter), Holders: int32(holders), NextStepAt: wire.Time(k.NextStepAt()),
		}
		if known {
			m.LastUseEnds = wire.Time(later(until, k.UsedUntil))
		}
		out = append(out, m)
	}
	return out
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// ListOperators implements the RPC.
func (*Service) ListOperators(ctx context.Context, req *apiv1.ListOperatorsRequest) (*apiv1.ListOperatorsResponse, error) {
	list, unreadable, err := callerOf(ctx).term.Records.Operators(ctx)
	if err != nil {
		return nil, err
	}
	all := map[string]*apiv1.Operator{}
	for _, op := range list {
		all[layout.OperatorKey(op.Tenant, op.Name)] = operatorMessage(op)
	}
	for key, err := range unreadable {
		tenant, name, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(key, layout.OperatorPrefix), ".json"), ".")
		all[key] = &apiv1.Operator{Id: name, Tenant: tenant, Error: err.Error()}
	}
	resp := &apiv1.ListOperatorsResponse{}
	same := func(key string) string { return key }
	resp.Operators, resp.NextPage, err = pageOf(req, slices.Sorted(maps.Keys(all)), same, func(key string) *apiv1.Operator { return all[key] })
	return resp, err
}

func operatorMessage(o registration.OperatorRegistration) *apiv1.Operator {
	m := &apiv1.Operator{
		Id: o.Name, Tenant: string(o.Tenant), Role: string(o.Role), RegisteredAt: wire.Time(o.RegisteredAt), Hostname: o.Hostname,
		RevokedAt: wire.Time(o.RevokedAt), RevokedReason: o.RevokedReason,
	}
	if o.Revoked && o.RevokedAt.IsZero() { // marked by hand: when is unknown
		m.RevokedAt = wire.Time(o.RegisteredAt)
	}
	newest := o.Current
	if o.Pending != nil {
		newest = o.Pending
	}
	if newest != nil {
		m.NotAfter, m.Issuer = wire.Time(newest.NotAfter), newest.Issuer
	}
	return m
}

// RevokeOperator implements the RPC. Repeating it is harmless; the first reason stays.
func (o *Service) RevokeOperator(ctx context.Context, req *apiv1.RevokeOperatorRequest) (*apiv1.RevokeOperatorResponse, error) {
	c := callerOf(ctx)
	tenant := nstance.TenantID(req.GetTenant())
	if tenant == "" {
		tenant = c.Tenant
	}
	if err := validate.Name("tenant", tenant); err != nil {
		return nil, err
	}
	if err := storage.ValidateKey(layout.OperatorKey(tenant, req.GetId())); err != nil || req.GetId() == "" || strings.Contains(req.GetId(), "/") {
		return nil, nstance.FieldError("id", "use an id of ListOperators", "%.64q is not the name of an operator", req.GetId())
	}
	who, err := c.term.Records.Operator(ctx, tenant, req.GetId())
	if err != nil || req.GetDryRun() {
		return &apiv1.RevokeOperatorResponse{}, err
	}
	return &apiv1.RevokeOperatorResponse{}, c.term.revoke(ctx, c, who, wire.Text(req.GetReason()))
}

// revoke makes the revocation of an operator durable, and ends its streams and
// connections.
func (t *Term) revoke(ctx context.Context, by caller, who registration.OperatorRegistration, reason string) error {
	now, first := t.service.Now().UTC(), false
	_, err := t.Records.UpdateOperator(ctx, who.Tenant, who.Name, func(op *registration.OperatorRegistration) error {
		if first = !op.Revoked; first {
			op.Revoked, op.RevokedAt, op.RevokedReason = true, now, reason
		}
		return nil
	})
	if err != nil {
		return err
	}
	revoked := nstance.Errorf(nstance.Denied, "%s %s has been revoked", who.Role, who.Name)
	t.streams.end(func(id nstance.Identity) error {
		if id.Tenant != who.Tenant || id.Subject != who.Name {
			return nil
		}
		return revoked
	})
	t.End(nstance.Identity{Role: who.Role, Tenant: who.Tenant, Subject: who.Name}, revoked)
	if first {
		t.Journal(nstance.Event{
			Time: now, Type: eventtype.OperatorRevoked, Tenant: who.Tenant,
			Reason: fmt.Sprintf("%s %s by %s: %s", who.Role, who.Name, by.Subject, reason),
		})
	}
	return nil
}
