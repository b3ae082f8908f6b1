// Package groups makes the groups of a shard whole: the configuration in force, what
// the API has changed of it, and what names of images, addresses of user data, tracked
// secrets and instance types stand for. What is told to the reconciler is durable
// before. A definition that cannot be completed or makes no sense is pending: the last
// one that was whole stays in effect.
package groups

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/fair"
	"github.com/nstance-go/nstance/internal/files"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
)

// A shard is what is needed of the reconciler.
type shard interface {
	Observe(f nstance.Fact)
	Records() *records.Records
	Abilities() provider.Abilities
	Group(key nstance.GroupKey) (reconcile.GroupView, error)
	OnDemand(tenant nstance.TenantID) int
	DesireGroup(g nstance.Group)
	Impact(groups []nstance.Group) (reconcile.Impact, error)
	WhatIf(groups []nstance.Group, all bool) ([]reconcile.GroupPlan, error)
}

// Options configure Groups. All fields are required.
type Options struct {
	Shard  nstance.ShardID
	Config func() *config.Config // in force
	// Proposed reports whether that was not accepted: groups do not follow it.
	Proposed func() bool
	Epoch    uint64
	Check    func() error // fails when the term has ended
	Now      func() time.Time
	Retry    time.Duration // between two attempts to read the overlays
	Log      *slog.Logger

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

// Groups tells the reconciler what the groups of the shard should be.
type Groups struct {
	Options
	shard    shard
	doc      *records.Doc[overlays] // groups/{shard}.jsonc; holds the newest that is durable
	defs     *definitions
	resolver *resolver

	turns *fair.Queue[nstance.TenantID] // of one slot: held while groups change
	wake  chan struct{}                 // has room for one: a group was removed, or all is true
	again atomic.Bool                   // something that all groups follow from has changed

	complete     chan struct{} // closed once the reconciler knows every group
	markComplete func()

	mu         sync.Mutex
	loaded     bool           // the overlays were read; before, nothing is told
	view       *view          // of what the reconciler was told; changes with the turn
	problems   []string       // why the overlays cannot be read
	applyError error          // of the last attempt
	balancing  *config.Config // whose load balancers the reconciler has

	unanswered map[nstance.GroupKey]unansweredEdit // needs the turn
	sizes      tenantSizes

	dataMu sync.Mutex
	data   map[string]string // bootstrap data, by name

	removedMu sync.Mutex                // taken under the reconciler's lock: nothing is called under it
	removed   map[nstance.GroupKey]bool // removed groups without members, whose overlay can go
}

// New returns the groups of one term, which do nothing before Run.
func New(store storage.Store, r shard, opts Options) *Groups {
	g := &Groups{
		Options: opts, shard: r, defs: &definitions{records: r.Records(), log: opts.Log, known: map[string]nstance.Definition{}},
		turns: fair.NewQueue[nstance.TenantID](1, 1, math.MaxInt), wake: make(chan struct{}, 1), removed: map[nstance.GroupKey]bool{}, data: map[string]string{},
		unanswered: map[nstance.GroupKey]unansweredEdit{},
		doc:        records.NewDoc[overlays](store, layout.GroupsKey(opts.Shard), &records.DocOptions{Epoch: opts.Epoch, Check: opts.Check}),
	}
	g.complete = make(chan struct{})
	g.markComplete = sync.OnceFunc(func() { close(g.complete) })
	g.resolver = newResolver(g, store)
	return g
}

// Run keeps the groups until ctx ends. tried is called after the first attempt to
// read the overlays.
func (g *Groups) Run(ctx context.Context, tried func()) {
	var wg sync.WaitGroup
	defer wg.Wait()
	g.load(ctx, tried)
	g.resolver.load(ctx, g.Config())
	wg.Go(func() { g.resolver.run(ctx) })
	g.again.Store(true)
	for ctx.Err() == nil {
		if err := g.follow(ctx); err != nil && ctx.Err() == nil {
			g.Log.Warn("groups not applied yet, retrying", "code", nstance.CodeOf(err), "err", err)
			time.AfterFunc(time.Second, g.ApplySoon)
		}
		select {
		case <-ctx.Done():
		case <-g.wake:
		}
	}
}

// load reads the overlays, again until that succeeds or ctx ends, and tells the
// reconciler which groups were in effect. Until then nothing is planned.
func (g *Groups) load(ctx context.Context, tried func()) {
	defer tried() // also where the term ends before the first attempt
	for ctx.Err() == nil {
		file, err := g.doc.Load(ctx)
		if err == nil {
			err = g.defs.fetchAll(ctx, file)
		}
		if err == nil {
			conf := g.Config()
			last := g.lastEffective(conf, file)
			g.tell(newView(conf, file, last), last)
			return
		}
		g.mu.Lock()
		g.problems = []string{fmt.Sprintf("%s cannot be read, nothing is planned: %v", layout.GroupsKey(g.Shard), err)}
		g.mu.Unlock()
		tried()
		g.Log.Error("groups cannot be read, nothing is planned until they are", "code", nstance.CodeOf(err), "err", err)
		sleep.For(ctx, g.Retry)
	}
}

// follow does what ApplySoon and ForgetSoon ask for.
func (g *Groups) follow(ctx context.Context) error {
	if g.again.Swap(false) {
		if err := g.Apply(ctx); err != nil {
			return err
		}
	}
	if g.Proposed() {
		return nil // they are forgotten later
	}
	var failed error
	for _, key := range g.takeRemoved() {
		err := g.edit(ctx, key, false, func(_ *view, f *overlays) (nstance.Event, error) {
			if !g.hasMembers(key) { // it may have been made and removed again meanwhile
				f.forget(key)
			}
			return nstance.Event{}, nil
		})
		if err != nil {
			g.forgetLater(key)
			failed = err
		}
	}
	return failed
}

// Apply has all groups follow the configuration in force and what is looked up. It
// returns once that is durable, and writes nothing where nothing has changed.
func (g *Groups) Apply(ctx context.Context) error {
	done, err := g.turns.Acquire(ctx, "")
	if err == nil {
		defer done()
		if g.Proposed() {
			err = g.stay(ctx)
		} else {
			err = g.apply(ctx)
			g.signal() // of what waits to be forgotten
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.applyError = err
	return err
}

// ApplySoon has Run call Apply.
func (g *Groups) ApplySoon() {
	g.again.Store(true)
	g.signal()
}

// ForgetSoon has the overlay of a removed group without members deleted. It may be
// called under the reconciler's lock.
func (g *Groups) ForgetSoon(key nstance.GroupKey) {
	g.forgetLater(key)
	g.signal()
}

func (g *Groups) forgetLater(key nstance.GroupKey) {
	g.removedMu.Lock()
	defer g.removedMu.Unlock()
	g.removed[key] = true
}

func (g *Groups) signal() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

func (g *Groups) takeRemoved() []nstance.GroupKey {
	g.removedMu.Lock()
	defer g.removedMu.Unlock()
	keys := slices.Collect(maps.Keys(g.removed))
	clear(g.removed)
	return keys
}

// apply resolves all groups, makes durable which are in effect, and tells the
// reconciler. Afterwards no edit without an answer can become durable any more. It needs
// the turn.
func (g *Groups) apply(ctx context.Context) error {
	conf := g.Config()
	var all []resolution
	file, err := g.doc.Update(ctx, func(f *overlays) error {
		if err := g.defs.fetchAll(ctx, *f); err != nil {
			return err
		}
		all = g.resolve(conf, *f)
		return g.record(ctx, conf, f, all)
	})
	if err != nil {
		return err
	}
	g.journalUnanswered(file)
	v := newView(conf, file, all)
	g.mu.Lock()
	g.view = v
	g.sizes.setAll(v)
	g.mu.Unlock()
	g.tell(v, all)
	g.markComplete()
	return nil
}

// stay has all groups be shown as they were in effect last. It needs the turn.
func (g *Groups) stay(ctx context.Context) error {
	file, err := g.durable(ctx)
	if err != nil {
		return err
	}
	conf := g.Config()
	g.mu.Lock()
	g.view = newView(conf, file, g.lastEffective(conf, file))
	g.sizes.setAll(g.view)
	g.mu.Unlock()
	g.markComplete()
	return nil
}

// tell tells the reconciler which groups are in effect.
func (g *Groups) tell(v *view, all []resolution) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.loaded, g.problems = true, nil
	var d nstance.Desired
	for _, r := range all {
		d.Groups = append(d.Groups, r.Group)
	}
	g.defs.keep(v.digests)
	if g.resolver.types.want(v.types) {
		g.resolver.signal()
	}
	if g.balancing != v.conf {
		g.balancing = v.conf
		g.resolver.consider(v.conf)
		g.shard.Observe(nstance.Balancing{LoadBalancers: v.conf.Balancers()})
	}
	g.shard.Observe(d)
	g.Published()
}

// tellOne tells the reconciler what one group is in effect; r nil: there is none. It
// needs the turn.
func (g *Groups) tellOne(v *view, file overlays, key nstance.GroupKey, r *resolution) {
	g.mu.Lock()
	defer g.mu.Unlock()
	was, is := v.set(key, file.of(key), r)
	v.writeID = file.WriteID
	g.sizes.set(key.Tenant, v.tenants[key.Tenant].size)
	if was.digest != "" && v.digests[was.digest] == 0 {
		g.defs.forget(was.digest)
	}
	if g.resolver.types.change(slices.Concat(was.types, is.types), v.types) {
		g.resolver.signal()
	}
	if r != nil {
		g.shard.DesireGroup(r.Group)
		g.Published()
	}
}

// Problems returns what operators should see of groups.
func (g *Groups) Problems() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := slices.Clone(g.problems)
	if g.view != nil {
		out = append(out, g.view.problems()...)
	}
	if g.applyError != nil && g.loaded {
		out = append(out, fmt.Sprintf("%s does not follow the configuration yet: %v", layout.GroupsKey(g.Shard), g.applyError))
	}
	return out
}

// LookupProblems returns what operators should see of images, user data, secrets
// and instance types.
func (g *Groups) LookupProblems() []string { return g.resolver.problems() }

// RefreshLookups has all images, user data and secrets looked up again.
func (g *Groups) RefreshLookups() { g.resolver.refresh() }

// Await returns once the reconciler knows every group. Fails with Unavailable while the
// overlays cannot be read, and when ctx ends.
func (g *Groups) Await(ctx context.Context) error {
	if _, err := g.read(); err != nil {
		return err
	}
	select {
	case <-g.complete:
		return nil
	case <-ctx.Done():
		return nstance.Errorf(nstance.Unavailable, "not all groups are known yet: %w", ctx.Err())
	}
}

// durable returns the overlays, from memory once they were read.
func (g *Groups) durable(ctx context.Context) (overlays, error) {
	if file, err := g.read(); err == nil {
		return file, nil
	}
	return g.doc.Load(ctx)
}

// read returns the overlays from memory. It fails with Unavailable before they were
// read.
func (g *Groups) read() (overlays, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.loaded {
		return overlays{}, nstance.Errorf(nstance.Unavailable, "%s is not read yet", layout.GroupsKey(g.Shard))
	}
	file, _ := g.doc.Held()
	return file, nil
}

// Overlaid reports whether the API has changed a configured group.
func (g *Groups) Overlaid(key nstance.GroupKey) bool {
	file, _ := g.doc.Held()
	return g.Config().Static(key) && !file.of(key).staticOverride().Empty()
}
