package operators

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/reconcile"
)

// Plan implements the RPC. A configuration concerns every tenant: an operator sees only
// what it does to the groups of its own tenant, and not why it is refused.
func (*Service) Plan(ctx context.Context, req *apiv1.PlanRequest) (*apiv1.PlanResponse, error) {
	c := callerOf(ctx)
	switch {
	case req.GetGroup() != nil && len(req.GetConfig()) > 0:
		return nil, nstance.FieldError("group", "plan with one at a time", "a configuration is given as well")
	case len(req.GetConfig()) > 0 && c.Role != nstance.RoleAdmin:
		return nil, &nstance.Error{
			Code: nstance.Denied, Field: "config", Msg: "only administrators send whole configurations",
			Remedy: "plan a change of a group, or leave it out to plan what a refresh would do",
		}
	}
	done, err := c.service.plans.Acquire(ctx, c.party())
	if err != nil {
		return nil, err
	}
	defer done()
	if req.GetGroup() != nil {
		return c.planGroup(ctx, req.GetGroup())
	}
	conf, err := c.term.Configs.Parse(ctx, req.GetConfig())
	if err != nil && c.Role != nstance.RoleAdmin {
		err = nstance.Errorf(nstance.CodeOf(err), "the configuration would be refused: an administrator can see why")
	}
	if err != nil {
		return nil, err
	}
	other := conf.Digest() != c.service.Config().Digest()
	if other { // what the one in force names is looked up by itself
		c.term.Groups.LookUpTypes(ctx, conf)
	}
	plans, err := c.term.Groups.WhatIf(conf, c.sees)
	if err != nil {
		return nil, err
	}
	excess := ""
	if other { // else nothing is held
		excess, err = c.term.Configs.Excess(conf)
	}
	resp := &apiv1.PlanResponse{Digest: conf.Digest(), Held: excess != ""}
	for _, p := range plans {
		if c.sees(p.Key.Tenant) { // released groups are of any tenant
			resp.Groups = append(resp.Groups, c.planMessage(p))
		}
	}
	return fitPlan(resp), err
}

// planGroup says what a change of one group would do.
func (c caller) planGroup(ctx context.Context, req *apiv1.UpdateGroupRequest) (*apiv1.PlanResponse, error) {
	req = proto.CloneOf(req)
	req.DryRun = true
	spec, _, err := c.updateGroup(ctx, req)
	if err != nil {
		return nil, err
	}
	plans, err := c.term.Groups.WhatIfGroup(spec)
	resp := &apiv1.PlanResponse{Digest: c.service.Config().Digest()}
	for _, p := range plans {
		resp.Groups = append(resp.Groups, c.planMessage(p))
	}
	return fitPlan(resp), err
}

func (c caller) planMessage(p reconcile.GroupPlan) *apiv1.GroupPlan {
	m := &apiv1.GroupPlan{
		Tenant: string(p.Key.Tenant), Group: string(p.Key.Group), SizeBefore: int32(p.SizeBefore), SizeAfter: int32(p.SizeAfter),
		Fields: c.changeMessages(p.Fields), Creates: int32(p.Creates), Change: string(p.Change), EstimateBasis: p.EstimateBasis,
	}
	if p.Estimate > 0 {
		m.Estimate = durationpb.New(p.Estimate)
	}
	if s := p.Shape; s != nil {
		m.Shape = &apiv1.ShapePlan{InstanceType: s.InstanceType, Subnet: s.Subnet, Market: string(s.Market), Choice: s.Choice}
	}
	for _, i := range p.Instances {
		m.Instances = append(m.Instances, &apiv1.InstancePlan{Id: string(i.ID), Action: string(i.Action), Reason: i.Reason})
	}
	for _, h := range p.Holds {
		m.Holds = append(m.Holds, holdMessage(h.Hold, h.Since))
	}
	return m
}

// changeMessages returns the changed fields of a definition. To operators, values
// of settings that only the configuration has are not shown.
func (c caller) changeMessages(fields []reconcile.FieldChange) []*apiv1.FieldChange {
	var out []*apiv1.FieldChange
	for _, f := range fields {
		if c.Role != nstance.RoleAdmin && !tenantSets(f.Path) {
			f.Before, f.After = hiddenValue(f.Before), hiddenValue(f.After)
		}
		out = append(out, &apiv1.FieldChange{Path: f.Path, Before: wire.Text(f.Before), After: wire.Text(f.After), Effect: string(f.Effect)})
	}
	return out
}

// tenantSets reports whether a field of a definition is one that the API can set.
func tenantSets(path string) bool {
	top, _, _ := strings.Cut(path, ".")
	return slices.Contains([]string{"size", "template", "instance_types", "subnet_pool", "load_balancers", "vars", "args", "market", "owner"}, top)
}

// hiddenValue stands for a value that only administrators may see.
func hiddenValue(v string) string {
	if v == "" {
		return ""
	}
	return "(set by the configuration)"
}
