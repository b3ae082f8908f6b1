// Package registrar registers agents and operators during one term: it keeps what
// package registration needs in records, serves the registration API, and has
// instances replaced whose key two parties hold.
package registrar

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/generation"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/storage"
)

// A shard is what is needed of the reconciler.
type shard interface {
	Records() *records.Records
	Instance(id nstance.InstanceID) (reconcile.InstanceView, error)
	Observe(f nstance.Fact)
}

// Options configure Records. All fields are required.
type Options struct {
	Shard nstance.ShardID
	Epoch uint64
	Check func() error // fails when the term has ended
	Now   func() time.Time
	Log   *slog.Logger
}

// Records implements registration.Records: the registration part of instance
// records, and the records of operators.
type Records struct {
	Options
	Successors Successors

	store storage.Store
	shard shard
}

var _ registration.Records = (*Records)(nil)

// NewRecords returns the records of one term.
func NewRecords(store storage.Store, r shard, opts Options) *Records {
	return &Records{Options: opts, store: store, shard: r}
}

// Registration implements registration.Records.
func (r *Records) Registration(ctx context.Context, id nstance.InstanceID) (registration.Registration, error) {
	rec, ok := r.shard.Records().Get(id)
	if !ok {
		return registration.Registration{}, r.shard.Records().Missing(id)
	}
	return r.registrationOf(ctx, rec), r.confirmed(rec)
}

// RefreshRegistration implements registration.Records.
func (r *Records) RefreshRegistration(ctx context.Context, id nstance.InstanceID) (registration.Registration, error) {
	rec, err := r.shard.Records().Refresh(ctx, id)
	if err != nil {
		return registration.Registration{}, err
	}
	return r.registrationOf(ctx, rec), r.confirmed(rec)
}

// confirmed fails with Unavailable for a record of before storage was restored, until the
// provider has shown its machine: the instance may have been deleted since, and another party
// have its key.
func (r *Records) confirmed(rec records.Instance) error {
	if generation.Of(rec.Epoch) == generation.Of(r.Epoch) {
		return nil
	}
	if v, err := r.shard.Instance(rec.ID); err == nil && v.Machine.ProviderID != "" {
		return nil
	}
	return nstance.Errorf(nstance.Unavailable, "the provider has not shown the machine of %s since storage was restored", rec.ID)
}

// UpdateRegistration implements registration.Records.
func (r *Records) UpdateRegistration(ctx context.Context, id nstance.InstanceID, change func(*registration.Registration) error) (registration.Registration, error) {
	var machine nstance.Machine // as far as it is known
	if v, err := r.shard.Instance(id); err == nil {
		machine = v.Machine
	}
	rec, err := r.shard.Records().Update(ctx, id, func(rec *records.Instance) error {
		before := r.registrationOf(ctx, *rec)
		reg := before
		if err := change(&reg); err != nil {
			return err
		}
		if rec.MachineAsleep() && issues(before.Succession, reg.Succession) {
			return errAsleep
		}
		rec.RegisteredAt, rec.Addresses, rec.Hostname = reg.RegisteredAt, reg.Addresses, reg.Hostname
		rec.Current, rec.Pending = (*records.KeyRecord)(reg.Current), (*records.KeyRecord)(reg.Pending)
		if machine.ProviderID != "" {
			rec.ProviderID, rec.Zone = machine.ProviderID, machine.Zone
		}
		return nil
	})
	if err != nil {
		return registration.Registration{}, err
	}
	r.shard.Observe(nstance.Registered{ID: id})
	return r.registrationOf(ctx, rec), nil
}

var errAsleep error = &nstance.Error{Code: nstance.Unavailable, Msg: "the machine is parked, or about to be: renew once it has been woken"}

// CheckAwake fails with Unavailable while the machine of id is to sleep: a copy of its disk
// must not renew its identity. UpdateRegistration fails likewise; a caller that asks here
// first leaves the agent its rate of renewals.
func (r *Records) CheckAwake(id nstance.Identity) error {
	if rec, _ := r.shard.Records().Get(nstance.InstanceID(id.Subject)); rec.MachineAsleep() {
		return errAsleep
	}
	return nil
}

// issues reports whether a change adds a certificate.
func issues(before, after registration.Succession) bool {
	isNew := func(k *registration.KeyRecord) bool { return k != nil && k != before.Current && k != before.Pending }
	return isNew(after.Current) || isNew(after.Pending)
}

func (r *Records) registrationOf(ctx context.Context, rec records.Instance) registration.Registration {
	reg := registration.Registration{
		ID: rec.ID, Kind: r.kindOf(ctx, rec), Tenant: rec.Tenant, Group: rec.Group, OnDemand: rec.OnDemand,
		Deleting: rec.Deleting != nil, Addresses: rec.Addresses, Hostname: rec.Hostname, RegisteredAt: rec.RegisteredAt,
		Succession: registration.Succession{
			Current: (*registration.KeyRecord)(rec.Current), Pending: (*registration.KeyRecord)(rec.Pending),
			Open: rec.Reason == records.ReasonAdopted && rec.Current == nil,
		},
	}
	r.Successors.promote(string(rec.ID), &reg.Succession)
	return reg
}

// kindOf returns the kind of the definition that an instance was made from,
// which its nonce is checked against. It matters at the first registration only;
// the term that wrote the intent has the definition in memory. Where the
// definition cannot be read, the ID's prefix serves instead: the leader made it
// from the kind, and signed a nonce for this ID alone.
func (r *Records) kindOf(ctx context.Context, rec records.Instance) nstance.InstanceKind {
	if rec.Current == nil && rec.Definition != "" {
		if def, err := r.shard.Records().Definition(ctx, rec.Definition); err == nil {
			return def.Kind
		}
	}
	return rec.ID.Kind()
}

// A UsedNonce is what nonce/{jti} holds.
type UsedNonce struct {
	records.Header
	Operator registration.OperatorRegistration `json:"operator"`
}

// An OperatorRecord is what operator/{tenant}.{name}.json holds.
type OperatorRecord struct {
	records.Header
	Operator *registration.OperatorRegistration `json:"operator"`
}

// ConsumeNonce implements registration.Records.
func (r *Records) ConsumeNonce(ctx context.Context, jti string, op registration.OperatorRegistration) (registration.OperatorRegistration, error) {
	if err := r.Check(); err != nil {
		return op, err
	}
	store, key := r.store, layout.NonceKey(jti)
	data, err := json.Marshal(UsedNonce{Header: records.NewHeader(r.Epoch), Operator: op})
	if err != nil {
		return op, err
	}
	stored, err := records.PutOnce(ctx, store, key, data)
	if err != nil {
		return op, err
	}
	var used UsedNonce
	if err := json.Unmarshal(stored, &used); err != nil {
		return op, nstance.Errorf(nstance.Internal, "%s: %w", key, err)
	}
	op = used.Operator
	_, err = r.operator(op.Tenant, op.Name).Update(ctx, func(rec *OperatorRecord) error {
		if rec.Operator == nil {
			rec.Operator = &op
		}
		return nil
	})
	return op, err
}

// operator returns an operator's record. It carries no epoch: the record belongs to
// all shards, and epochs count within one shard.
func (r *Records) operator(tenant nstance.TenantID, name string) *records.Doc[OperatorRecord] {
	return records.NewDoc[OperatorRecord](r.store, layout.OperatorKey(tenant, name), &records.DocOptions{Check: r.Check})
}

// Operator implements registration.Records.
func (r *Records) Operator(ctx context.Context, tenant nstance.TenantID, name string) (registration.OperatorRegistration, error) {
	rec, err := r.operator(tenant, name).Load(ctx)
	if err == nil && rec.Operator == nil {
		err = nstance.Errorf(nstance.NotFound, "no operator %s in tenant %s", name, tenant)
	}
	if err != nil {
		return registration.OperatorRegistration{}, err
	}
	op := *rec.Operator
	r.Successors.promote(OperatorHolder(tenant, name), &op.Succession)
	return op, nil
}

// UpdateOperator implements registration.Records.
func (r *Records) UpdateOperator(ctx context.Context, tenant nstance.TenantID, name string, change func(*registration.OperatorRegistration) error) (registration.OperatorRegistration, error) {
	rec, err := r.operator(tenant, name).Update(ctx, func(rec *OperatorRecord) error {
		if rec.Operator == nil {
			return nstance.Errorf(nstance.NotFound, "no operator %s in tenant %s", name, tenant)
		}
		r.Successors.promote(OperatorHolder(tenant, name), &rec.Operator.Succession)
		return change(rec.Operator)
	})
	if err != nil {
		return registration.OperatorRegistration{}, err
	}
	return *rec.Operator, nil
}

// NonceEnds returns until when the object of a used nonce is needed.
func NonceEnds(data []byte) (time.Time, error) {
	var used UsedNonce
	err := json.Unmarshal(data, &used)
	return used.Operator.NonceExpiry, err
}

// OperatorEnds returns until when an operator's record is needed; zero: unknown.
func OperatorEnds(data []byte) (time.Time, error) {
	var rec OperatorRecord
	if err := json.Unmarshal(data, &rec); err != nil || rec.Operator == nil {
		return time.Time{}, errors.Join(err, errNoOperator)
	}
	return endOf(rec.Operator), nil
}

// endOf returns when an operator's certificates and nonce have all expired: until then the
// record is needed, revoked or not. Zero: unknown.
func endOf(o *registration.OperatorRegistration) time.Time {
	end := o.NonceExpiry
	if o.Current == nil || end.IsZero() {
		return time.Time{}
	}
	for _, c := range []*registration.KeyRecord{o.Current, o.Pending} {
		if c != nil && c.NotAfter.After(end) {
			end = c.NotAfter
		}
	}
	return end
}

var errNoOperator = nstance.Errorf(nstance.Invalid, "it is not the record of an operator")
