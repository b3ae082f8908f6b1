package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/server/config"
)

// maxDynamic is how many groups the API may make in one shard: all of them are
// in one object.
const maxDynamic = 5000

// A changer is on whose behalf groups are changed, and what that one may name.
type changer struct {
	by     string
	may    config.Allowance
	budget *config.Budget // nil: no limit
}

// grown fails with Quota if another entry of the file went beyond the changer's
// budget.
func (w changer) grown(conf *config.Config, key nstance.GroupKey, f groupsFile, e entry) error {
	if w.budget == nil {
		return nil
	}
	groupsBefore, bytesBefore := f.use(conf, key.Tenant)
	f.Groups = maps.Clone(f.Groups)
	f.put(key, e)
	groups, bytes := f.use(conf, key.Tenant)
	return w.budget.Grown(groupsBefore, groups, bytesBefore, bytes)
}

// changer returns the caller as one who changes groups of its tenant.
func (c caller) changer() changer {
	if c.Role == nstance.RoleAdmin {
		return changer{by: c.Subject}
	}
	conf := c.term.server.config()
	budget := conf.Budget(c.Tenant)
	return changer{c.Subject, conf.Allowance(c.Tenant), &budget}
}

// An edit changes the file, and returns what the journal says of that. One
// without an event changes nothing.
type edit func(*groupsFile) (nstance.Event, error)

// edit changes the file, and returns once that is durable, in the journal and in
// force; or it only finds out whether that would do.
func (g *groups) edit(ctx context.Context, dryRun bool, change edit) error {
	if err := g.takeTurn(ctx); err != nil {
		return err
	}
	defer func() { <-g.turn }()
	if dryRun {
		file, err := g.known(ctx)
		if err != nil {
			return err
		}
		file.Groups = maps.Clone(file.Groups)
		_, err = change(&file)
		return err
	}
	var done nstance.Event
	if _, err := g.doc.Update(ctx, func(f *groupsFile) (err error) { done, err = change(f); return err }); err != nil {
		return err
	}
	if done.Type != "" {
		g.t.journal(done)
	}
	g.loaded(nil)
	return nil
}

// event is what the journal says of a change that somebody has asked for.
func (g *groups) event(typ nstance.EventType, key nstance.GroupKey, what string, who changer) nstance.Event {
	return nstance.Event{
		Time: g.t.server.opts.Now().UTC(), Type: typ, Tenant: key.Tenant, Group: key.Group,
		Reason: what + " (asked for by " + who.by + ")",
	}
}

// changed is the event of a group of which the API says something else than
// before; none if it does not.
func (g *groups) changed(key nstance.GroupKey, before, after config.Override, was, is int, who changer) nstance.Event {
	names := config.Differences(before, after)
	if len(names) == 0 {
		return nstance.Event{}
	}
	if i := slices.Index(names, "size"); i >= 0 {
		names[i] = fmt.Sprintf("size %d, was %d", is, was)
	}
	return g.event(nstance.EventGroupChanged, key, strings.Join(names, "; "), who)
}

// takeTurn waits until nobody else changes what tenants have, so that what is
// counted stands until it is used.
func (g *groups) takeTurn(ctx context.Context) error {
	select {
	case g.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return nstance.Errorf(nstance.Unavailable, "others were changing groups: %w", ctx.Err())
	}
}

// create makes a dynamic group, unless it is there already as o says.
func (g *groups) create(ctx context.Context, who changer, key nstance.GroupKey, o config.Override, dryRun bool) (nstance.Group, error) {
	conf := g.t.server.config()
	spec, under, err := fresh(conf, who, key, o)
	if err != nil {
		return spec, err
	}
	types := g.t.resolver.lookUpTypes(ctx, spec.Definition.InstanceTypes)
	b, err := g.beneath(ctx, conf, under, dryRun)
	if err != nil {
		return spec, err
	}
	err = g.edit(ctx, dryRun, func(f *groupsFile) (none nstance.Event, err error) {
		same, err := g.makes(*f, key, o)
		if err != nil || same {
			return none, err
		}
		if err := g.t.resolver.vetRequest(types, &spec); err != nil {
			return none, err
		}
		if err := who.may.Room("size", g.sizes(conf, *f, key)+g.t.reconciler.OnDemand(key.Tenant), spec.Size); err != nil {
			return none, err
		}
		if err := g.checkVars(conf, spec, o.Vars); err != nil {
			return none, err
		}
		made := entry{Override: o, Dynamic: true, Base: b}
		if err := who.grown(conf, key, *f, made); err != nil {
			return none, err
		}
		f.put(key, made)
		return g.event(nstance.EventGroupCreated, key, fmt.Sprintf("of template %s, size %d", o.Template, spec.Size), who), nil
	})
	return spec, err
}

// fresh returns the group that o describes, and its template by itself.
func fresh(conf *config.Config, who changer, key nstance.GroupKey, o config.Override) (spec, under nstance.Group, err error) {
	_, sized := conf.SizeOf(o.Template)
	switch {
	case conf.Static(key):
		err = &nstance.Error{Code: nstance.Conflict, Field: "group", Msg: "group " + key.String() + " is in the configuration", Remedy: "update it instead"}
	case o.Template == "":
		err = nstance.FieldError("template", "name one of the configuration's templates", "is missing")
	default:
		err = who.may.Check(o)
	}
	if err != nil {
		return spec, under, err
	}
	if under, err = conf.Templated(key, o.Template); err != nil {
		return spec, under, err
	}
	if o.Size == nil && !sized {
		return spec, under, nstance.FieldError("size", "give one", "is missing, and template %q has none", o.Template)
	}
	if spec, err = conf.Lay(under, o); err == nil {
		err = conf.MayDynamic(spec)
	}
	return spec, under, err
}

// makes reports whether the group is there already just as o says, and fails if
// it may not be made.
func (g *groups) makes(f groupsFile, key nstance.GroupKey, o config.Override) (same bool, err error) {
	e := f.of(key)
	switch {
	case !e.exists() && len(f.Groups) >= maxDynamic:
		return false, &nstance.Error{Code: nstance.Quota, Field: "group", Msg: "the shard has as many groups as it can hold", Remedy: "delete some, or use another shard"}
	case !e.exists():
		return false, nil
	case e.Removing != nil:
		if g.leaving(key) {
			return false, beingRemoved(key)
		}
		return false, nil
	}
	if field := config.Difference(e.Override, o); field != "" {
		return false, &nstance.Error{Code: nstance.Conflict, Field: field, Msg: "group " + key.String() + " exists, and differs in this", Remedy: "update it instead"}
	}
	return true, nil
}

// leaving reports whether a group that is being removed still has members, or
// may have.
func (g *groups) leaving(key nstance.GroupKey) bool {
	_, err := g.t.reconciler.Group(key)
	return err == nil
}

func beingRemoved(key nstance.GroupKey) error {
	return &nstance.Error{Code: nstance.Conflict, Field: "group", Msg: "group " + key.String() + " is being removed", Remedy: "wait until it is gone"}
}

// sizes adds up the sizes of a tenant's groups but one.
func (g *groups) sizes(conf *config.Config, f groupsFile, but nstance.GroupKey) (sum int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	wanted, open := g.lay(conf, f)
	for _, u := range open {
		wanted = append(wanted, g.standing(u.Key, u.Removing))
	}
	for _, spec := range wanted {
		if spec.Key.Tenant == but.Tenant && spec.Key != but && !spec.Removing {
			sum += spec.Size
		}
	}
	return sum
}

// standing returns what is known to be in force of a group that makes no sense.
func (g *groups) standing(key nstance.GroupKey, removing bool) nstance.Group {
	spec, _ := g.t.reconciler.Configured(key)
	spec.Key, spec.Removing = key, removing
	return spec
}

// change lays o over what the API said of a group before; fields that o leaves
// nil stay. It returns once that is durable, or checks it only.
func (g *groups) change(ctx context.Context, who changer, key nstance.GroupKey, o config.Override, dryRun bool) (spec nstance.Group, unchanged bool, err error) {
	conf := g.t.server.config()
	if err := who.may.Check(o); err != nil {
		return nstance.Group{}, false, err
	}
	types := g.t.resolver.lookUpTypes(ctx, named(conf, o))
	b, err := g.rebase(ctx, conf, key, o, dryRun)
	if err != nil {
		return nstance.Group{}, false, err
	}
	err = g.edit(ctx, dryRun, func(f *groupsFile) (none nstance.Event, err error) {
		e := f.of(key)
		was, err := g.as(conf, key, e)
		if errors.Is(err, nstance.Invalid) { // it makes no sense any more: this may mend it
			was, err = g.standing(key, false), nil
		}
		if err != nil {
			return none, err
		}
		before := e.set(conf.Static(key))
		e.Override = o.Over(before)
		e.Dynamic = !conf.Static(key)
		if b != nil {
			e.Base = b
		}
		if spec, err = g.as(conf, key, e); err != nil {
			return none, err
		}
		if retyped(o) {
			if err := g.t.resolver.vetRequest(types, &spec); err != nil {
				return none, err
			}
		}
		if o.SubnetPool != "" || o.Template != "" {
			if err := conf.MayDynamic(spec); err != nil {
				return none, err
			}
		}
		if err := who.may.Room("size", g.sizes(conf, *f, key)+was.Size+g.t.reconciler.OnDemand(key.Tenant), spec.Size-was.Size); err != nil {
			return none, err
		}
		unchanged = len(config.Differences(before, e.Override)) == 0
		if o.Vars != nil || o.Template != "" || o.Args != nil {
			if err := g.checkVars(conf, spec, e.Vars); err != nil {
				return none, err
			}
		}
		if err := who.grown(conf, key, *f, e); err != nil {
			return none, err
		}
		f.put(key, e)
		return g.changed(key, before, e.Override, was.Size, spec.Size, who), nil
	})
	return spec, unchanged, err
}

// checkVars fails with Invalid if variables that the API sets would be printed as
// they are and are more than plain words. User data that is not known yet is
// looked at once it is.
func (g *groups) checkVars(conf *config.Config, spec nstance.Group, vars map[string]string) error {
	if len(vars) == 0 {
		return nil
	}
	if err := g.t.resolver.fill(conf, &spec); err != nil && !errors.Is(err, nstance.Unavailable) {
		return err
	}
	return config.CheckVars(spec.Definition, vars)
}

// retyped reports whether o may change what instance types a group has, or what
// they have to run.
func retyped(o config.Override) bool {
	return o.InstanceType != nil || o.InstanceTypes != nil || o.Template != ""
}

// named returns the instance types that o brings in.
func named(conf *config.Config, o config.Override) []string {
	names := slices.Clone(o.InstanceTypes)
	if o.InstanceType != nil {
		names = append(names, *o.InstanceType)
	}
	if t, ok := conf.Templates[o.Template]; ok && len(names) == 0 {
		names = append(slices.Clone(t.InstanceTypes), t.InstanceType)
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}

// as returns a group as an entry makes it. It fails with NotFound when there is
// none and with Conflict when it is being removed.
func (g *groups) as(conf *config.Config, key nstance.GroupKey, e entry) (nstance.Group, error) {
	switch {
	case conf.Static(key):
		return conf.Overlay(key, e.overlay())
	case !e.exists() || e.Removing != nil && !g.leaving(key):
		return nstance.Group{}, nstance.Errorf(nstance.NotFound, "no group %s", key)
	case e.Removing != nil:
		return nstance.Group{}, beingRemoved(key)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.dynamic(conf, key, e)
}

// rebase returns what stands beneath a dynamic group from now on, if o names
// another template.
func (g *groups) rebase(ctx context.Context, conf *config.Config, key nstance.GroupKey, o config.Override, dryRun bool) (*base, error) {
	if o.Template == "" || conf.Static(key) {
		return nil, nil
	}
	under, err := conf.Templated(key, o.Template)
	if err != nil {
		return nil, err
	}
	return g.beneath(ctx, conf, under, dryRun)
}

// beneath remembers what stands beneath a dynamic group; nil where nothing is to
// be written, or it is not known yet.
func (g *groups) beneath(ctx context.Context, conf *config.Config, under nstance.Group, dryRun bool) (*base, error) {
	if known := g.t.resolver.fill(conf, &under) == nil; dryRun || !known {
		return nil, nil
	}
	return g.remember(ctx, under, nil)
}

// remove begins the removal of a dynamic group, or ends what the API changed of
// a static one. It returns the group as it is until it is gone, or as it is
// without the changes.
func (g *groups) remove(ctx context.Context, who changer, key nstance.GroupKey, dryRun bool) (nstance.Group, error) {
	conf := g.t.server.config()
	var spec nstance.Group
	err := g.edit(ctx, dryRun, func(f *groupsFile) (done nstance.Event, err error) {
		e := f.of(key)
		if conf.Static(key) {
			spec, done, err = g.uncover(conf, key, &e, who)
		} else {
			spec, done, err = g.dismiss(conf, key, &e, who)
		}
		if err == nil {
			f.put(key, e)
		}
		return done, err
	})
	return spec, err
}

func (g *groups) uncover(conf *config.Config, key nstance.GroupKey, e *entry, who changer) (spec nstance.Group, done nstance.Event, err error) {
	before := e.overlay()
	if before.Empty() {
		return spec, done, nstance.FieldError("group", "remove it from the configuration, then delete it",
			"group %s is in the configuration, and nothing was changed of it through the API", key)
	}
	e.Override, e.Dynamic = config.Override{}, false
	if spec, err = conf.Overlay(key, e.Override); err != nil {
		return spec, done, err
	}
	size := spec.Size
	if before.Size != nil {
		size = *before.Size
	}
	return spec, g.changed(key, before, e.Override, size, spec.Size, who), nil
}

func (g *groups) dismiss(conf *config.Config, key nstance.GroupKey, e *entry, who changer) (spec nstance.Group, done nstance.Event, err error) {
	if !e.exists() || e.Removing != nil && !g.leaving(key) {
		return spec, done, nstance.Errorf(nstance.NotFound, "no group %s", key)
	}
	g.mu.Lock()
	spec, err = g.dynamic(conf, key, *e)
	g.mu.Unlock()
	if err != nil { // it can go, whatever it should have been
		spec = g.standing(key, e.Removing != nil)
		spec.Protect = e.protected()
	}
	switch {
	case e.Removing != nil: // already
		return spec, done, nil
	case spec.Protect:
		return spec, done, &nstance.Error{Code: nstance.Conflict, Field: "protect", Msg: "group " + key.String() + " is protected from deletion", Remedy: "update it with protect false first"}
	}
	e.Removing = &removal{At: g.t.server.opts.Now().UTC(), By: who.by}
	spec.Removing = true
	done = g.event(nstance.EventGroupRemovalRequested, key, "its members are drained and deleted", who)
	return spec, done, nil
}
