package reconcile

import (
	"context"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/validate"
)

// Orphans returns the machines with our marks that have no record, sorted by ID.
func (r *Admin) Orphans() []OrphanView {
	r.mu.Lock()
	defer r.mu.Unlock()
	shard := r.orphanShard()
	out := []OrphanView{}
	for _, o := range r.orphans.All() {
		out = append(out, r.orphanView(o, shard))
	}
	return out
}

// orphan returns one of them, or NotFound.
func (r *Admin) orphan(id nstance.InstanceID) (OrphanView, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o, ok := r.orphans.Get(id)
	if !ok {
		return OrphanView{}, nstance.Errorf(nstance.NotFound, "no machine without a record is %s", id)
	}
	return r.orphanView(o, r.orphanShard()), nil
}

// DeleteOrphan deletes a machine without a record on request, whatever the
// rule says: its marks, and that it has no record, are checked again all the same. It returns once the deletion is durable. Fails with
// NotFound when there is no such orphan, Conflict when it has a record after
// all, is another machine by now, or a freeze forbids it.
func (r *Admin) DeleteOrphan(ctx context.Context, id nstance.InstanceID, reason string) error {
	return r.withOrphan(ctx, id, func(mach nstance.Machine) error {
		return r.deleteOrphan(ctx, mach, nstance.Cause{Kind: nstance.CauseRequest, Message: reason})
	})
}

// AdoptOrphan makes a machine without a record a member of the group that its
// mark names, and returns once its record is durable. What it was made
// from is unknown, which is no drift; it is taken for registered, with whatever
// certificate its agent shows first, and judged like any member that this term
// has not heard of yet. The reason is for the journal. Fails like DeleteOrphan.
func (r *Admin) AdoptOrphan(ctx context.Context, id nstance.InstanceID, reason string) error {
	var m *member
	err := r.withOrphan(ctx, id, func(listed nstance.Machine) error {
		mach, err := r.lookAtOrphan(ctx, listed)
		if err != nil {
			return err
		}
		rec := r.recordOf(mach, records.ReasonAdopted)
		rec.RegisteredAt = latest(rec.CreatedAt, mach.CreatedAt.UTC())
		m, err = r.writeOrphanRecord(ctx, mach, rec)
		return err
	})
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.publish(m, nstance.Event{Type: eventtype.OrphanAdopted, Reason: "its record was made from its marks" + withMessage(reason)})
	return nil
}

// withOrphan runs do with a machine of which storage, read again, holds no record.
func (r *Admin) withOrphan(ctx context.Context, id nstance.InstanceID, do func(nstance.Machine) error) error {
	known, err := r.orphan(id)
	if err == nil {
		err = r.internals().Thawed(nstance.GroupKey{Tenant: known.Machine.Owner.Tenant, Group: known.Machine.Group})
	}
	if err != nil {
		return err
	}
	if err := r.acquireOrphans(ctx); err != nil {
		return err
	}
	defer r.releaseOrphans()
	if err := r.readRecordsAgain(ctx); err != nil {
		return err
	}
	o, err := r.orphan(id)
	if err != nil {
		return nstance.Errorf(nstance.Conflict, "%s has a record by now: it is no orphan", id)
	}
	if err := validate.Name("tenant", o.Machine.Owner.Tenant); err != nil {
		return nstance.Errorf(nstance.Invalid, "the marks of machine %s name no tenant; delete it at the provider: %w", o.Machine.ProviderID, err)
	}
	return do(o.Machine)
}
