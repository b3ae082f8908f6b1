package server

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/server/internal/registrar"
	"github.com/nstance-go/nstance/storage"
)

// ListKeys implements the RPC.
func (o operatorService) ListKeys(ctx context.Context, _ *apiv1.ListKeysRequest) (*apiv1.ListKeysResponse, error) {
	t, resp := callerOf(ctx).term, &apiv1.ListKeysResponse{}
	if err := o.s.keys.Refresh(ctx); err != nil {
		return nil, err
	}
	for _, set := range []string{registration.Identity, registration.Workload, registration.Nonces} {
		resp.Keys = append(resp.Keys, t.keyMessages(set, o.s.keys.Ring.Set(set))...)
	}
	return resp, nil
}

// RotateKey implements the RPC.
func (o operatorService) RotateKey(ctx context.Context, req *apiv1.RotateKeyRequest) (*apiv1.RotateKeyResponse, error) {
	c := callerOf(ctx)
	if err := c.term.granted.Err(); err != nil {
		return nil, errTermEnded
	}
	r := registration.Rotation{Set: req.GetName(), Step: registration.Step(req.GetStep()), DryRun: req.GetDryRun()}
	switch {
	case !req.GetForce():
		r.Free = c.term.records.Unused(r.Set)
	case r.Step != registration.StepFinish:
		return nil, nstance.FieldError("force", "leave it out", "is for step finish, not %.20q", req.GetStep())
	}
	before := o.s.keys.Ring.Set(r.Set)
	set, err := o.s.keys.Ring.Rotate(ctx, r)
	o.s.keys.HandleChanges()
	if err != nil {
		return nil, err
	}
	if !r.DryRun && phasesOf(before) != phasesOf(set) {
		c.term.journal(nstance.Event{
			Time: o.s.opts.Now().UTC(), Type: nstance.EventKeysRotated, Tenant: c.Tenant,
			Reason: fmt.Sprintf("%s of the %s keys by %s: %s", r.Step, r.Set, c.Subject, phasesOf(set)),
		})
	}
	return &apiv1.RotateKeyResponse{Keys: c.term.keyMessages(r.Set, set)}, nil
}

// phasesOf says in one line how far the keys of a set are.
func phasesOf(s registration.KeySet) string {
	var out []string
	for _, k := range s.Keys {
		out = append(out, k.ID+" "+string(k.Phase))
	}
	return strings.Join(out, ", ")
}

func (t *term) keyMessages(set string, s registration.KeySet) []*apiv1.Key {
	var out []*apiv1.Key
	for _, k := range s.Keys {
		holders := t.records.InstancesOf(set, k)
		m := &apiv1.Key{
			Name: set, Id: k.ID, Phase: string(k.Phase), CreatedAt: wire.Time(k.CreatedAt), Since: wire.Time(k.Since),
			NotAfter: wire.Time(k.NotAfter), Holders: int32(holders.Count()),
		}
		if until, known := holders.End(); known {
			m.LastUseEnds = wire.Time(later(until, k.UsedUntil))
		}
		if k.Phase != registration.PhaseCurrent {
			m.NextStepAt = wire.Time(later(k.Since.Add(registration.Settle), k.UsedUntil))
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
func (operatorService) ListOperators(ctx context.Context, req *apiv1.ListOperatorsRequest) (*apiv1.ListOperatorsResponse, error) {
	list, err := callerOf(ctx).term.records.Operators(ctx)
	if err != nil {
		return nil, err
	}
	resp := &apiv1.ListOperatorsResponse{}
	resp.Operators, resp.NextPage, err = pageOf(req, list, func(o registrar.Operator) string { return o.Key }, operatorMessage)
	return resp, err
}

func operatorMessage(o registrar.Operator) *apiv1.Operator {
	if o.Err != nil {
		tenant, name, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(o.Key, storage.OperatorPrefix), ".json"), ".")
		return &apiv1.Operator{Id: name, Tenant: tenant, Error: o.Err.Error()}
	}
	m := &apiv1.Operator{
		Id: o.Name, Tenant: string(o.Tenant), Role: string(o.Role), RegisteredAt: wire.Time(o.RegisteredAt), Hostname: o.Hostname,
		RevokedAt: wire.Time(o.RevocationTime()), RevokedReason: o.RevokedReason,
	}
	if c := o.Latest(); c != nil {
		m.NotAfter, m.Issuer = wire.Time(c.NotAfter), c.Issuer
	}
	return m
}

// RevokeOperator implements the RPC. To repeat it is harmless; the first reason
// stays.
func (o operatorService) RevokeOperator(ctx context.Context, req *apiv1.RevokeOperatorRequest) (*apiv1.RevokeOperatorResponse, error) {
	c := callerOf(ctx)
	tenant := nstance.TenantID(req.GetTenant())
	if tenant == "" {
		tenant = c.Tenant
	}
	if err := tenant.Validate("tenant"); err != nil {
		return nil, err
	}
	if err := storage.ValidateKey(storage.OperatorKey(tenant, req.GetId())); err != nil || req.GetId() == "" || strings.Contains(req.GetId(), "/") {
		return nil, nstance.FieldError("id", "use an id of ListOperators", "%.64q is not the name of an operator", req.GetId())
	}
	who, err := c.term.records.Operator(ctx, tenant, req.GetId())
	if err != nil || req.GetDryRun() {
		return &apiv1.RevokeOperatorResponse{}, err
	}
	return &apiv1.RevokeOperatorResponse{}, c.term.revoke(ctx, c, who, wire.Text(req.GetReason()))
}

// revoke makes it durable that who is refused, and ends what runs for him.
func (t *term) revoke(ctx context.Context, by caller, who registration.OperatorRegistration, reason string) error {
	now, first := t.server.opts.Now().UTC(), false
	_, err := t.records.UpdateOperator(ctx, who.Tenant, who.Name, func(op *registration.OperatorRegistration) error {
		if first = !op.Revoked; first {
			op.Revoked, op.RevokedAt, op.RevokedReason = true, now, reason
		}
		return nil
	})
	if err != nil {
		return err
	}
	t.streams.end(func(id nstance.Identity) error {
		if id.Tenant != who.Tenant || id.Subject != who.Name {
			return nil
		}
		return nstance.Errorf(nstance.Denied, "%s %s has been revoked", who.Role, who.Name)
	})
	if first {
		t.journal(nstance.Event{
			Time: now, Type: nstance.EventOperatorRevoked, Tenant: who.Tenant,
			Reason: fmt.Sprintf("%s %s by %s: %s", who.Role, who.Name, by.Subject, reason),
		})
	}
	return nil
}
