// Package groups resolves what every group of a shard should be: the configuration
// in force, what the API has changed of it, and what names of images, addresses of
// user data, tracked secrets and instance types stand for.
package groups

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/server/config"
	"github.com/nstance-go/nstance/server/files"
	"github.com/nstance-go/nstance/storage"
)

// A shard is what is needed of the reconciler.
type shard interface {
	Observe(f nstance.Fact)
	Records() *storage.Records
	Abilities() provider.Abilities
	Group(key nstance.GroupKey) (reconcile.GroupView, error)
	Configured(key nstance.GroupKey) (nstance.Group, bool)
	OnDemand(tenant nstance.TenantID) int
	Impact(groups []nstance.Group) (reconcile.Impact, error)
	WhatIf(d nstance.Desired, all bool) ([]reconcile.GroupPlan, error)
}

// Options configure Groups. All fields are required.
type Options struct {
	Shard  nstance.ShardID
	Config func() *config.Config // in force
	Epoch  uint64
	Check  func() error // fails when the term has ended
	Now    func() time.Time
	Retry  time.Duration // between two attempts to read the overlays
	Log    *slog.Logger

	Vault   *vault.Vault // has the key of marks
	Secrets files.Source // of files

	// Bound returns a context for one request to another party.
	Bound func(ctx context.Context) (context.Context, context.CancelFunc)
	// Journal receives what the API changes.
	Journal func(e nstance.Event)
	// Published is called after the reconciler was told what groups should be. It
	// must not block.
	Published func()
}

// Groups tells the reconciler what the groups of the shard should be, by the
// configuration in force and by the overlays in groups/{shard}.jsonc.
type Groups struct {
	Options
	shard    shard
	overlays *storage.Doc[overlays] // holds the newest that is durable
	defs     *definitions
	resolver *resolver

	editTurn chan struct{} // has room for one: held while overlays of tenants change
	wake     chan struct{} // has room for one: there is something to settle

	mu          sync.Mutex // orders publications; held only for work in memory
	loaded      bool       // overlays were read; before, nothing is published
	problems    []string
	unresolved  map[nstance.GroupKey]bool // whether all but the definition is known
	settleError error                     // of the last attempt
	balancing   *config.Config            // whose load balancers the reconciler has

	removedMu sync.Mutex                // taken under the reconciler's lock: nothing is called under it
	removed   map[nstance.GroupKey]bool // removed groups without members, whose overlay can go
}

// New returns the groups of one term, which do nothing before Run.
func New(store storage.Store, r *reconcile.Reconciler, opts Options) *Groups {
	g := &Groups{
		Options: opts, shard: r, defs: &definitions{records: r.Records(), log: opts.Log, known: map[string]nstance.Definition{}},
		editTurn: make(chan struct{}, 1), wake: make(chan struct{}, 1), removed: map[nstance.GroupKey]bool{},
		overlays: storage.NewDoc[overlays](store, storage.GroupsKey(opts.Shard), &storage.DocOptions{Epoch: opts.Epoch, Check: opts.Check}),
	}
	g.resolver = newResolver(g, store)
	return g
}

// Run resolves and publishes what groups should be until ctx ends. tried is called
// after the first attempt to read the overlays.
func (g *Groups) Run(ctx context.Context, tried func()) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { g.resolver.run(ctx) })
	g.load(ctx, tried)
	for ctx.Err() == nil {
		if err := g.Settle(ctx); err != nil && ctx.Err() == nil {
			g.Log.Warn("groups not kept yet, will be repeated", "code", nstance.CodeOf(err), "err", err)
			time.AfterFunc(time.Second, g.SettleSoon)
		}
		select {
		case <-ctx.Done():
		case <-g.wake:
		}
	}
}

// load reads the overlays, again until that succeeds or ctx ends. Until then
// nothing is planned: the size of a group whose overlay is unknown is unknown.
func (g *Groups) load(ctx context.Context, tried func()) {
	defer tried() // also where the term ends before the first attempt
	for ctx.Err() == nil {
		file, err := g.overlays.Load(ctx)
		if err == nil {
			err = g.defs.fetchAll(ctx, file)
		}
		g.setLoaded(err)
		tried()
		if err == nil || ctx.Err() != nil {
			return
		}
		g.Log.Error("groups not read yet, nothing is planned", "code", nstance.CodeOf(err), "err", err)
		sleep.For(ctx, g.Retry)
	}
}

// setLoaded records the outcome of reading the overlays.
func (g *Groups) setLoaded(err error) {
	g.mu.Lock()
	if g.loaded = g.loaded || err == nil; !g.loaded {
		g.problems = []string{fmt.Sprintf("%s cannot be read, nothing is planned: %v", storage.GroupsKey(g.Shard), err)}
	}
	g.mu.Unlock()
	g.Publish()
}

// Publish tells the reconciler what every group should be, by the configuration in
// force and the newest overlays.
func (g *Groups) Publish() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.loaded {
		return
	}
	conf := g.Config()
	file, _ := g.overlays.Held()
	d := g.desired(conf, file)
	if g.resolver.types.want(typesIn(d)) {
		g.resolver.signal()
	}
	g.setUnresolved(d.Open)
	if g.balancing != conf {
		g.balancing = conf
		g.resolver.consider(conf)
		g.shard.Observe(nstance.Balancing{LoadBalancers: conf.Balancers()})
	}
	g.shard.Observe(d)
	g.Published()
}

// desired returns every group as a configuration and overlays define it. It needs
// the lock.
func (g *Groups) desired(conf *config.Config, file overlays) nstance.Desired {
	specs, invalid := g.specs(conf, file)
	d := g.resolve(conf, file, specs)
	d.Open = append(d.Open, invalid...)
	return d
}

// typesIn returns the instance types that d names.
func typesIn(d nstance.Desired) (names []string) {
	for _, spec := range d.Groups {
		names = append(names, spec.Definition.InstanceTypes...)
	}
	for _, u := range d.Open {
		names = append(names, u.Definition.InstanceTypes...)
		if u.Last != nil {
			names = append(names, u.Last.Definition.InstanceTypes...)
		}
	}
	return names
}

// setUnresolved records the unresolved groups. When they have changed, so has what
// must be durable of them. It needs the lock.
func (g *Groups) setUnresolved(groups []nstance.Unresolved) {
	before := g.unresolved
	g.unresolved, g.problems = map[nstance.GroupKey]bool{}, nil
	for _, u := range groups {
		g.unresolved[u.Key] = u.Known
		g.problems = append(g.problems, fmt.Sprintf("group %s is left as it is: %s", u.Key, u.Why))
	}
	if !maps.Equal(before, g.unresolved) {
		g.SettleSoon()
	}
}

// resolve completes definitions with what names and addresses in conf stand for.
// Groups for which that is unknown or invalid stay unresolved. It needs the lock.
func (g *Groups) resolve(conf *config.Config, file overlays, specs []nstance.Group) (d nstance.Desired) {
	for _, spec := range specs {
		complete, e := g.resolver.complete, file.of(spec.Key)
		if e.standalone(conf, spec.Key) {
			complete = g.resolver.checkTypes
		}
		err := complete(conf, &spec)
		if err == nil {
			err = config.CheckVars(spec.Definition, e.override(conf.Static(spec.Key)).Vars)
		}
		if err != nil {
			d.Open = append(d.Open, nstance.Unresolved{Group: spec, Known: true, Last: g.withLastDefinition(spec, e), Why: err.Error()})
			continue
		}
		d.Groups = append(d.Groups, spec)
	}
	return d
}

// withLastDefinition returns an unresolved group with the definition that was in
// force; nil: none is known.
func (g *Groups) withLastDefinition(spec nstance.Group, e overlay) *nstance.Group {
	def, ok := g.defs.get(e.LastDefinition)
	if !ok {
		return nil
	}
	spec.Definition = def
	return &spec
}

// lastGroup returns an invalid group as it was when it was valid; nil: unknown.
func (g *Groups) lastGroup(conf *config.Config, key nstance.GroupKey, e overlay) *nstance.Group {
	def, ok := g.defs.get(e.LastDefinition)
	if !ok || e.LastGroup == nil {
		return nil
	}
	spec, err := e.LastGroup.group(conf, key, def)
	if err != nil {
		return nil
	}
	spec.Expiry = nstance.Expiry(conf.Shard.Expiry)
	return &spec
}

// specs returns every group as a configuration and overlays define it, and the
// invalid ones. It needs the lock.
func (g *Groups) specs(conf *config.Config, file overlays) (specs []nstance.Group, invalid []nstance.Unresolved) {
	add := func(key nstance.GroupKey, spec nstance.Group, err error) {
		if err == nil {
			specs = append(specs, spec)
			return
		}
		e, why := file.of(key), fmt.Sprintf("its overlay is invalid: %v", err)
		u := nstance.Unresolved{Group: nstance.Group{Key: key, Static: conf.Static(key)}, Last: g.lastGroup(conf, key, e), Why: why}
		if !u.Static && e.Removing != nil { // an invalid group can still be removed
			u.Known, u.Removing, u.DrainTimeout = true, true, conf.Shard.DefaultDrainTimeout
			if u.Last != nil {
				u.DrainTimeout = u.Last.DrainTimeout
			}
		}
		invalid = append(invalid, u)
	}
	for _, static := range conf.Groups() {
		spec, err := conf.Overlay(static.Key, file.of(static.Key).staticOverride())
		add(static.Key, spec, err)
	}
	for _, key := range file.keys() {
		if e := file.of(key); !conf.Static(key) && e.isGroup() {
			spec, err := g.dynamic(conf, key, e)
			add(key, spec, err)
		}
	}
	return specs, invalid
}

// dynamic returns a group that is not configured: its template under its overlay,
// or its last definition where there is no such template.
func (g *Groups) dynamic(conf *config.Config, key nstance.GroupKey, e overlay) (nstance.Group, error) {
	spec, err := conf.Templated(key, e.Template)
	_, sized := conf.SizeOf(e.Template)
	switch {
	case err != nil && e.Base == nil:
		return spec, err
	case err != nil:
		def, ok := g.defs.get(e.Base.Definition)
		if !ok {
			return spec, nstance.Errorf(nstance.Invalid, "definition %s cannot be read", e.Base.Definition)
		}
		if spec, err = e.Base.group(conf, key, def); err != nil {
			return spec, err
		}
		spec = conf.Released(spec)
	case !sized && e.Base != nil: // a template that no longer has a size keeps the group's
		spec.Size = e.Base.Size
	}
	spec, err = conf.Lay(spec, e.Override)
	spec.Removing = e.Removing != nil
	return spec, err
}

// Problems returns what operators should see of overlays.
func (g *Groups) Problems() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := slices.Clone(g.problems)
	if g.settleError != nil && g.loaded {
		out = append(out, fmt.Sprintf("%s does not follow the configuration yet: %v", storage.GroupsKey(g.Shard), g.settleError))
	}
	return out
}

// LookupProblems returns what operators should see of images, user data, secrets
// and instance types.
func (g *Groups) LookupProblems() []string { return g.resolver.problems() }

// RefreshLookups has all images, user data and secrets looked up again.
func (g *Groups) RefreshLookups() { g.resolver.refresh() }

// durable returns the overlays, from memory once they were read.
func (g *Groups) durable(ctx context.Context) (overlays, error) {
	g.mu.Lock()
	loaded := g.loaded
	g.mu.Unlock()
	if !loaded {
		return g.overlays.Load(ctx)
	}
	file, _ := g.overlays.Held()
	return file, nil
}

// Overlaid reports whether the API has changed a configured group.
func (g *Groups) Overlaid(key nstance.GroupKey) bool {
	file, _ := g.overlays.Held()
	return g.Config().Static(key) && !file.of(key).staticOverride().Empty()
}
