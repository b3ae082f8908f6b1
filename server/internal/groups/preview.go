package groups

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// LookUpTypes asks the provider for the architectures of the instance types of a
// configuration, as far as they are not known: its definitions then need not be
// pending for that. It looks at templates, groups and their overlays.
func (g *Groups) LookUpTypes(ctx context.Context, conf *config.Config) {
	file, _ := g.doc.Held()
	names := slices.Collect(maps.Keys(newView(conf, file, g.resolve(conf, file)).types))
	for _, spec := range conf.Groups() {
		names = append(names, spec.Definition.InstanceTypes...)
	}
	for name := range conf.Templates {
		names = append(names, typesNamed(conf, config.Override{Template: name})...)
	}
	g.resolver.lookUpTypes(ctx, names)
}

// PreviewHolds returns the holds of a group as they would be if it became spec.
func (g *Groups) PreviewHolds(spec nstance.Group, holds []reconcile.HoldView) []reconcile.HoldView {
	pending := reconcile.HoldView{Hold: plan.Hold{Kind: plan.HoldPending, Reason: spec.Pending}, Since: g.Now().UTC()}
	isPending := func(h reconcile.HoldView) bool { return h.Kind == plan.HoldPending }
	if i := slices.IndexFunc(holds, isPending); i >= 0 {
		pending.Since = holds[i].Since
	}
	holds = slices.DeleteFunc(slices.Clone(holds), isPending)
	if spec.Pending == "" {
		return holds
	}
	return append(holds, pending)
}

// Impact says how many members another configuration would remove and rotate. Fails
// with Unavailable while the overlays are not read.
func (g *Groups) Impact(conf *config.Config) (reconcile.Impact, error) {
	file, err := g.read()
	if err != nil {
		return reconcile.Impact{}, err
	}
	var groups []nstance.Group
	for _, r := range g.resolve(conf, file) {
		if errors.Is(r.err, nstance.Unavailable) { // what is not found yet counts as changed
			r.Definition = r.configured.Definition
		}
		groups = append(groups, r.Group)
	}
	return g.shard.Impact(groups)
}

// WhatIf says what another configuration would do to the groups of the tenants that sees
// reports, under the newest overlays. Groups that would no longer be configured are left
// out: they go on as they are.
func (g *Groups) WhatIf(conf *config.Config, sees func(nstance.TenantID) bool) ([]reconcile.GroupPlan, error) {
	file, err := g.read()
	if err != nil {
		return nil, err
	}
	now := g.Config()
	var groups []nstance.Group
	for _, r := range g.resolveSeen(conf, file, sees) {
		if released := now.Static(r.Key) && !conf.Static(r.Key); !released {
			groups = append(groups, r.Group)
		}
	}
	return g.shard.WhatIf(groups, true)
}

// WhatIfGroup says what another state of one group would do.
func (g *Groups) WhatIfGroup(spec nstance.Group) ([]reconcile.GroupPlan, error) {
	return g.shard.WhatIf([]nstance.Group{spec}, false)
}
