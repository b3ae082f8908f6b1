package registrar

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/storage"
)

// parallelReads is how many objects one call reads at a time.
const parallelReads = 16

// An Operator is the record of an operator or administrator, or why it cannot be
// read.
type Operator struct {
	registration.OperatorRegistration
	Key string
	Err error
}

// Latest returns the newest certificate of the operator.
func (o Operator) Latest() *registration.KeyRecord {
	if o.Pending != nil {
		return o.Pending
	}
	return o.Current
}

// RevocationTime returns when the operator was revoked, zero if it was not. Where
// the record was marked by hand that is unknown, and the time of its registration
// is returned.
func (o Operator) RevocationTime() time.Time {
	if o.Revoked && o.RevokedAt.IsZero() {
		return o.RegisteredAt
	}
	return o.RevokedAt
}

// Operators reads the records of all operators and administrators, in the order
// of their keys.
func (r *Records) Operators(ctx context.Context) ([]Operator, error) {
	var list []Operator
	for entry, err := range r.store.List(ctx, storage.OperatorPrefix, "") {
		if err != nil {
			return nil, err
		}
		list = append(list, Operator{Key: entry.Key})
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallelReads)
	for i := range list {
		g.Go(func() (err error) {
			list[i], err = r.readOperator(ctx, list[i].Key)
			return err
		})
	}
	err := g.Wait()
	list = slices.DeleteFunc(list, func(o Operator) bool { return o.Key == "" })
	slices.SortFunc(list, func(a, b Operator) int { return strings.Compare(a.Key, b.Key) })
	return list, err
}

// readOperator returns the record under key: without a key if it was deleted
// meanwhile, with an error if it is damaged. Any other error is the call's.
func (r *Records) readOperator(ctx context.Context, key string) (Operator, error) {
	rec, err := storage.NewDoc[OperatorRecord](r.store, key, nil).Load(ctx)
	switch {
	case errors.Is(err, nstance.Invalid):
		return Operator{Key: key, Err: err}, nil
	case err != nil:
		return Operator{}, err
	case rec.Operator == nil:
		return Operator{}, nil
	}
	r.Successors.promote(OperatorHolder(rec.Operator.Tenant, rec.Operator.Name), &rec.Operator.Succession)
	return Operator{OperatorRegistration: *rec.Operator, Key: key}, nil
}

// SettleSuccessors makes durable which renewed certificates have been used. That
// normally waits for the record's next write; during a rotation the servers of
// other shards learn from it that no holder needs the old key. It stops at the
// first error of an instance.
func (r *Records) SettleSuccessors(ctx context.Context) {
	for _, rec := range r.shard.Records().All() {
		if rec.Pending == nil || !r.Successors.Used(string(rec.ID), rec.Pending.Serial) {
			continue
		}
		unchanged := func(*registration.Registration) error { return nil } // but for the promotion
		if _, err := r.UpdateRegistration(ctx, rec.ID, unchanged); err != nil {
			r.Log.Warn("renewal not settled", "instance_id", rec.ID, "code", nstance.CodeOf(err), "err", err)
			return
		}
	}
	for _, holder := range r.Successors.Operators() {
		tenant, name, _ := strings.Cut(holder, "/")
		unchanged := func(*registration.OperatorRegistration) error { return nil }
		if _, err := r.UpdateOperator(ctx, nstance.TenantID(tenant), name, unchanged); err != nil {
			r.Log.Warn("renewal not settled", "subject", name, "tenant", tenant, "code", nstance.CodeOf(err), "err", err)
		}
	}
}
