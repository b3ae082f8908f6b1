package server

import (
	"context"
	"slices"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/server/config"
)

// acquaint learns what the instance types of a configuration's groups can run,
// as far as that is not known: a group whose types are new need not be left open
// for as long as that takes.
func (g *groups) acquaint(ctx context.Context, conf *config.Config) {
	g.mu.Lock()
	file, _ := g.doc.Held()
	laid, _ := g.lay(conf, file)
	g.mu.Unlock()
	var names []string
	for _, spec := range laid {
		names = append(names, spec.Definition.InstanceTypes...)
	}
	g.t.resolver.lookUpTypes(ctx, names)
}

// foretell returns the holds of a group as they would be if it became what spec
// says: whether something that its definition names is not known, it says itself.
func (g *groups) foretell(spec nstance.Group, holds []reconcile.HoldView) []reconcile.HoldView {
	out := slices.DeleteFunc(slices.Clone(holds), func(h reconcile.HoldView) bool { return h.Kind == plan.HoldUnresolved })
	err := g.incomplete(spec)
	if err == nil || spec.Removing {
		return out
	}
	now := reconcile.HoldView{Hold: plan.Hold{Kind: plan.HoldUnresolved, Reason: err.Error()}, Since: g.t.server.opts.Now().UTC()}
	for _, h := range holds {
		if h.Kind == plan.HoldUnresolved {
			now.Since = h.Since // it goes on
		}
	}
	return append(out, now)
}

// incomplete says what is not known of a group that is to be as spec says, or
// does not suit; nil: nothing.
func (g *groups) incomplete(spec nstance.Group) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	conf := g.t.server.config()
	file, _ := g.doc.Held()
	e := file.of(spec.Key)
	if e.Template = config.TemplateName(spec.Template); e.alone(conf, spec.Key) {
		return g.t.resolver.vet(conf, &spec)
	}
	return g.t.resolver.complete(conf, &spec)
}
