package groups

import (
	"context"
	"reflect"

	"golang.org/x/sync/errgroup"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/groupspec"
)

// maxDefinitionWrites is how many definitions are written at the same time.
const maxDefinitionWrites = 16

// A resolution is what configuration, overlay and look-ups make of a group.
type resolution struct {
	nstance.Group               // in effect
	configured    nstance.Group // as it is configured; whole if err is nil, zero if it is invalid
	err           error         // why what is configured is not in effect; nil: it is
}

// resolve returns every group that a configuration or an overlay defines.
func (g *Groups) resolve(conf *config.Config, file overlays) (all []resolution) {
	return g.resolveSeen(conf, file, func(nstance.TenantID) bool { return true })
}

// resolveSeen is resolve for the groups of the tenants that sees reports.
func (g *Groups) resolveSeen(conf *config.Config, file overlays, sees func(nstance.TenantID) bool) (all []resolution) {
	for _, static := range conf.Groups() {
		if sees(static.Key.Tenant) {
			all = append(all, g.resolveGroup(conf, static.Key, file.of(static.Key)))
		}
	}
	for _, key := range file.keys() {
		if e := file.of(key); sees(key.Tenant) && !conf.Static(key) && e.isGroup() {
			all = append(all, g.resolveGroup(conf, key, e))
		}
	}
	return all
}

// resolveGroup returns one group.
func (g *Groups) resolveGroup(conf *config.Config, key nstance.GroupKey, e overlay) resolution {
	r := g.resolveDefinition(conf, key, e)
	r.Owner = e.Owner
	return r
}

// resolveDefinition returns one group without its owner. While its definition is pending, its
// size and other settings are as configured.
func (g *Groups) resolveDefinition(conf *config.Config, key nstance.GroupKey, e overlay) resolution {
	last, o := g.last(conf, key, e), e.override(conf.Static(key))
	base, err := g.base(conf, last, e)
	r := resolution{Group: base, err: err}
	if settings, err := config.LaySettings(base, o); err == nil {
		r.Group = settings
	}
	if err == nil {
		r.configured, r.err = g.configure(conf, base, e)
	}
	switch removing := e.Removing != nil && !conf.Static(key); {
	case r.err == nil:
		r.Group = r.configured
		r.Removing = removing
		return r
	case removing: // it needs no definition any more
		r.Removing = true
	default:
		r.Pending = r.err.Error()
	}
	if r.Definition = last.Definition; groupspec.Defined(&r.Group) {
		r.Template = last.Template
	}
	return r
}

// base returns a group without its override. It fails with Invalid for one without a
// template that never had a definition, or whose definition cannot be read.
func (g *Groups) base(conf *config.Config, last nstance.Group, e overlay) (nstance.Group, error) {
	if conf.Static(last.Key) {
		return conf.Overlay(last.Key, config.Override{})
	}
	base, err := conf.Templated(last.Key, e.Template)
	switch _, sized := conf.SizeOf(e.Template); {
	case err == nil && !sized && e.Effective != nil: // a template that no longer has a size
		base.Size = e.Effective.Size
	case err == nil:
	case groupspec.Defined(&last):
		return last, nil
	case e.Effective != nil:
		return last, nstance.Errorf(nstance.Invalid, "definition %s cannot be read", e.Effective.Definition)
	default:
		return last, err
	}
	return base, nil
}

// configure returns a group as it is configured. It fails with Invalid where that
// makes no sense, and with Unavailable, beside the group as far as it is known, while
// something that it names is not found.
func (g *Groups) configure(conf *config.Config, base nstance.Group, e overlay) (spec nstance.Group, err error) {
	key, complete := base.Key, g.resolver.complete
	if conf.Static(key) {
		spec, err = conf.Overlay(key, e.staticOverride())
	} else {
		spec, err = conf.Lay(base, e.Override)
	}
	if err != nil {
		return nstance.Group{}, err
	}
	if e.standalone(conf, key) {
		complete = g.resolver.checkTypes
	}
	err = complete(conf, &spec)
	if invalid := config.CheckVars(spec.Definition, e.override(conf.Static(key)).Vars); invalid != nil {
		err = invalid
	}
	if invalid := conf.CheckCertifiedVars(key.Tenant, spec.Definition); invalid != nil {
		err = invalid
	}
	if invalid := config.CheckBootstrapData(spec, spec.Size > 0); invalid != nil {
		err = invalid
	}
	return spec, err
}

// last returns the group that was in effect last. Without a definition: it never was,
// or its definition cannot be read.
func (g *Groups) last(conf *config.Config, key nstance.GroupKey, e overlay) nstance.Group {
	last := nstance.Group{Key: key, DrainTimeout: conf.Shard.DefaultDrainTimeout}
	if e.Effective != nil {
		def, _ := g.defs.get(e.Effective.Definition)
		last = e.Effective.group(key, def)
	}
	last.BootstrapData = e.override(conf.Static(key)).BootstrapData
	return conf.Released(last)
}

// lastEffective returns the groups that were in effect last.
func (g *Groups) lastEffective(conf *config.Config, file overlays) (all []resolution) {
	for _, key := range file.keys() {
		e := file.of(key)
		if e.Effective == nil {
			continue
		}
		last := g.last(conf, key, e)
		last.Static = conf.Static(key)
		last.Removing, last.Owner = e.Removing != nil && !last.Static, e.Owner
		all = append(all, resolution{Group: last, configured: last})
	}
	return all
}

// record puts the groups that are in effect into their overlays, with their
// definitions durable.
func (g *Groups) record(ctx context.Context, conf *config.Config, f *overlays, all []resolution) error {
	digests, err := g.recordDefinitions(ctx, *f, all)
	if err != nil {
		return err
	}
	for i, r := range all {
		before := f.of(r.Key)
		e := before
		if conf.Static(r.Key) {
			e = overlay{Override: before.staticOverride(), Effective: before.Effective, Owner: before.Owner}
		} else {
			e.Dynamic = true
		}
		if groupspec.Defined(&r.Group) {
			e.Effective = effectiveOf(r.Group, digests[i])
		}
		if reflect.DeepEqual(e, before) {
			continue
		}
		if err := f.put(r.Key, e); err != nil {
			return err
		}
	}
	return nil
}

// recordDefinitions makes the definitions of groups durable and returns their digests.
func (g *Groups) recordDefinitions(ctx context.Context, f overlays, all []resolution) ([]string, error) {
	digests := make([]string, len(all))
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.SetLimit(maxDefinitionWrites)
	for i, r := range all {
		if groupspec.Defined(&r.Group) {
			tasks.Go(func() (err error) {
				digests[i], err = g.defs.record(ctx, r.Definition, f.of(r.Key).definition())
				return err
			})
		}
	}
	return digests, tasks.Wait()
}
