package operators

import (
	"context"
	"slices"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/reconcile"
)

// ListOrphans implements the RPC.
func (*Service) ListOrphans(ctx context.Context, req *apiv1.ListOrphansRequest) (resp *apiv1.ListOrphansResponse, err error) {
	resp = &apiv1.ListOrphansResponse{}
	id := func(o reconcile.OrphanView) string { return string(o.Machine.ID) }
	resp.Orphans, resp.NextPage, err = pageOf(req, callerOf(ctx).term.Reconciler.Orphans(), id, orphanMessage)
	return resp, err
}

// AdoptOrphan implements the RPC.
func (*Service) AdoptOrphan(ctx context.Context, req *apiv1.AdoptOrphanRequest) (*apiv1.AdoptOrphanResponse, error) {
	c := callerOf(ctx)
	o, err := c.orphan(req.GetId())
	if err != nil {
		return nil, err
	}
	if !req.GetDryRun() {
		err = c.term.Reconciler.AdoptOrphan(ctx, o.Machine.ID, c.because(""))
	}
	return &apiv1.AdoptOrphanResponse{Orphan: orphanMessage(o)}, err
}

// DeleteOrphan implements the RPC.
func (*Service) DeleteOrphan(ctx context.Context, req *apiv1.DeleteOrphanRequest) (*apiv1.DeleteOrphanResponse, error) {
	c := callerOf(ctx)
	o, err := c.orphan(req.GetId())
	if err != nil {
		return nil, err
	}
	if !req.GetDryRun() {
		err = c.term.Reconciler.DeleteOrphan(ctx, o.Machine.ID, c.because(""))
	}
	return &apiv1.DeleteOrphanResponse{Orphan: orphanMessage(o)}, err
}

func (c caller) orphan(id string) (reconcile.OrphanView, error) {
	parsed, err := nstance.ParseInstanceID(id)
	if err != nil {
		return reconcile.OrphanView{}, err
	}
	all := c.term.Reconciler.Orphans()
	i := slices.IndexFunc(all, func(o reconcile.OrphanView) bool { return o.Machine.ID == parsed })
	if i < 0 {
		return reconcile.OrphanView{}, nstance.Errorf(nstance.NotFound, "no machine without a record is %s", parsed)
	}
	return all[i], nil
}

func orphanMessage(o reconcile.OrphanView) *apiv1.Orphan {
	m := o.Machine
	return &apiv1.Orphan{
		Id: string(m.ID), Tenant: string(m.Owner.Tenant), Group: string(m.Group), ProviderId: m.ProviderID, Status: string(m.Status),
		InstanceType: m.InstanceType, Market: string(m.Market), Addresses: wire.Addresses(m.Addresses),
		CreatedAt: wire.Time(m.CreatedAt), SeenAt: wire.Time(o.Since), Spared: o.Spared,
	}
}
