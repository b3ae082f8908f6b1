package server

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/storage"
)

// records lets the registrar see and change what is its own: the registration
// part of instance records, and the records of operators.
type records struct{ t *term }

// Registration implements registration.Records.
func (r records) Registration(_ context.Context, id nstance.InstanceID) (registration.Registration, error) {
	rec, ok := r.t.reconciler.Records().Get(id)
	if !ok {
		return registration.Registration{}, nstance.Errorf(nstance.NotFound, "no instance %s", id)
	}
	return registrationOf(rec), nil
}

// RefreshRegistration implements registration.Records.
func (r records) RefreshRegistration(ctx context.Context, id nstance.InstanceID) (registration.Registration, error) {
	rec, err := r.t.reconciler.Records().Refresh(ctx, id)
	if err != nil {
		return registration.Registration{}, err
	}
	return registrationOf(rec), nil
}

// UpdateRegistration implements registration.Records.
func (r records) UpdateRegistration(ctx context.Context, id nstance.InstanceID, change func(*registration.Registration) error) (registration.Registration, error) {
	handle := ""
	if v, err := r.t.reconciler.Instance(id); err == nil {
		handle = v.Machine.ProviderID
	}
	rec, err := r.t.reconciler.Records().Update(ctx, id, func(rec *storage.Instance) error {
		reg := registrationOf(*rec)
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
	return registrationOf(rec), nil
}

func registrationOf(rec storage.Instance) registration.Registration {
	return registration.Registration{
		ID: rec.ID, Kind: rec.ID.Kind(), Tenant: rec.Tenant, Group: rec.Group, OnDemand: rec.OnDemand,
		Deleting: rec.Deleting != nil, Addresses: rec.Addresses, Hostname: rec.Hostname, RegisteredAt: rec.RegisteredAt,
		Succession: registration.Succession{
			Current: (*registration.KeyRecord)(rec.Current), Pending: (*registration.KeyRecord)(rec.Pending),
		},
	}
}

// usedNonce is what nonce/{jti} holds.
type usedNonce struct {
	storage.Header
	Operator registration.OperatorRegistration `json:"operator"`
}

// operatorRecord is what operator/{tenant}.{name}.json holds.
type operatorRecord struct {
	Operator *registration.OperatorRegistration `json:"operator"`
}

// ConsumeNonce implements registration.Records.
func (r records) ConsumeNonce(ctx context.Context, jti string, op registration.OperatorRegistration) (registration.OperatorRegistration, error) {
	store, key := r.t.server.store, storage.NonceKey(jti)
	data, err := json.Marshal(usedNonce{Header: storage.NewHeader(r.t.granted.Epoch()), Operator: op})
	if err != nil {
		return op, err
	}
	if _, err = store.PutIfAbsent(ctx, key, data); err != nil {
		obj, gerr := store.Get(ctx, key) // whatever the answer was, what stands there counts
		if gerr != nil {
			return op, errors.Join(err, gerr)
		}
		var used usedNonce
		if err := json.Unmarshal(obj.Data, &used); err != nil {
			return op, nstance.Errorf(nstance.Internal, "%s: %w", key, err)
		}
		op = used.Operator
	}
	_, err = r.operator(op.Tenant, op.Name).Update(ctx, func(rec *operatorRecord) error {
		if rec.Operator == nil {
			rec.Operator = &op
		}
		return nil
	})
	return op, err
}

func (r records) operator(tenant nstance.TenantID, name string) *storage.Doc[operatorRecord] {
	return storage.NewDoc[operatorRecord](r.t.server.store, storage.OperatorKey(tenant, name), &storage.DocOptions{
		Epoch: r.t.granted.Epoch(), Check: r.t.granted.Err,
	})
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
	return *rec.Operator, nil
}

// UpdateOperator implements registration.Records.
func (r records) UpdateOperator(ctx context.Context, tenant nstance.TenantID, name string, change func(*registration.OperatorRegistration) error) (registration.OperatorRegistration, error) {
	rec, err := r.operator(tenant, name).Update(ctx, func(rec *operatorRecord) error {
		if rec.Operator == nil {
			return nstance.Errorf(nstance.NotFound, "no operator %s in tenant %s", name, tenant)
		}
		return change(rec.Operator)
	})
	if err != nil {
		return registration.OperatorRegistration{}, err
	}
	return *rec.Operator, nil
}
