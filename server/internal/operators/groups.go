package operators

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/validate"
	"github.com/nstance-go/nstance/reconcile"
)

// ListGroups implements the RPC.
func (*Service) ListGroups(ctx context.Context, req *apiv1.ListGroupsRequest) (*apiv1.ListGroupsResponse, error) {
	c, resp := callerOf(ctx), &apiv1.ListGroupsResponse{}
	if err := c.term.Groups.Await(ctx); err != nil {
		return nil, err
	}
	keys := slices.DeleteFunc(c.term.Internals.GroupKeys(), func(key nstance.GroupKey) bool { return !c.sees(key.Tenant) })
	var err error
	resp.Groups, resp.NextPage, err = pageOf(req, keys, nstance.GroupKey.String, func(key nstance.GroupKey) *apiv1.Group {
		g, err := c.term.Reconciler.Group(key)
		if err != nil { // deleted meanwhile
			return nil
		}
		return c.term.groupMessage(g)
	})
	return resp, err
}

// groupMessage returns a group, with what is known only from its overlay.
func (t *Term) groupMessage(g reconcile.GroupView) *apiv1.Group {
	m := groupMessage(g)
	m.HasOverlay = t.Groups.Overlaid(g.Key)
	return m
}

// groupKey returns the key of a group that the caller may name, whether it exists or
// not.
func (c caller) groupKey(tenant, group string) (nstance.GroupKey, error) {
	key := nstance.GroupKey{Tenant: nstance.TenantID(tenant), Group: nstance.GroupID(group)}
	if key.Tenant == "" {
		key.Tenant = c.Tenant
	}
	if err := validate.Name("group", key.Group); err != nil {
		return key, err
	}
	if !c.sees(key.Tenant) {
		return key, nstance.Errorf(nstance.NotFound, "no group %s", key.Group)
	}
	return key, validate.Name("tenant", key.Tenant)
}

// changer returns the caller as one who changes groups of its tenant, for an owner; empty:
// for none in particular.
func (c caller) changer(owner string) config.Changer {
	if c.Role == nstance.RoleAdmin {
		return config.Changer{Subject: c.Subject, Owner: owner, AnyOwner: true}
	}
	conf := c.service.Config()
	budget := conf.Budget(c.Tenant)
	return config.Changer{Subject: c.Subject, Allowance: conf.Allowance(c.Tenant), Budget: &budget, Owner: owner}
}

// described returns a group as it is, or for a dry run as it would be.
func (c caller) described(spec nstance.Group, dryRun bool) *apiv1.Group {
	v, err := c.term.Reconciler.Group(spec.Key)
	if err == nil && !dryRun {
		return c.term.groupMessage(v)
	}
	v.Group, v.Hash, v.RuntimeHash = spec, "", "" // with its present members
	v.Holds = c.term.Groups.PreviewHolds(spec, v.Holds)
	m := groupMessage(v)
	m.Removing = spec.Removing
	return m
}

// CreateGroup implements the RPC.
func (*Service) CreateGroup(ctx context.Context, req *apiv1.CreateGroupRequest) (*apiv1.CreateGroupResponse, error) {
	c := callerOf(ctx)
	key, err := c.groupKey(req.GetTenant(), req.GetGroup())
	if err != nil {
		return nil, err
	}
	o := config.Override{
		Size: sizeOf(req.Size), Template: config.TemplateName(req.GetTemplate()), InstanceTypes: req.GetInstanceTypes(),
		SubnetPool: config.PoolName(req.GetSubnetPool()), Vars: req.GetVars(), LoadBalancers: req.GetLoadBalancers(),
		DrainTimeout: spanOf(req.GetDrainTimeout()), Rollout: paceOf(req.GetRollout()), Market: purchaseOf(req.GetMarket()),
		Spread: dispersalOf(req.GetSpread()), Order: nstance.ShapeOrder(req.GetOrder()), WarmPool: reserveOf(req.GetWarmPool()), OnReclaim: nstance.ReclaimAction(req.GetOnReclaim()),
		OnRebalance: nstance.NoticeAction(req.GetOnRebalance()), OnMaintenance: nstance.NoticeAction(req.GetOnMaintenance()),
		OnDrainTimeout: nstance.DrainTimeoutAction(req.GetOnDrainTimeout()),
	}
	if req.GetProtect() {
		o.Protect = &req.Protect
	}
	if o.Args, err = config.ParseArgs(json.RawMessage(req.GetArgs())); err != nil {
		return nil, err
	}
	spec, err := c.withBootstrapData(ctx, req.GetBootstrapData(), &o, req.GetDryRun(), func(dryRun bool) (nstance.Group, error) {
		return c.term.Groups.Create(ctx, c.changer(req.GetOwner()), key, o, dryRun)
	})
	if err != nil {
		return nil, err
	}
	return &apiv1.CreateGroupResponse{Group: c.described(spec, req.GetDryRun())}, nil
}

// UpdateGroup implements the RPC.
func (*Service) UpdateGroup(ctx context.Context, req *apiv1.UpdateGroupRequest) (*apiv1.UpdateGroupResponse, error) {
	c := callerOf(ctx)
	spec, unchanged, err := c.updateGroup(ctx, req)
	if err != nil {
		return nil, err
	}
	return &apiv1.UpdateGroupResponse{Group: c.described(spec, req.GetDryRun()), Unchanged: unchanged}, nil
}

// updateGroup changes a group, or only checks that, and returns its new definition and
// whether it is unchanged.
func (c caller) updateGroup(ctx context.Context, req *apiv1.UpdateGroupRequest) (spec nstance.Group, unchanged bool, err error) {
	key, err := c.groupKey(req.GetTenant(), req.GetGroup())
	if err != nil {
		return spec, false, err
	}
	o, err := overrideOf(req)
	if err != nil {
		return spec, false, err
	}
	who := c.changer(req.GetOwner())
	who.Release = req.GetRelease()
	update := func(dryRun bool) (spec nstance.Group, err error) {
		spec, unchanged, err = c.term.Groups.Update(ctx, who, key, o, dryRun)
		return spec, err
	}
	spec, err = c.withBootstrapData(ctx, req.GetBootstrapData(), &o, req.GetDryRun(), func(dryRun bool) (nstance.Group, error) {
		if named := req.GetRemoveFirst(); len(named) > 0 && !dryRun {
			if spec, err := update(true); err != nil { // nothing is named for a change that is refused
				return spec, err
			}
			if err := c.removeFirst(key, named); err != nil {
				return spec, err
			}
		}
		return update(dryRun)
	})
	return spec, unchanged, err
}

// withBootstrapData makes a change of a group that has bootstrap data. It is stored
// before the group names it, and not at all where the change is refused.
func (c caller) withBootstrapData(ctx context.Context, data []byte, o *config.Override, dryRun bool, change func(dryRun bool) (nstance.Group, error)) (nstance.Group, error) {
	name, err := c.term.Groups.NameBootstrapData(ctx, data)
	if err != nil {
		return nstance.Group{}, err
	}
	if o.BootstrapData = name; name != "" && !dryRun {
		if spec, err := change(true); err != nil {
			return spec, err
		}
		if err := c.term.Groups.PutBootstrapData(ctx, name, data); err != nil {
			return nstance.Group{}, err
		}
	}
	return change(dryRun)
}

func (c caller) removeFirst(key nstance.GroupKey, named []string) error {
	var ids []nstance.InstanceID
	for _, name := range named {
		id, err := nstance.ParseInstanceID(name)
		if err != nil {
			return inField("remove_first", err)
		}
		ids = append(ids, id)
	}
	return c.term.Reconciler.RemoveFirst(key, ids)
}

// DeleteGroup implements the RPC.
func (*Service) DeleteGroup(ctx context.Context, req *apiv1.DeleteGroupRequest) (*apiv1.DeleteGroupResponse, error) {
	c := callerOf(ctx)
	key, err := c.groupKey(req.GetTenant(), req.GetGroup())
	if err != nil {
		return nil, err
	}
	spec, err := c.term.Groups.Remove(ctx, c.changer(req.GetOwner()), key, req.GetDryRun())
	if err != nil {
		return nil, err
	}
	return &apiv1.DeleteGroupResponse{Group: c.described(spec, req.GetDryRun())}, nil
}
