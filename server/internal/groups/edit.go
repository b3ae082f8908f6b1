package groups

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/groupspec"
	"github.com/nstance-go/nstance/internal/layout"
)

// maxGroups is how many overlays a shard may have: all of them are in one object.
const maxGroups = 5000

// checkBudget fails with Quota if another overlay exceeded the changer's budget.
func checkBudget(who config.Changer, v *view, key nstance.GroupKey, e overlay) error {
	if who.Budget == nil {
		return nil
	}
	before, after := v.tenants[key.Tenant], v.with(key, e)
	return who.Budget.Grown(before.dynamic, after.dynamic, before.bytes, after.bytes)
}

// An edit changes the overlay of one group, and returns the event to journal; the zero
// event: nothing has changed. v is what all groups were before.
type edit func(v *view, f *overlays) (nstance.Event, error)

// An unansweredEdit is one whose write may have landed.
type unansweredEdit struct {
	overlay overlay
	event   nstance.Event
}

// maxStale is how often an edit is made anew after the overlays were changed elsewhere.
const maxStale = 3

// errStale means that the overlays are not those that the view was made of.
var errStale = errors.New("the overlays have changed")

// edit changes one group, and returns once that is durable, journalled and in effect; a
// dry run only checks it. A caller that leaves while it waits for its turn changes
// nothing. From then on the edit belongs to the term: it ends with the term, or after the
// time that a request may take. Where its outcome stays unknown, Run finds out what is
// durable and puts that in effect.
//
// Edits are made one at a time, so that what is counted stays true until it is used. The
// tenants whose edits wait take turns.
func (g *Groups) edit(ctx context.Context, key nstance.GroupKey, dryRun bool, change edit) error {
	done, err := g.turns.Acquire(ctx, key.Tenant)
	if err != nil {
		return err
	}
	defer done()
	if dryRun {
		return g.rehearse(ctx, change)
	}
	if err := ctx.Err(); err != nil {
		return nstance.Errorf(nstance.Unavailable, "nothing was changed: %w", err)
	}
	ctx, cancel := g.Bound(context.WithoutCancel(ctx))
	defer cancel()
	for range maxStale {
		if err := g.refreshView(ctx); err != nil {
			return err
		}
		if err := g.editOne(ctx, key, change); !errors.Is(err, errStale) {
			return err
		}
	}
	return nstance.Errorf(nstance.Conflict, "%s was changed by others %d times in the meantime", layout.GroupsKey(g.Shard), maxStale)
}

func (g *Groups) rehearse(ctx context.Context, change edit) error {
	file, v, err := g.viewNow(ctx)
	if err == nil {
		file = file.Copy()
		_, err = change(v, &file)
	}
	return err
}

// viewNow returns the newest overlays that are known, and the view of them.
func (g *Groups) viewNow(ctx context.Context) (overlays, *view, error) {
	file, err := g.durable(ctx)
	if err != nil {
		return file, nil, err
	}
	g.mu.Lock()
	v := g.view
	g.mu.Unlock()
	if conf := g.Config(); v == nil || v.conf != conf || v.writeID != file.WriteID {
		v = newView(conf, file, g.resolve(conf, file))
	}
	return file, v, nil
}

// refreshView has the view of all groups follow what is durable. It costs nothing where
// this server made the last change. It needs the turn.
func (g *Groups) refreshView(ctx context.Context) error {
	if g.Proposed() {
		return &nstance.Error{
			Code: nstance.Unavailable, Msg: "groups stay as they are until a configuration is accepted, since the one that was in force cannot be read",
			Remedy: "see nstance-admin config status, and config confirm",
		}
	}
	file, exists := g.doc.Held()
	if v := g.view; exists && v != nil && v.conf == g.Config() && v.writeID == file.WriteID && len(g.unanswered) == 0 {
		return nil
	}
	return g.apply(ctx)
}

// editOne changes one group, under the view of all. It needs the turn.
func (g *Groups) editOne(ctx context.Context, key nstance.GroupKey, change edit) error {
	v := g.view
	var done nstance.Event
	var r *resolution
	var edited overlay
	refused := true
	file, err := g.doc.Update(ctx, func(f *overlays) (err error) {
		if f.WriteID != v.writeID {
			return errStale
		}
		if done, err = change(v, f); err != nil {
			return err
		}
		if r, err = g.recordOne(ctx, v.conf, f, key); err == nil {
			refused, edited = false, f.of(key)
		}
		return err
	})
	if err != nil {
		if refused {
			g.sizes.set(key.Tenant, v.tenants[key.Tenant].size)
			return err
		}
		g.unanswered[key] = unansweredEdit{edited, done}
		g.ApplySoon()
		return err
	}
	if done.Type != "" {
		g.Journal(done)
	}
	g.tellOne(v, file, key, r)
	return nil
}

// checkSize fails with Quota where a tenant has no room for a group of that size.
func (g *Groups) checkSize(who config.Changer, v *view, key nstance.GroupKey, was, size int, dryRun bool) error {
	if !dryRun {
		g.sizes.admit(key.Tenant, v.sizes(key)+size)
	}
	return who.Allowance.Room("size", v.sizes(key)+was+g.shard.OnDemand(key.Tenant), size-was)
}

// recordOne resolves one group, and puts it into its overlay as it is in effect; nil:
// there is no such group.
func (g *Groups) recordOne(ctx context.Context, conf *config.Config, f *overlays, key nstance.GroupKey) (*resolution, error) {
	e := f.of(key)
	if !conf.Static(key) && !e.isGroup() {
		return nil, nil
	}
	r := g.resolveGroup(conf, key, e)
	return &r, g.record(ctx, conf, f, []resolution{r})
}

// journalUnanswered journals the edits without an answer that have landed after all. It
// needs the turn.
func (g *Groups) journalUnanswered(file overlays) {
	for key, e := range g.unanswered {
		now := file.of(key)
		same := reflect.DeepEqual(now.Override, e.overlay.Override) && now.Owner == e.overlay.Owner && (now.Removing == nil) == (e.overlay.Removing == nil)
		if done := e.event; done.Type != "" && same {
			g.Journal(done)
		}
	}
	clear(g.unanswered)
}

// event is the journal's entry for a change that a caller asked for.
func (g *Groups) event(typ nstance.EventType, key nstance.GroupKey, what string, who config.Changer) nstance.Event {
	return nstance.Event{
		Time: g.Now().UTC(), Type: typ, Tenant: key.Tenant, Group: key.Group,
		Reason: what + " (asked for by " + who.Subject + ")",
	}
}

// changeEvent returns the event for another override or owner of a group; the zero event:
// they are equal.
func (g *Groups) changeEvent(key nstance.GroupKey, before, after overlay, was, is nstance.Group, who config.Changer) nstance.Event {
	names := config.Differences(before.Override, after.Override)
	if i := slices.Index(names, "size"); i >= 0 {
		names[i] = fmt.Sprintf("size %d, was %d", is.Size, was.Size)
	}
	if names = append(names, ownerChange(before.Owner, after.Owner)...); len(names) == 0 {
		return nstance.Event{}
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
	err = g.edit(ctx, key, dryRun, func(v *view, f *overlays) (none nstance.Event, err error) {
		conf := v.conf
		same, owner, err := g.existsAs(*f, key, o, who)
		if err != nil {
			return none, err
		}
		if same {
			var done nstance.Event
			spec, done, err = g.setOwner(conf, f, key, owner, who)
			return done, err
		}
		created := overlay{Override: o, Dynamic: true, Owner: owner}
		r := g.resolveGroup(conf, key, created)
		if spec = r.Group; errors.Is(r.err, nstance.Invalid) {
			return none, r.err
		}
		if err := g.resolver.types.checkRequest(types, &r.configured); err != nil {
			return none, err
		}
		if err := g.checkSize(who, v, key, 0, spec.Size, dryRun); err != nil {
			return none, err
		}
		if err := checkBudget(who, v, key, created); err != nil {
			return none, err
		}
		if err := f.put(key, created); err != nil {
			return none, err
		}
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

// existsAs reports whether the group exists as o describes it, and whose it is once it is
// created. Fails where it must not be created.
func (g *Groups) existsAs(f overlays, key nstance.GroupKey, o config.Override, who config.Changer) (same bool, owner string, err error) {
	e := f.of(key)
	gone := !e.isGroup() || e.Removing != nil && !g.hasMembers(key)
	switch {
	case !e.isGroup() && len(f.Groups) >= maxGroups:
		return false, "", &nstance.Error{Code: nstance.Quota, Field: "group", Msg: "the shard has as many groups as it can hold", Remedy: "delete some, or use another shard"}
	case gone:
		owner, err = ownerAfter(key, "", who)
		return false, owner, err
	case e.Removing != nil:
		return false, "", beingRemoved(key)
	}
	if owner, err = ownerAfter(key, e.Owner, who); err != nil {
		return false, owner, err
	}
	if field := config.Difference(e.Override, o); field != "" {
		return false, "", &nstance.Error{Code: nstance.Conflict, Field: field, Msg: "group " + key.String() + " exists, and differs in this", Remedy: "update it instead"}
	}
	return true, owner, nil
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

// Update lays o over the group's override; fields that o leaves nil stay. It returns
// once that is durable; a dry run only checks it. It is refused for what it makes
// invalid, not for what was invalid before.
func (g *Groups) Update(ctx context.Context, who config.Changer, key nstance.GroupKey, o config.Override, dryRun bool) (spec nstance.Group, unchanged bool, err error) {
	conf := g.Config()
	if err := who.Allowance.Check(o); err != nil {
		return nstance.Group{}, false, err
	}
	types := g.resolver.lookUpTypes(ctx, typesNamed(conf, o))
	err = g.edit(ctx, key, dryRun, func(v *view, f *overlays) (none nstance.Event, err error) {
		conf := v.conf
		e := f.of(key)
		if err := g.changeable(conf, key, e); err != nil {
			return none, err
		}
		owner, err := ownerAfter(key, e.Owner, who)
		if err != nil {
			return none, err
		}
		was, before := g.resolveGroup(conf, key, e), overlay{Override: e.override(conf.Static(key)), Owner: e.Owner}
		e.Override, e.Owner = o.Over(before.Override), owner
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
		if err := g.checkSize(who, v, key, was.Size, spec.Size, dryRun); err != nil {
			return none, err
		}
		unchanged = len(config.Differences(before.Override, e.Override)) == 0 && before.Owner == e.Owner
		if err := checkBudget(who, v, key, e); err != nil {
			return none, err
		}
		if err := f.put(key, e); err != nil {
			return none, err
		}
		return g.changeEvent(key, before, e, was.Group, spec, who), nil
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

// Remove begins the removal of a dynamic group, or clears the overlay and owner of a
// configured one. It returns the group as it is until it is gone, or as it is
// without the overlay.
func (g *Groups) Remove(ctx context.Context, who config.Changer, key nstance.GroupKey, dryRun bool) (nstance.Group, error) {
	var spec nstance.Group
	err := g.edit(ctx, key, dryRun, func(v *view, f *overlays) (done nstance.Event, err error) {
		conf := v.conf
		e := f.of(key)
		if _, err := ownerAfter(key, e.Owner, who); err != nil {
			return done, err
		}
		if conf.Static(key) {
			spec, done, err = g.clearOverlay(conf, key, &e, who)
		} else {
			spec, done, err = g.markRemoved(conf, key, &e, who)
		}
		if err == nil {
			err = f.put(key, e)
		}
		return done, err
	})
	return spec, err
}

func (g *Groups) clearOverlay(conf *config.Config, key nstance.GroupKey, e *overlay, who config.Changer) (spec nstance.Group, done nstance.Event, err error) {
	before, was := overlay{Override: e.staticOverride(), Owner: e.Owner}, g.resolveGroup(conf, key, *e).Group
	if before.Empty() && before.Owner == "" {
		return spec, done, nstance.FieldError("group", "remove it from the configuration, then delete it",
			"group %s is in the configuration, and nothing was changed of it through the API", key)
	}
	e.Override, e.Dynamic, e.Owner = config.Override{}, false, ""
	spec = g.resolveGroup(conf, key, *e).Group
	return spec, g.changeEvent(key, before, *e, was, spec, who), nil
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
	known, err := g.shard.Group(key)
	if err == nil {
		err = who.Allowance.Check(o)
	}
	if err == nil && !groupspec.Defined(&known.Group) {
		err = nstance.Errorf(nstance.Unavailable, "group %s has no definition yet: %s", key, known.Pending)
	}
	if err == nil {
		spec, err = conf.Lay(known.Group, o)
	}
	if err == nil {
		err = errors.Join(config.CheckVars(spec.Definition, o.Vars), conf.CheckCertifiedVars(key.Tenant, spec.Definition), config.CheckBootstrapData(spec, true))
	}
	if err == nil && changesTypes(o) {
		err = g.resolver.types.checkRequest(g.resolver.lookUpTypes(ctx, typesNamed(conf, o)), &spec)
	}
	if err != nil {
		return spec, nil, err
	}
	if err := g.Await(ctx); err != nil {
		return spec, nil, err
	}
	return spec, func(onDemand int) error { return who.Allowance.Room("id", g.sizes.of(key.Tenant)+onDemand, 1) }, nil
}
