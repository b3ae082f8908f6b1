package groups

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/server/config"
	"github.com/nstance-go/nstance/storage"
)

// LookUpTypes asks the provider for the architectures of the instance types of a
// configuration, as far as they are not known: its groups then need not stay
// unresolved for that. It looks at templates, groups and their overlays.
func (g *Groups) LookUpTypes(ctx context.Context, conf *config.Config) {
	g.mu.Lock()
	file, _ := g.overlays.Held()
	specs, _ := g.specs(conf, file)
	g.mu.Unlock()
	var names []string
	for _, spec := range append(specs, conf.Groups()...) {
		names = append(names, spec.Definition.InstanceTypes...)
	}
	for name := range conf.Templates {
		names = append(names, typesNamed(conf, config.Override{Template: name})...)
	}
	g.resolver.lookUpTypes(ctx, names)
}

// PreviewHolds returns the holds of a group as they would be if it became spec.
func (g *Groups) PreviewHolds(spec nstance.Group, holds []reconcile.HoldView) []reconcile.HoldView {
	out := slices.DeleteFunc(slices.Clone(holds), func(h reconcile.HoldView) bool { return h.Kind == plan.HoldUnresolved })
	err := g.checkResolved(spec)
	if err == nil || spec.Removing {
		return out
	}
	hold := reconcile.HoldView{Hold: plan.Hold{Kind: plan.HoldUnresolved, Reason: err.Error()}, Since: g.Now().UTC()}
	for _, h := range holds {
		if h.Kind == plan.HoldUnresolved {
			hold.Since = h.Since
		}
	}
	return append(out, hold)
}

// checkResolved fails where something that spec names is unknown, or does not suit.
func (g *Groups) checkResolved(spec nstance.Group) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	conf := g.Config()
	file, _ := g.overlays.Held()
	e := file.of(spec.Key)
	if e.Template = config.TemplateName(spec.Template); e.standalone(conf, spec.Key) {
		return g.resolver.checkTypes(conf, &spec)
	}
	return g.resolver.complete(conf, &spec)
}

// Impact says how many members another configuration would remove and rotate.
// Fails with Unavailable while the overlays are not read.
func (g *Groups) Impact(conf *config.Config) (reconcile.Impact, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.loaded {
		return reconcile.Impact{}, nstance.Errorf(nstance.Unavailable, "%s is not read yet", storage.GroupsKey(g.Shard))
	}
	file, _ := g.overlays.Held()
	d := g.desired(conf, file)
	for _, u := range d.Open {
		if u.Known {
			d.Groups = append(d.Groups, u.Group) // an unresolved definition counts as changed
		}
	}
	return g.shard.Impact(d.Groups)
}

// WhatIf says what another configuration would do, under the newest overlays.
// Groups that would no longer be configured are left out: they go on as they are.
func (g *Groups) WhatIf(conf *config.Config) ([]reconcile.GroupPlan, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.loaded {
		return nil, nstance.Errorf(nstance.Unavailable, "%s is not read yet", storage.GroupsKey(g.Shard))
	}
	now := g.Config()
	released := func(key nstance.GroupKey) bool { return now.Static(key) && !conf.Static(key) }
	file, _ := g.overlays.Held()
	d := g.desired(conf, file)
	d.Groups = slices.DeleteFunc(d.Groups, func(spec nstance.Group) bool { return released(spec.Key) })
	d.Open = slices.DeleteFunc(d.Open, func(u nstance.Unresolved) bool { return released(u.Key) })
	return g.shard.WhatIf(d, true)
}

// WhatIfGroup says what another state of one group would do; template is the one
// that the change names, empty for none.
func (g *Groups) WhatIfGroup(spec nstance.Group, template config.TemplateName) ([]reconcile.GroupPlan, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	file, _ := g.overlays.Held()
	e := file.of(spec.Key)
	e.Template = cmp.Or(template, e.Template)
	file.Groups = maps.Clone(file.Groups)
	file.put(spec.Key, e)
	return g.shard.WhatIf(g.resolve(g.Config(), file, []nstance.Group{spec}), false)
}
