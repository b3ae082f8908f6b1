package operators

import (
	"cmp"
	"context"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/attention"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// GetShardStatus implements the RPC.
func (o *Service) GetShardStatus(ctx context.Context, _ *apiv1.GetShardStatusRequest) (*apiv1.GetShardStatusResponse, error) {
	c := callerOf(ctx)
	resp := &apiv1.GetShardStatusResponse{
		Cluster: string(o.Cluster), Shard: string(o.Shard), Leader: true,
		Epoch: c.term.Lease.Epoch(), AgentsConnected: int32(c.term.Agents.CountVisible(c.sees)), Version: o.Version,
		TermStartedAt: wire.Time(c.term.Began), LeaderAddress: o.LeaderAddress(), Standbys: o.Standbys(),
	}
	for _, g := range c.term.Reconciler.Groups() {
		if c.sees(g.Key.Tenant) {
			resp.Groups++
			resp.Instances += int32(g.Ready + g.Booting + g.Leaving + g.OnDemand)
		}
	}
	if f, frozen := c.term.Internals.Frozen(); frozen {
		resp.Frozen, resp.FrozenAt = cmp.Or(f.Reason, "no reason was given"), wire.Time(f.Since)
		resp.Holds = append(resp.Holds, holdMessage(plan.Hold{Kind: plan.HoldFrozen, Reason: resp.GetFrozen()}, f.Since))
	}
	for _, h := range c.term.Reconciler.Holds() {
		resp.Holds = append(resp.Holds, holdMessage(h.Hold, h.Since))
	}
	list := c.term.Attention()
	addAttention(resp, c, list)
	if c.Role == nstance.RoleAdmin {
		resp.Problems = fitProblems(attention.Problems(attention.Plain(list)))
	}
	return resp, nil
}

// VisibleToAll reports whether operators of every tenant may see an entry: it concerns
// the whole shard, and names none of its settings, machines or tenants but what an
// administrator has avoided.
func VisibleToAll(a reconcile.Attention) bool {
	kind := plan.HoldKind(a.Kind)
	return a.Tenant == "" && (kind == plan.HoldFrozen || kind == plan.HoldClock || kind == plan.HoldAvoided)
}

// Bounds on one answer.
const (
	maxAttention = 500
	maxWhy       = 1 << 10 // bytes
)

// addAttention adds what a caller may see, and how much more there is than one answer
// holds.
func addAttention(resp *apiv1.GetShardStatusResponse, c caller, list []attention.Entry) {
	for _, a := range list {
		if c.Role != nstance.RoleAdmin && !VisibleToAll(a.Attention) && (a.Tenant == "" || !c.sees(a.Tenant)) {
			continue
		}
		if a.Acknowledged != nil {
			resp.AttentionAcknowledged++
		}
		if len(resp.GetAttention()) == maxAttention {
			resp.AttentionOmitted++
			continue
		}
		m := &apiv1.Attention{
			Kind: string(a.Kind), Subject: a.Subject, Tenant: string(a.Tenant), Group: string(a.Group), Since: wire.Time(a.Since),
			Until: wire.Time(a.Until), Why: clip.Text(a.Why, maxWhy), Remedy: clip.Text(a.Remedy, maxWhy),
		}
		if a.Acknowledged != nil {
			m.Acknowledged = acknowledgementMessage(*a.Acknowledged)
		}
		resp.Attention = append(resp.Attention, m)
	}
}
