package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/storage"
)

// ListKeys implements the RPC.
func (o operatorService) ListKeys(ctx context.Context, _ *apiv1.ListKeysRequest) (*apiv1.ListKeysResponse, error) {
	t, resp := callerOf(ctx).term, &apiv1.ListKeysResponse{}
	if err := o.s.refreshKeys(ctx); err != nil {
		return nil, err
	}
	for _, set := range []string{registration.Identity, registration.Workload, registration.Nonces} {
		resp.Keys = append(resp.Keys, t.keyMessages(set, o.s.ring.Set(set))...)
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
		r.Free = c.term.free(r.Set)
	case r.Step != registration.StepFinish:
		return nil, nstance.FieldError("force", "leave it out", "is for step finish, not %.20q", req.GetStep())
	}
	before := o.s.ring.Set(r.Set)
	set, err := o.s.ring.Rotate(ctx, r)
	o.s.followKeys()
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
		var c census
		t.instances(set, k, &c)
		m := &apiv1.Key{
			Name: set, Id: k.ID, Phase: string(k.Phase), CreatedAt: wire.Time(k.CreatedAt), Since: wire.Time(k.Since),
			NotAfter: wire.Time(k.NotAfter), Holders: int32(c.count),
		}
		if until := later(c.until, k.UsedUntil); !c.open {
			m.LastUseEnds = wire.Time(until)
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
	list, err := callerOf(ctx).term.listOperators(ctx)
	if err != nil {
		return nil, err
	}
	resp := &apiv1.ListOperatorsResponse{}
	slices.SortFunc(list, func(a, b listedOperator) int { return strings.Compare(a.key, b.key) })
	resp.Operators, resp.NextPage, err = pageOf(req, list, func(o listedOperator) string { return o.key }, operatorMessage)
	return resp, err
}

func operatorMessage(o listedOperator) *apiv1.Operator {
	if o.err != nil {
		tenant, name, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(o.key, storage.OperatorPrefix), ".json"), ".")
		return &apiv1.Operator{Id: name, Tenant: tenant, Error: o.err.Error()}
	}
	m := &apiv1.Operator{
		Id: o.Name, Tenant: string(o.Tenant), Role: string(o.Role), RegisteredAt: wire.Time(o.RegisteredAt), Hostname: o.Hostname,
		RevokedAt: wire.Time(o.revokedAt()), RevokedReason: o.RevokedReason,
	}
	if c := o.latest(); c != nil {
		m.NotAfter, m.Issuer = wire.Time(c.NotAfter), c.Issuer
	}
	return m
}

// revokedAt returns when the operator was revoked. For one whose record was
// marked by hand that is not known, and its registration stands in.
func (o listedOperator) revokedAt() time.Time {
	if o.Revoked && o.RevokedAt.IsZero() {
		return o.RegisteredAt
	}
	return o.RevokedAt
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
	who, err := records{c.term}.Operator(ctx, tenant, req.GetId())
	if err != nil || req.GetDryRun() {
		return &apiv1.RevokeOperatorResponse{}, err
	}
	return &apiv1.RevokeOperatorResponse{}, c.term.revoke(ctx, c, who, wire.Text(req.GetReason()))
}

// revoke makes it durable that who is refused, and ends what runs for him.
func (t *term) revoke(ctx context.Context, by caller, who registration.OperatorRegistration, reason string) error {
	now, first := t.server.opts.Now().UTC(), false
	_, err := records{t}.UpdateOperator(ctx, who.Tenant, who.Name, func(op *registration.OperatorRegistration) error {
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
