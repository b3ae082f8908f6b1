package registrar

import (
	"context"
	"errors"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/registration"
)

// parallelReads is how many objects one call reads at a time.
const parallelReads = 16

// Operators reads the records of all operators and administrators. unreadable says,
// by key, why a damaged record cannot be read; any other error is the call's.
func (r *Records) Operators(ctx context.Context) (list []registration.OperatorRegistration, unreadable map[string]error, err error) {
	var keys []string
	for entry, err := range r.store.List(ctx, layout.OperatorPrefix, "") {
		if err != nil {
			return nil, nil, err
		}
		keys = append(keys, entry.Key)
	}
	found, damaged := make([]OperatorRecord, len(keys)), make([]error, len(keys))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallelReads)
	for i, key := range keys {
		g.Go(func() (err error) {
			if found[i], err = records.NewDoc[OperatorRecord](r.store, key, nil).Load(ctx); errors.Is(err, nstance.Invalid) {
				damaged[i], err = err, nil
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, nil, err
	}
	unreadable = map[string]error{}
	for i, key := range keys {
		switch op := found[i].Operator; {
		case damaged[i] != nil:
			unreadable[key] = damaged[i]
		case op != nil: // nil: deleted meanwhile
			r.Successors.promote(OperatorHolder(op.Tenant, op.Name), &op.Succession)
			list = append(list, *op)
		}
	}
	return list, unreadable, nil
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
			r.Log.Warn("use of a renewed certificate not recorded", "instance_id", rec.ID, "code", nstance.CodeOf(err), "err", err)
			return
		}
	}
	for _, holder := range r.Successors.Operators() {
		tenant, name, _ := strings.Cut(holder, "/")
		unchanged := func(*registration.OperatorRegistration) error { return nil }
		if _, err := r.UpdateOperator(ctx, nstance.TenantID(tenant), name, unchanged); err != nil {
			r.Log.Warn("use of a renewed certificate not recorded", "subject", name, "tenant", tenant, "code", nstance.CodeOf(err), "err", err)
		}
	}
}
