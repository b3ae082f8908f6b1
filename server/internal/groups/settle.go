package groups

import (
	"context"
	"maps"
	"slices"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/server/config"
)

// SettleSoon has the overlays settled by Run.
func (g *Groups) SettleSoon() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// Settle makes the overlays follow the configuration in force: it records what
// every group is, so that each can go on without the configuration, and deletes
// the overlays of removed groups. It returns once that is durable, and writes
// nothing where nothing has changed.
func (g *Groups) Settle(ctx context.Context) error {
	err := g.settle(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.settleError = err
	return err
}

func (g *Groups) settle(ctx context.Context) error {
	conf, removed := g.Config(), g.takeRemoved()
	file, err := g.durable(ctx)
	if err != nil {
		return err
	}
	bases, err := g.bases(ctx, conf, file)
	var lasts map[nstance.GroupKey]*lastState
	if err == nil {
		lasts, err = g.lastStates(ctx, conf, file)
	}
	if err == nil {
		g.defs.keep(bases, lasts)
		_, err = g.overlays.Update(ctx, func(f *overlays) error { f.settle(conf, bases, lasts, removed); return nil })
	}
	if err != nil {
		for _, key := range removed {
			g.ForgetSoon(key)
		}
		return err
	}
	g.Publish()
	return nil
}

// ForgetSoon has the overlay of a removed group without members deleted. It may be
// called under the reconciler's lock.
func (g *Groups) ForgetSoon(key nstance.GroupKey) {
	g.removedMu.Lock()
	g.removed[key] = true
	g.removedMu.Unlock()
	g.SettleSoon()
}

func (g *Groups) takeRemoved() []nstance.GroupKey {
	g.removedMu.Lock()
	defer g.removedMu.Unlock()
	keys := slices.Collect(maps.Keys(g.removed))
	clear(g.removed)
	return keys
}

// bases returns each group as configuration or template define it, without its
// overlay, with its definition durable.
func (g *Groups) bases(ctx context.Context, conf *config.Config, file overlays) (map[nstance.GroupKey]*base, error) {
	specs := conf.Groups()
	for _, key := range file.keys() {
		e := file.of(key)
		if spec, err := conf.Templated(key, e.Template); err == nil && !conf.Static(key) {
			if _, sized := conf.SizeOf(e.Template); !sized && e.Base != nil {
				spec.Size = e.Base.Size
			}
			specs = append(specs, spec)
		}
	}
	out := map[nstance.GroupKey]*base{}
	for _, spec := range specs {
		before := file.of(spec.Key).Base
		err := g.resolver.fill(conf, &spec)
		switch {
		case err != nil && before != nil: // not resolved yet
			out[spec.Key] = before
			continue
		case err != nil:
			continue
		}
		if out[spec.Key], err = g.recordBase(ctx, spec, before); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// lastStates returns what unresolved groups are, with their definitions durable,
// for the next leader.
func (g *Groups) lastStates(ctx context.Context, conf *config.Config, file overlays) (map[nstance.GroupKey]*lastState, error) {
	g.mu.Lock()
	unresolved := g.desired(conf, file).Open
	g.mu.Unlock()
	out := map[nstance.GroupKey]*lastState{}
	for _, u := range unresolved {
		e := file.of(u.Key)
		l := &lastState{e.LastDefinition, e.LastGroup}
		out[u.Key] = l
		spec, ok := g.shard.Configured(u.Key)
		if !ok {
			continue
		}
		var err error
		if l.definition, err = g.defs.record(ctx, spec.Definition, e.LastDefinition); err != nil {
			return nil, err
		}
		if l.group = nil; !u.Known || u.Removing {
			l.group = baseOf(spec, l.definition)
		}
	}
	return out, nil
}

// recordBase returns spec in its durable form, with its definition durable; before
// is its former durable form, nil for none.
func (g *Groups) recordBase(ctx context.Context, spec nstance.Group, before *base) (*base, error) {
	known := ""
	if before != nil {
		known = before.Definition
	}
	digest, err := g.defs.record(ctx, spec.Definition, known)
	if err != nil {
		return nil, err
	}
	return baseOf(spec, digest), nil
}
