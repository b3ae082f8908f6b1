package server

import (
	"context"
	"encoding/json"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/storage"
)

// records lets the registrar see and change what is its own: the registration
// part of instance records, and the records of operators.
type records struct{ t *term }

// Registration implements registration.Records.
func (r records) Registration(ctx context.Context, id nstance.InstanceID) (registration.Registration, error) {
	rec, ok := r.t.reconciler.Records().Get(id)
	if !ok {
		return registration.Registration{}, nstance.Errorf(nstance.NotFound, "no instance %s", id)
	}
	return r.registrationOf(ctx, rec), nil
}

// RefreshRegistration implements registration.Records.
func (r records) RefreshRegistration(ctx context.Context, id nstance.InstanceID) (registration.Registration, error) {
	rec, err := r.t.reconciler.Records().Refresh(ctx, id)
	if err != nil {
		return registration.Registration{}, err
	}
	return r.registrationOf(ctx, rec), nil
}

// UpdateRegistration implements registration.Records.
func (r records) UpdateRegistration(ctx context.Context, id nstance.InstanceID, change func(*registration.Registration) error) (registration.Registration, error) {
	handle := ""
	if v, err := r.t.reconciler.Instance(id); err == nil {
		handle = v.Machine.ProviderID
	}
	rec, err := r.t.reconciler.Records().Update(ctx, id, func(rec *storage.Instance) error {
		reg := r.registrationOf(ctx, *rec)
		if err := change(&reg); err != nil {
			return err
		}
		rec.RegisteredAt, rec.Addresses, rec.Hostname = reg.RegisteredAt, reg.Addresses, reg.Hostname
		rec.Current, rec.Pending = (*storage.KeyRecord)(reg.Current), (*storage.KeyRecord)(reg.Pending)
		if handle != "" {
			rec.ProviderID = handle
		}
		return nil
	})
	if err != nil {
		return registration.Registration{}, err
	}
	r.t.reconciler.Observe(nstance.Registered{ID: id})
	return r.registrationOf(ctx, rec), nil
}

func (r records) registrationOf(ctx context.Context, rec storage.Instance) registration.Registration {
	reg := registration.Registration{
		ID: rec.ID, Kind: r.kindOf(ctx, rec), Tenant: rec.Tenant, Group: rec.Group, OnDemand: rec.OnDemand,
		Deleting: rec.Deleting != nil, Addresses: rec.Addresses, Hostname: rec.Hostname, RegisteredAt: rec.RegisteredAt,
		Succession: registration.Succession{
			Current: (*registration.KeyRecord)(rec.Current), Pending: (*registration.KeyRecord)(rec.Pending),
			Open: rec.Reason == string(reconcile.ReasonAdopted) && rec.Current == nil,
		},
	}
	r.t.used.promote(string(rec.ID), &reg.Succession)
	return reg
}

// kindOf returns the kind of the definition that an instance was made from,
// which its nonce is checked against. It matters at the first registration
// only, for which the term that wrote the intent has the definition in memory.
// Where the definition cannot be read the ID's own prefix stands in for it: the
// leader chose one from the other, and signed a nonce for this ID alone.
func (r records) kindOf(ctx context.Context, rec storage.Instance) nstance.Kind {
	if rec.Current == nil && rec.Definition != "" {
		if def, err := r.t.reconciler.Records().Definition(ctx, rec.Definition); err == nil {
			return def.Kind
		}
	}
	return rec.ID.Kind()
}

// usedNonce is what nonce/{jti} holds.
type usedNonce struct {
	storage.Header
	Operator registration.OperatorRegistration `json:"operator"`
}

// operatorRecord is what operator/{tenant}.{name}.json holds.
type operatorRecord struct {
	storage.Header
	Operator *registration.OperatorRegistration `json:"operator"`
}

// ConsumeNonce implements registration.Records.
func (r records) ConsumeNonce(ctx context.Context, jti string, op registration.OperatorRegistration) (registration.OperatorRegistration, error) {
	if err := r.t.granted.Err(); err != nil {
		return op, err
	}
	store, key := r.t.server.store, storage.NonceKey(jti)
	data, err := json.Marshal(usedNonce{Header: storage.NewHeader(r.t.granted.Epoch()), Operator: op})
	if err != nil {
		return op, err
	}
	standing, err := storage.PutOnce(ctx, store, key, data)
	if err != nil {
		return op, err
	}
	var used usedNonce
	if err := json.Unmarshal(standing, &used); err != nil {
		return op, nstance.Errorf(nstance.Internal, "%s: %w", key, err)
	}
	op = used.Operator
	_, err = r.operator(op.Tenant, op.Name).Update(ctx, func(rec *operatorRecord) error {
		if rec.Operator == nil {
			rec.Operator = &op
		}
		return nil
	})
	return op, err
}

// operator returns an operator's record. It belongs to all shards, and epochs
// count within one: there is none to compare with.
func (r records) operator(tenant nstance.TenantID, name string) *storage.Doc[operatorRecord] {
	return storage.NewDoc[operatorRecord](r.t.server.store, storage.OperatorKey(tenant, name), &storage.DocOptions{Check: r.t.granted.Err})
}

// Operator implements registration.Records.
func (r records) Operator(ctx context.Context, tenant nstance.TenantID, name string) (registration.OperatorRegistration, error) {
	rec, err := r.operator(tenant, name).Load(ctx)
	if err == nil && rec.Operator == nil {
		err = nstance.Errorf(nstance.NotFound, "no operator %s in tenant %s", name, tenant)
	}
	if err != nil {
		return registration.OperatorRegistration{}, err
	}
	op := *rec.Operator
	r.t.used.promote(operatorKey(tenant, name), &op.Succession)
	return op, nil
}

// UpdateOperator implements registration.Records.
func (r records) UpdateOperator(ctx context.Context, tenant nstance.TenantID, name string, change func(*registration.OperatorRegistration) error) (registration.OperatorRegistration, error) {
	rec, err := r.operator(tenant, name).Update(ctx, func(rec *operatorRecord) error {
		if rec.Operator == nil {
			return nstance.Errorf(nstance.NotFound, "no operator %s in tenant %s", name, tenant)
		}
		r.t.used.promote(operatorKey(tenant, name), &rec.Operator.Succession)
		return change(rec.Operator)
	})
	if err != nil {
		return registration.OperatorRegistration{}, err
	}
	return *rec.Operator, nil
}
