package operators

import (
	"context"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
)

// Freeze implements the RPC.
func (*Service) Freeze(ctx context.Context, req *apiv1.FreezeRequest) (*apiv1.FreezeResponse, error) {
	c, resp := callerOf(ctx), &apiv1.FreezeResponse{}
	reason := c.because(req.GetReason())
	if req.GetGroup() != "" {
		_, was, err := c.command(req.GetTenant(), req.GetGroup(), req.GetDryRun(), func(key nstance.GroupKey) error {
			return c.term.Reconciler.Freeze(ctx, key, reason)
		})
		resp.Unchanged = was.FrozenAlone
		return resp, err
	}
	_, resp.Unchanged = c.term.Internals.Frozen()
	if err := wholeShard(req.GetTenant()); err != nil || req.GetDryRun() {
		return resp, err
	}
	return resp, c.term.Reconciler.FreezeShard(ctx, reason)
}

// Thaw implements the RPC.
func (*Service) Thaw(ctx context.Context, req *apiv1.ThawRequest) (*apiv1.ThawResponse, error) {
	c, resp := callerOf(ctx), &apiv1.ThawResponse{}
	if req.GetGroup() != "" {
		_, was, err := c.command(req.GetTenant(), req.GetGroup(), req.GetDryRun(), func(key nstance.GroupKey) error {
			err := c.term.Reconciler.Thaw(ctx, key, c.because(""))
			c.term.Agents.Thawed(key)
			return err
		})
		resp.Unchanged = !was.FrozenAlone
		return resp, err
	}
	_, frozen := c.term.Internals.Frozen()
	resp.Unchanged = !frozen
	if err := wholeShard(req.GetTenant()); err != nil || req.GetDryRun() {
		return resp, err
	}
	err := c.term.Reconciler.ThawShard(ctx, c.because(""))
	c.term.Agents.Thawed(nstance.GroupKey{})
	return resp, err
}

// wholeShard refuses a request that names a tenant and no group: it is not meant for
// the whole shard.
func wholeShard(tenant string) error {
	if tenant != "" {
		return nstance.FieldError("group", "name the group, or leave out the tenant for the whole shard", "is missing")
	}
	return nil
}
