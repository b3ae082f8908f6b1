package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/server/config"
	"github.com/nstance-go/nstance/storage"
)

// groups knows what the groups of the shard should be, by the configuration in
// force and by what is durable in groups/{shard}.jsonc, and tells the
// reconciler.
type groups struct {
	t   *term
	doc *storage.Doc[groupsFile] // holds the newest file that is durable

	turn chan struct{} // has room for one: whose turn it is to change what tenants have
	wake chan struct{} // has room for one: there is something to settle

	mu       sync.Mutex                    // orders publications; held only in memory work
	read     bool                          // doc says what is durable: before, nothing is wanted
	problems []string                      // groups that cannot be understood
	unkept   error                         // why the last attempt to settle failed
	defs     map[string]nstance.Definition // that entries name, by digest

	goneMu sync.Mutex                // taken under the reconciler's lock: nothing is called under it
	gone   map[nstance.GroupKey]bool // removed groups of which nothing is left

	published *config.Config // whose load balancers the reconciler has
}

func newGroups(t *term) *groups {
	return &groups{
		t: t, turn: make(chan struct{}, 1), wake: make(chan struct{}, 1), defs: map[string]nstance.Definition{}, gone: map[nstance.GroupKey]bool{},
		doc: storage.NewDoc[groupsFile](t.server.store, storage.GroupsKey(t.conf.Shard.ID), &storage.DocOptions{
			Epoch: t.granted.Epoch(), Check: t.granted.Err,
		}),
	}
}

// load reads the file, again until that succeeds or ctx ends, and makes the
// reconciler want what it says. Until then nothing is planned: the size of a
// group whose overlay is unknown is unknown. tried is called after the first
// attempt.
func (g *groups) load(ctx context.Context, tried func()) {
	defer tried() // the term may be over before it begins
	for ctx.Err() == nil {
		file, err := g.doc.Load(ctx)
		if err == nil {
			err = g.fetch(ctx, file)
		}
		g.loaded(err)
		tried()
		if err == nil || ctx.Err() != nil {
			return
		}
		g.t.log.Error("groups not read yet, nothing is planned", "code", nstance.CodeOf(err), "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// run loads the file, then keeps it in step with what happens until ctx ends.
func (g *groups) run(ctx context.Context, tried func()) {
	g.load(ctx, tried)
	for ctx.Err() == nil {
		if err := g.settle(ctx); err != nil && ctx.Err() == nil {
			g.t.log.Warn("groups not kept yet, will be repeated", "code", nstance.CodeOf(err), "err", err)
			time.AfterFunc(time.Second, g.settleSoon)
		}
		select {
		case <-ctx.Done():
		case <-g.wake:
		}
	}
}

func (g *groups) settleSoon() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// loaded takes note of a reading of the file.
func (g *groups) loaded(err error) {
	g.mu.Lock()
	if g.read = g.read || err == nil; !g.read {
		g.problems = []string{fmt.Sprintf("%s cannot be read, nothing is planned: %v", storage.GroupsKey(g.t.conf.Shard.ID), err)}
	}
	g.mu.Unlock()
	g.publish()
}

// publish tells the reconciler what every group should be, by the configuration
// in force and the newest file.
func (g *groups) publish() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.read {
		return
	}
	conf := g.t.server.config()
	file, _ := g.doc.Held()
	laid, problems := g.lay(conf, file)
	wanted, _, more := g.complete(conf, file, laid)
	g.problems = append(problems, more...)
	if g.published != conf {
		g.published = conf
		g.t.resolver.consider(conf)
		g.t.reconciler.Observe(nstance.Balancing{LoadBalancers: conf.Balancers()})
	}
	g.t.reconciler.Observe(nstance.Desired{Groups: wanted})
	g.t.files.published()
}

// An openGroup is a group whose definition cannot be completed.
type openGroup struct {
	nstance.Group
	why error
}

// complete puts into groups what names and addresses in conf stand for. Those
// that cannot be had that way are returned apart: they are left as they are.
func (g *groups) complete(conf *config.Config, file groupsFile, laid []nstance.Group) (done []nstance.Group, open []openGroup, problems []string) {
	for _, spec := range laid {
		complete := g.t.resolver.complete
		if file.of(spec.Key).alone(conf, spec.Key) {
			complete = g.t.resolver.vet
		}
		if err := complete(conf, &spec); err != nil {
			problems = append(problems, fmt.Sprintf("group %s is left as it is: %v", spec.Key, err))
			open = append(open, openGroup{spec, err})
			continue
		}
		done = append(done, spec)
	}
	return done, open, problems
}

// impact says what another configuration would cost. It fails with Unavailable
// while the file is not known.
func (g *groups) impact(conf *config.Config) (reconcile.Impact, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.read {
		return reconcile.Impact{}, nstance.Errorf(nstance.Unavailable, "%s is not read yet", storage.GroupsKey(g.t.conf.Shard.ID))
	}
	file, _ := g.doc.Held()
	laid, _ := g.lay(conf, file)
	done, open, _ := g.complete(conf, file, laid)
	for _, o := range open {
		done = append(done, o.Group) // what is not known yet counts as another
	}
	return g.t.reconciler.Impact(done)
}

// lay returns every group as a configuration and a file want it, and what is
// wrong. A group that cannot be understood is not among them: it is left as it
// is. It needs the lock.
func (g *groups) lay(conf *config.Config, file groupsFile) (wanted []nstance.Group, problems []string) {
	add := func(key nstance.GroupKey, spec nstance.Group, err error) {
		if err != nil {
			problems = append(problems, fmt.Sprintf("group %s is left as it is: what the API said of it: %v", key, err))
			return
		}
		wanted = append(wanted, spec)
	}
	for _, static := range conf.Groups() {
		spec, err := conf.Overlay(static.Key, file.of(static.Key).overlay())
		add(static.Key, spec, err)
	}
	for _, key := range file.keys() {
		if e := file.of(key); !conf.Static(key) && e.exists() {
			spec, err := g.dynamic(conf, key, e)
			add(key, spec, err)
		}
	}
	return wanted, problems
}

// dynamic returns a group that is not configured: its template with what the API
// says laid over it or, if there is no such template any more or never was, its
// last definition. It needs the lock.
func (g *groups) dynamic(conf *config.Config, key nstance.GroupKey, e entry) (nstance.Group, error) {
	spec, err := conf.Templated(key, e.Template)
	_, sized := conf.SizeOf(e.Template)
	switch {
	case err != nil && e.Base == nil:
		return spec, err
	case err != nil:
		def, ok := g.defs[e.Base.Definition]
		if !ok {
			return spec, nstance.Errorf(nstance.Invalid, "definition %s cannot be read", e.Base.Definition)
		}
		if spec, err = e.Base.group(conf, key, def); err != nil {
			return spec, err
		}
		spec = conf.Released(spec)
	case !sized && e.Base != nil: // a template that says nothing of the size any more changes none
		spec.Size = e.Base.Size
	}
	spec, err = conf.Lay(spec, e.Override)
	spec.Removing = e.Removing != nil
	return spec, err
}

// fetch reads the definitions that a file names and that are not known. One that
// is missing or damaged concerns its group only.
func (g *groups) fetch(ctx context.Context, file groupsFile) error {
	for _, e := range file.Groups {
		if e.Base == nil || g.knows(e.Base.Definition) {
			continue
		}
		def, err := g.t.reconciler.Records().Definition(ctx, e.Base.Definition)
		switch {
		case err == nil:
			g.learn(e.Base.Definition, def)
		case errors.Is(err, nstance.NotFound), errors.Is(err, nstance.Invalid):
			g.t.log.Error("definition of a group cannot be read", "definition", e.Base.Definition, "err", err)
		default:
			return err
		}
	}
	return nil
}

func (g *groups) knows(digest string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, ok := g.defs[digest]
	return ok
}

func (g *groups) learn(digest string, def nstance.Definition) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.defs[digest] = def
}

// settle brings the file in step with the configuration in force: it remembers
// what every group is, so that each can go on without the configuration, and
// forgets the groups that are gone. It returns once that is durable. When there
// is nothing to change, nothing is written.
func (g *groups) settle(ctx context.Context) error {
	err := g.keep(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unkept = err
	return err
}

func (g *groups) keep(ctx context.Context) error {
	conf, gone := g.t.server.config(), g.takeGone()
	file, err := g.known(ctx)
	if err != nil {
		return err
	}
	bases, err := g.bases(ctx, conf, file)
	if err == nil {
		_, err = g.doc.Update(ctx, func(f *groupsFile) error { f.settle(conf, bases, gone); return nil })
	}
	if err != nil {
		for _, key := range gone {
			g.forgetSoon(key)
		}
		return err
	}
	g.publish()
	return nil
}

// forgetSoon has the entry of a group removed of which nothing is left. It may be
// called under the reconciler's lock.
func (g *groups) forgetSoon(key nstance.GroupKey) {
	g.goneMu.Lock()
	g.gone[key] = true
	g.goneMu.Unlock()
	g.settleSoon()
}

func (g *groups) takeGone() []nstance.GroupKey {
	g.goneMu.Lock()
	defer g.goneMu.Unlock()
	keys := slices.Collect(maps.Keys(g.gone))
	clear(g.gone)
	return keys
}

// bases returns what stands beneath what the API says of each group, with its
// definition durable.
func (g *groups) bases(ctx context.Context, conf *config.Config, file groupsFile) (map[nstance.GroupKey]*base, error) {
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
		was := file.of(spec.Key).Base
		if g.t.resolver.complete(conf, &spec) != nil && was != nil { // it is not known yet what it is to be now
			out[spec.Key] = was
			continue
		}
		var err error
		if out[spec.Key], err = g.remember(ctx, spec, was); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// remember returns spec in the form in which it is kept, with its definition
// durable; was is how it was kept before.
func (g *groups) remember(ctx context.Context, spec nstance.Group, was *base) (*base, error) {
	digest, err := storage.DefinitionDigest(spec.Definition)
	if err == nil && (was == nil || was.Definition != digest) {
		_, err = g.t.reconciler.Records().PutDefinition(ctx, spec.Definition)
	}
	if err != nil {
		return nil, err
	}
	g.learn(digest, spec.Definition)
	return baseOf(spec, digest), nil
}

// trouble returns what a person should see.
func (g *groups) trouble() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := slices.Clone(g.problems)
	if g.unkept != nil && g.read {
		out = append(out, fmt.Sprintf("%s is not in step with the configuration yet: %v", storage.GroupsKey(g.t.conf.Shard.ID), g.unkept))
	}
	return out
}

// known returns the durable file, from memory once it was read.
func (g *groups) known(ctx context.Context) (groupsFile, error) {
	g.mu.Lock()
	read := g.read
	g.mu.Unlock()
	if !read {
		return g.doc.Load(ctx)
	}
	file, _ := g.doc.Held()
	return file, nil
}

// overlaid reports whether the API has changed something of a group that is
// configured.
func (g *groups) overlaid(key nstance.GroupKey) bool {
	file, _ := g.doc.Held()
	return g.t.server.config().Static(key) && !file.of(key).overlay().Empty()
}

// groupsFile is what groups/{shard}.jsonc holds.
type groupsFile struct {
	Groups map[string]entry `json:"groups"` // by tenant/group
}

// An entry is what is durable of a group beside the configuration.
type entry struct {
	config.Override
	Dynamic  bool     `json:"dynamic,omitempty"`  // made through the API, or not configured any more
	Base     *base    `json:"base,omitempty"`     // what configuration or template made of it last, without Override
	Removing *removal `json:"removing,omitempty"` // it goes, and its managed members with it
}

// A base is a group as configuration or template made it, so that it can go on
// without them.
type base struct {
	Template     string          `json:"template,omitempty"`
	Size         int             `json:"size"`
	Definition   string          `json:"definition"` // digest
	DrainTimeout config.Duration `json:"drain_timeout"`
	Rollout      *config.Pace    `json:"rollout"`
	Protect      bool            `json:"protect,omitempty"`
}

// A removal says who wants a group to go, and since when.
type removal struct {
	At time.Time `json:"at"`
	By string    `json:"by"`
}

func baseOf(spec nstance.Group, digest string) *base {
	return &base{
		Template: spec.Template, Size: spec.Size, Definition: digest, DrainTimeout: config.Duration(spec.DrainTimeout),
		Rollout: config.PaceOf(spec.Rollout), Protect: spec.Protect,
	}
}

func (b *base) group(conf *config.Config, key nstance.GroupKey, def nstance.Definition) (nstance.Group, error) {
	spec := nstance.Group{Key: key, Template: b.Template, Size: b.Size, Definition: def, DrainTimeout: time.Duration(b.DrainTimeout), Protect: b.Protect}
	return conf.Lay(spec, config.Override{Rollout: b.Rollout})
}

func (f groupsFile) of(key nstance.GroupKey) entry { return f.Groups[key.String()] }

// keys returns the keys of the entries in order; what is no key is left alone.
func (f groupsFile) keys() (out []nstance.GroupKey) {
	for _, name := range slices.Sorted(maps.Keys(f.Groups)) {
		tenant, group, _ := strings.Cut(name, "/")
		key := nstance.GroupKey{Tenant: nstance.TenantID(tenant), Group: nstance.GroupID(group)}
		if key.Tenant.Validate("tenant") == nil && key.Group.Validate("group") == nil {
			out = append(out, key)
		}
	}
	return out
}

// exists reports whether the entry by itself makes a group.
func (e entry) exists() bool { return e.Template != "" || e.Base != nil }

// alone reports whether a group stands on its last definition, which is complete.
func (e entry) alone(conf *config.Config, key nstance.GroupKey) bool {
	_, templated := conf.Templates[e.Template]
	return !conf.Static(key) && !templated
}

// overlay returns what is laid over the group if it is configured. What it was
// as a dynamic group counts no more then.
func (e entry) overlay() config.Override {
	if e.Dynamic {
		return config.Override{}
	}
	return e.Override
}

func (f *groupsFile) put(key nstance.GroupKey, e entry) {
	if f.Groups == nil {
		f.Groups = map[string]entry{}
	}
	f.Groups[key.String()] = e
}

// settle brings the file in step with a configuration.
func (f *groupsFile) settle(conf *config.Config, bases map[nstance.GroupKey]*base, gone []nstance.GroupKey) {
	for key, b := range bases {
		e := f.of(key)
		switch {
		case conf.Static(key):
			e = entry{Override: e.overlay(), Base: b}
		case e.exists():
			e.Base = b
		default:
			continue
		}
		f.put(key, e)
	}
	for _, key := range f.keys() {
		if e := f.of(key); !conf.Static(key) && !e.Dynamic && e.exists() { // it was configured
			e.Dynamic = true
			f.put(key, e)
		}
	}
	for _, key := range gone {
		if f.of(key).Removing != nil {
			delete(f.Groups, key.String())
		}
	}
}
