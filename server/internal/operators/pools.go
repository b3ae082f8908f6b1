package operators

import (
	"context"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/reconcile"
)

// maxImpacts is how many groups one answer names.
const maxImpacts = 500

// AvoidPool implements the RPC.
func (o *Service) AvoidPool(ctx context.Context, req *apiv1.AvoidPoolRequest) (*apiv1.AvoidPoolResponse, error) {
	c := callerOf(ctx)
	want := reconcile.AvoidedPool{
		Pool: poolOf(req.GetPool()), Reason: clip.Text(req.GetReason(), longestReason), By: c.Subject, Drain: req.GetDrain(),
		Until: o.Now().Add(req.GetDuration().AsDuration()),
	}
	outlook := c.term.Reconciler.PoolOutlook(want.Pool)
	stands, changed, err := c.term.Reconciler.AvoidPool(ctx, want, req.GetDryRun())
	if err != nil {
		return nil, err
	}
	resp := impactMessages(outlook)
	resp.Avoided, resp.Unchanged = avoidedMessage(stands), !changed
	return resp, nil
}

// ReleasePool implements the RPC.
func (*Service) ReleasePool(ctx context.Context, req *apiv1.ReleasePoolRequest) (*apiv1.ReleasePoolResponse, error) {
	c := callerOf(ctx)
	released, err := c.term.Reconciler.ReleasePool(ctx, poolOf(req.GetPool()), c.because(""), req.GetDryRun())
	return &apiv1.ReleasePoolResponse{Unchanged: !released}, err
}

// ListAvoidedPools implements the RPC.
func (*Service) ListAvoidedPools(ctx context.Context, _ *apiv1.ListAvoidedPoolsRequest) (*apiv1.ListAvoidedPoolsResponse, error) {
	resp := &apiv1.ListAvoidedPoolsResponse{}
	for _, p := range callerOf(ctx).term.Reconciler.AvoidedPools() {
		resp.Pools = append(resp.Pools, avoidedMessage(p))
	}
	return resp, nil
}

func poolOf(p *apiv1.Pool) reconcile.Pool {
	return reconcile.Pool{Zone: p.GetZone(), InstanceType: p.GetInstanceType(), Market: nstance.MarketType(p.GetMarket())}
}

func avoidedMessage(p reconcile.AvoidedPool) *apiv1.AvoidedPool {
	return &apiv1.AvoidedPool{
		Pool:  &apiv1.Pool{Zone: p.Zone, InstanceType: p.InstanceType, Market: string(p.Market)},
		Since: wire.Time(p.Since), Until: wire.Time(p.Until), Reason: p.Reason, By: p.By, Drain: p.Drain, Cloud: p.Cloud,
	}
}

// impactMessages returns an answer with as many groups as it may name.
func impactMessages(all reconcile.PoolOutlook) *apiv1.AvoidPoolResponse {
	resp := &apiv1.AvoidPoolResponse{ZoneUnknown: all.ZoneUnknown, GroupsOmitted: int32(max(0, len(all.Groups)-maxImpacts))}
	for _, i := range all.Groups[:min(maxImpacts, len(all.Groups))] {
		m := &apiv1.PoolImpact{Tenant: string(i.Key.Tenant), Group: string(i.Key.Group), Left: int32(i.Left), Members: int32(i.Members), Replaced: int32(i.Replaced)}
		for _, s := range i.Lost {
			m.Lost = append(m.Lost, &apiv1.ShapePlan{InstanceType: s.InstanceType, Subnet: s.Subnet, Market: string(s.Market)})
		}
		resp.Groups = append(resp.Groups, m)
	}
	return resp
}
