package groups

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/groupspec"
)

// maxGroups is how many overlays a shard may have: all of them are in one object.
const maxGroups = 5000

// checkBudget fails with Quota if another overlay exceeded the changer's budget.
func checkBudget(who config.Changer, conf *config.Config, key nstance.GroupKey, f overlays, e overlay) error {
	if who.Budget == nil {
		return nil
	}
	groupsBefore, bytesBefore := f.usage(conf, key.Tenant)
	f.Groups = maps.Clone(f.Groups)
	f.put(key, e)
	groups, bytes := f.usage(conf, key.Tenant)
	return who.Budget.Grown(groupsBefore, groups, bytesBefore, bytes)
}

// An edit changes the overlays, and returns the event to journal; the zero event:
// nothing has changed.
type edit func(*overlays) (nstance.Event, error)

// edit returns once the change is durable, journalled and in effect; a dry run only
// checks it.
func (g *Groups) edit(ctx context.Context, dryRun bool, change edit) error {
	if err := g.acquireTurn(ctx); err != nil {
		return err
	}
	defer func() { <-g.turn }()
	if dryRun {
		file, err := g.durable(ctx)
		if err != nil {
			return err
		}
		file.Groups = maps.Clone(file.Groups)
		_, err = change(&file)
		return err
	}
	var done nstance.Event
	journal := func() {
		if done.Type != "" {
			g.Journal(done)
		}
	}
	return g.write(ctx, journal, func(f *overlays) (err error) { done, err = change(f); return err })
}

// event is the journal's entry for a change that a caller asked for.
func (g *Groups) event(typ nstance.EventType, key nstance.GroupKey, what string, who config.Changer) nstance.Event {
	return nstance.Event{
		Time: g.Now().UTC(), Type: typ, Tenant: key.Tenant, Group: key.Group,
		Reason: what + " (asked for by " + who.Subject + ")",
	}
}

// changeEvent returns the event for another override of a group; the zero event:
// they are equal.
func (g *Groups) changeEvent(key nstance.GroupKey, before, after config.Override, sizeBefore, size int, who config.Changer) nstance.Event {
	names := config.Differences(before, after)
	if len(names) == 0 {
		return nstance.Event{}
	}
	if i := slices.Index(names, "size"); i >= 0 {
		names[i] = fmt.Sprintf("size %d, was %d", size, sizeBefore)
	}
	return g.event(eventtype.GroupChanged, key, strings.Join(names, "; "), who)
}

// Create creates a dynamic group, unless it exists as o describes it.
func (g *Groups) Create(ctx context.Context, who config.Changer, key nstance.GroupKey, o config.Override, dryRun bool) (spec nstance.Group, err error) {
	conf := g.Config()
	if err := checkNew(conf, who, key, o); err != nil {
		return spec, err
	}
	types := g.resolver.lookUpTypes(ctx, typesNamed(conf, o))
	err = g.edit(ctx, dryRun, func(f *overlays) (none nstance.Event, err error) {
		same, err := g.existsAs(*f, key, o)
		if err != nil {
			return none, err
		}
		if same {
			spec = g.resolveGroup(conf, key, f.of(key)).Group
			return none, nil
		}
		created := overlay{Override: o, Dynamic: true}
		r := g.resolveGroup(conf, key, created)
		if spec = r.Group; errors.Is(r.err, nstance.Invalid) {
			return none, r.err
		}
		if err := g.resolver.types.checkRequest(types, &r.configured); err != nil {
			return none, err
		}
		if err := who.Allowance.Room("size", g.sizes(conf, *f, key)+g.shard.OnDemand(key.Tenant), spec.Size); err != nil {
			return none, err
		}
		if err := checkBudget(who, conf, key, *f, created); err != nil {
			return none, err
		}
		f.put(key, created)
		return g.event(eventtype.GroupCreated, key, fmt.Sprintf("of template %s, size %d", o.Template, spec.Size), who), nil
	})
	return spec, err
}

// checkNew refuses a dynamic group that makes no sense.
func checkNew(conf *config.Config, who config.Changer, key nstance.GroupKey, o config.Override) error {
	switch {
	case conf.Static(key):
		return &nstance.Error{Code: nstance.Conflict, Field: "group", Msg: "group " + key.String() + " is in the configuration", Remedy: "update it instead"}
	case o.Template == "":
		return nstance.FieldError("template", "name one of the configuration's templates", "is missing")
	}
	if err := who.Allowance.Check(o); err != nil {
		return err
	}
	template, err := conf.Templated(key, o.Template)
	if err != nil {
		return err
	}
	if _, sized := conf.SizeOf(o.Template); o.Size == nil && !sized {
		return nstance.FieldError("size", "give one", "is missing, and template %q has none", o.Template)
	}
	spec, err := conf.Lay(template, o)
	if err != nil {
		return err
	}
	return conf.MayDynamic(spec)
}

// existsAs reports whether the group exists as o describes it. Fails where it must
// not be created.
func (g *Groups) existsAs(f overlays, key nstance.GroupKey, o config.Override) (same bool, err error) {
	e := f.of(key)
	switch {
	case !e.isGroup() && len(f.Groups) >= maxGroups:
		return false, &nstance.Error{Code: nstance.Quota, Field: "group", Msg: "the shard has as many groups as it can hold", Remedy: "delete some, or use another shard"}
	case !e.isGroup():
		return false, nil
	case e.Removing != nil:
		if g.hasMembers(key) {
			return false, beingRemoved(key)
		}
		return false, nil
	}
	if field := config.Difference(e.Override, o); field != "" {
		return false, &nstance.Error{Code: nstance.Conflict, Field: field, Msg: "group " + key.String() + " exists, and differs in this", Remedy: "update it instead"}
	}
	return true, nil
}

// hasMembers reports whether a group that is being removed still has members, or
// may have.
func (g *Groups) hasMembers(key nstance.GroupKey) bool {
	_, err := g.shard.Group(key)
	return err == nil
}

func beingRemoved(key nstance.GroupKey) error {
	return &nstance.Error{Code: nstance.Conflict, Field: "group", Msg: "group " + key.String() + " is being removed", Remedy: "wait until it is gone"}
}

// sizes returns the sum of the sizes of a tenant's groups except one.
func (g *Groups) sizes(conf *config.Config, f overlays, except nstance.GroupKey) (sum int) {
	for _, r := range g.resolve(conf, f) {
		if r.Key.Tenant == except.Tenant && r.Key != except && !r.Removing {
			sum += r.Size
		}
	}
	return sum
}

// Update lays o over the group's override; fields that o leaves nil stay. It returns
// once that is durable; a dry run only checks it. It is refused for what it makes
// invalid, not for what was invalid before.
func (g *Groups) Update(ctx context.Context, who config.Changer, key nstance.GroupKey, o config.Override, dryRun bool) (spec nstance.Group, unchanged bool, err error) {
	conf := g.Config()
	if err := who.Allowance.Check(o); err != nil {
		return nstance.Group{}, false, err
	}
	types := g.resolver.lookUpTypes(ctx, typesNamed(conf, o))
	err = g.edit(ctx, dryRun, func(f *overlays) (none nstance.Event, err error) {
		e := f.of(key)
		if err := g.changeable(conf, key, e); err != nil {
			return none, err
		}
		was, before := g.resolveGroup(conf, key, e), e.override(conf.Static(key))
		e.Override = o.Over(before)
		e.Dynamic = !conf.Static(key)
		r := g.resolveGroup(conf, key, e)
		if spec = r.Group; errors.Is(r.err, nstance.Invalid) && (was.err == nil || was.err.Error() != r.err.Error()) {
			return none, r.err
		}
		if changesTypes(o) {
			if err := g.resolver.types.checkRequest(types, &r.configured); err != nil {
				return none, err
			}
		}
		if o.SubnetPool != "" || o.Template != "" {
			if err := conf.MayDynamic(r.configured); err != nil {
				return none, err
			}
		}
		if err := who.Allowance.Room("size", g.sizes(conf, *f, key)+was.Size+g.shard.OnDemand(key.Tenant), spec.Size-was.Size); err != nil {
			return none, err
		}
		unchanged = len(config.Differences(before, e.Override)) == 0
		if err := checkBudget(who, conf, key, *f, e); err != nil {
			return none, err
		}
		f.put(key, e)
		return g.changeEvent(key, before, e.Override, was.Size, spec.Size, who), nil
	})
	return spec, unchanged, err
}

// changesTypes reports whether o may change the instance types of a group, or the
// architecture that they must run.
func changesTypes(o config.Override) bool {
	return o.InstanceType != nil || o.InstanceTypes != nil || o.Template != ""
}

// typesNamed returns the instance types that o names.
func typesNamed(conf *config.Config, o config.Override) []string {
	names := slices.Clone(o.InstanceTypes)
	if o.InstanceType != nil {
		names = append(names, *o.InstanceType)
	}
	if t, ok := conf.Templates[o.Template]; ok && len(names) == 0 {
		names = append(slices.Clone(t.InstanceTypes), t.InstanceType)
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}

// changeable fails with NotFound where there is no such group, and with Conflict where
// it is being removed.
func (g *Groups) changeable(conf *config.Config, key nstance.GroupKey, e overlay) error {
	switch {
	case conf.Static(key):
		return nil
	case !e.isGroup() || e.Removing != nil && !g.hasMembers(key):
		return nstance.Errorf(nstance.NotFound, "no group %s", key)
	case e.Removing != nil:
		return beingRemoved(key)
	}
	return nil
}

// Remove begins the removal of a dynamic group, or clears the overlay of a
// configured one. It returns the group as it is until it is gone, or as it is
// without the overlay.
func (g *Groups) Remove(ctx context.Context, who config.Changer, key nstance.GroupKey, dryRun bool) (nstance.Group, error) {
	conf := g.Config()
	var spec nstance.Group
	err := g.edit(ctx, dryRun, func(f *overlays) (done nstance.Event, err error) {
		e := f.of(key)
		if conf.Static(key) {
			spec, done, err = g.clearOverlay(conf, key, &e, who)
		} else {
			spec, done, err = g.markRemoved(conf, key, &e, who)
		}
		if err == nil {
			f.put(key, e)
		}
		return done, err
	})
	return spec, err
}

func (g *Groups) clearOverlay(conf *config.Config, key nstance.GroupKey, e *overlay, who config.Changer) (spec nstance.Group, done nstance.Event, err error) {
	before, sizeBefore := e.staticOverride(), g.resolveGroup(conf, key, *e).Size
	if before.Empty() {
		return spec, done, nstance.FieldError("group", "remove it from the configuration, then delete it",
			"group %s is in the configuration, and nothing was changed of it through the API", key)
	}
	e.Override, e.Dynamic = config.Override{}, false
	spec = g.resolveGroup(conf, key, *e).Group
	return spec, g.changeEvent(key, before, e.Override, sizeBefore, spec.Size, who), nil
}

func (g *Groups) markRemoved(conf *config.Config, key nstance.GroupKey, e *overlay, who config.Changer) (spec nstance.Group, done nstance.Event, err error) {
	err = g.changeable(conf, key, *e)
	if again := errors.Is(err, nstance.Conflict); err != nil && !again {
		return spec, done, err
	}
	if spec = g.resolveGroup(conf, key, *e).Group; spec.Removing { // already
		return spec, done, nil
	}
	if spec.Protect {
		return spec, done, &nstance.Error{Code: nstance.Conflict, Field: "protect", Msg: "group " + key.String() + " is protected from deletion", Remedy: "update it with protect false first"}
	}
	e.Removing = &removal{At: g.Now().UTC(), By: who.Subject}
	spec = g.resolveGroup(conf, key, *e).Group
	return spec, g.event(eventtype.GroupRemovalRequested, key, "its members are drained and deleted", who), nil
}

// DefineInstance returns the group with o laid over it, as an on-demand instance is made
// from it, and a function that fails with Quota where the tenant has no
// room for one more beside so many on-demand instances.
func (g *Groups) DefineInstance(ctx context.Context, who config.Changer, key nstance.GroupKey, o config.Override) (spec nstance.Group, admit func(onDemand int) error, err error) {
	conf := g.Config()
	v, err := g.shard.Group(key)
	if err == nil {
		err = who.Allowance.Check(o)
	}
	if err == nil && !groupspec.Defined(&v.Group) {
		err = nstance.Errorf(nstance.Unavailable, "group %s has no definition yet: %s", key, v.Pending)
	}
	if err == nil {
		spec, err = conf.Lay(v.Group, o)
	}
	if err == nil {
		err = errors.Join(config.CheckVars(spec.Definition, o.Vars), config.CheckBootstrapData(spec, true))
	}
	if err == nil && changesTypes(o) {
		err = g.resolver.types.checkRequest(g.resolver.lookUpTypes(ctx, typesNamed(conf, o)), &spec)
	}
	if err != nil {
		return spec, nil, err
	}
	file, err := g.durable(ctx)
	if err != nil {
		return spec, nil, err
	}
	sizes := g.sizes(conf, file, nstance.GroupKey{Tenant: key.Tenant})
	return spec, func(onDemand int) error { return who.Allowance.Room("id", sizes+onDemand, 1) }, nil
}
