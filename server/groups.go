package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
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
	problems []string                      // groups that are open, or all
	open     map[nstance.GroupKey]bool     // those of which it is not known what they are made from: whether the rest is
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
		sleep.For(ctx, g.t.server.opts.intervals.campaign)
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
	d := g.desired(conf, file)
	g.t.resolver.wantTypes(groupsIn(d))
	g.noteOpen(d.Open)
	if g.published != conf {
		g.published = conf
		g.t.resolver.consider(conf)
		g.t.reconciler.Observe(nstance.Balancing{LoadBalancers: conf.Balancers()})
	}
	g.t.reconciler.Observe(d)
	g.t.files.published()
}

// desired returns every group as a configuration and a file want it. It needs the
// lock.
func (g *groups) desired(conf *config.Config, file groupsFile) nstance.Desired {
	laid, open := g.lay(conf, file)
	d := g.complete(conf, file, laid)
	d.Open = append(d.Open, open...)
	return d
}

// groupsIn returns every group of d as it should be, the open ones too.
func groupsIn(d nstance.Desired) []nstance.Group {
	all := slices.Clone(d.Groups)
	for _, u := range d.Open {
		all = append(all, u.Group)
		if u.Last != nil {
			all = append(all, *u.Last)
		}
	}
	return all
}

// noteOpen takes note of the groups that are open. When there are others than
// before, what they were is to be remembered, or need not be any more. It needs
// the lock.
func (g *groups) noteOpen(open []nstance.Unresolved) {
	was := g.open
	g.open, g.problems = map[nstance.GroupKey]bool{}, nil
	for _, u := range open {
		g.open[u.Key] = u.Known
		g.problems = append(g.problems, fmt.Sprintf("group %s is left as it is: %s", u.Key, u.Why))
	}
	if !maps.Equal(was, g.open) {
		g.settleSoon()
	}
}

// complete puts into groups what names and addresses in conf stand for. Those
// for which that is not known, or does not suit, are open. It needs the lock.
func (g *groups) complete(conf *config.Config, file groupsFile, laid []nstance.Group) (d nstance.Desired) {
	for _, spec := range laid {
		complete, e := g.t.resolver.complete, file.of(spec.Key)
		if e.alone(conf, spec.Key) {
			complete = g.t.resolver.vet
		}
		err := complete(conf, &spec)
		if err == nil {
			err = config.CheckVars(spec.Definition, e.set(conf.Static(spec.Key)).Vars)
		}
		if err != nil {
			d.Open = append(d.Open, nstance.Unresolved{Group: spec, Known: true, Last: g.madeFrom(spec, e), Why: err.Error()})
			continue
		}
		d.Groups = append(d.Groups, spec)
	}
	return d
}

// madeFrom returns an open group with what it was made from when that was
// remembered. It needs the lock.
func (g *groups) madeFrom(spec nstance.Group, e entry) *nstance.Group {
	def, ok := g.defs[e.Last]
	if !ok {
		return nil
	}
	spec.Definition = def
	return &spec
}

// was returns what an open group whose wants make no sense was when that was
// remembered. It needs the lock.
func (g *groups) was(conf *config.Config, key nstance.GroupKey, e entry) *nstance.Group {
	def, ok := g.defs[e.Last]
	if !ok || e.Was == nil {
		return nil
	}
	spec, err := e.Was.group(conf, key, def)
	if err != nil {
		return nil
	}
	spec.Expiry = nstance.Expiry(conf.Shard.Expiry)
	return &spec
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
	d := g.desired(conf, file)
	for _, u := range d.Open {
		if u.Known {
			d.Groups = append(d.Groups, u.Group) // what is not known yet counts as another
		}
	}
	return g.t.reconciler.Impact(d.Groups)
}

// lay returns every group as a configuration and a file want it, and those that
// cannot be understood. It needs the lock.
func (g *groups) lay(conf *config.Config, file groupsFile) (wanted []nstance.Group, open []nstance.Unresolved) {
	add := func(key nstance.GroupKey, spec nstance.Group, err error) {
		if err == nil {
			wanted = append(wanted, spec)
			return
		}
		e, why := file.of(key), fmt.Sprintf("what the API said of it: %v", err)
		u := nstance.Unresolved{Group: nstance.Group{Key: key, Static: conf.Static(key)}, Last: g.was(conf, key, e), Why: why}
		if !u.Static && e.Removing != nil { // it goes all the same
			u.Known, u.Removing, u.DrainTimeout = true, true, conf.Shard.DefaultDrainTimeout
			if u.Last != nil {
				u.DrainTimeout = u.Last.DrainTimeout
			}
		}
		open = append(open, u)
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
	return wanted, open
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
		for _, digest := range e.definitions() {
			if err := g.fetchOne(ctx, digest); err != nil {
				return err
			}
		}
	}
	return nil
}

func (g *groups) fetchOne(ctx context.Context, digest string) error {
	if g.knows(digest) {
		return nil
	}
	def, err := g.t.reconciler.Records().Definition(ctx, digest)
	switch {
	case err == nil:
		g.learn(digest, def)
	case errors.Is(err, nstance.NotFound), errors.Is(err, nstance.Invalid):
		g.t.log.Error("definition of a group cannot be read", "definition", digest, "err", err)
	default:
		return err
	}
	return nil
}

func (g *groups) knows(digest string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, ok := g.defs[digest]
	return ok
}

// means reports whether a digest is known to be that of a definition, which is
// cheaper than to make it.
func (g *groups) means(digest string, def nstance.Definition) bool {
	g.mu.Lock()
	known, ok := g.defs[digest]
	g.mu.Unlock()
	return ok && reflect.DeepEqual(known, def)
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
	var lasts map[nstance.GroupKey]*last
	if err == nil {
		lasts, err = g.lasts(ctx, conf, file)
	}
	if err == nil {
		g.keepDefinitions(bases, lasts)
		_, err = g.doc.Update(ctx, func(f *groupsFile) error { f.settle(conf, bases, lasts, gone); return nil })
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
		err := g.t.resolver.fill(conf, &spec)
		switch {
		case err != nil && was != nil: // it is not known yet what it is to be now
			out[spec.Key] = was
			continue
		case err != nil: // nor what it was
			continue
		}
		if out[spec.Key], err = g.remember(ctx, spec, was); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// lasts returns what the open groups are, with their definitions durable, so that
// the next leader knows it too.
func (g *groups) lasts(ctx context.Context, conf *config.Config, file groupsFile) (map[nstance.GroupKey]*last, error) {
	g.mu.Lock()
	open := g.desired(conf, file).Open
	g.mu.Unlock()
	out := map[nstance.GroupKey]*last{}
	for _, u := range open {
		e := file.of(u.Key)
		l := &last{e.Last, e.Was}
		out[u.Key] = l
		spec, ok := g.t.reconciler.Configured(u.Key)
		if !ok {
			continue
		}
		var err error
		if l.digest, err = g.record(ctx, spec.Definition, e.Last); err != nil {
			return nil, err
		}
		if l.whole = nil; !u.Known || u.Removing {
			l.whole = baseOf(spec, l.digest)
		}
	}
	return out, nil
}

// keepDefinitions keeps what the file is about to name.
func (g *groups) keepDefinitions(bases map[nstance.GroupKey]*base, lasts map[nstance.GroupKey]*last) {
	recs := g.t.reconciler.Records()
	for _, b := range bases {
		recs.KeepDefinitions(b.Definition)
	}
	for _, l := range lasts {
		if l.digest != "" {
			recs.KeepDefinitions(l.digest)
		}
	}
}

// remember returns spec in the form in which it is kept, with its definition
// durable; was is how it was kept before.
func (g *groups) remember(ctx context.Context, spec nstance.Group, was *base) (*base, error) {
	known := ""
	if was != nil {
		known = was.Definition
	}
	digest, err := g.record(ctx, spec.Definition, known)
	if err != nil {
		return nil, err
	}
	return baseOf(spec, digest), nil
}

// record makes a definition durable, unless it is known, and returns its digest.
func (g *groups) record(ctx context.Context, def nstance.Definition, known string) (digest string, err error) {
	if g.means(known, def) {
		return known, nil
	}
	if digest, err = storage.DefinitionDigest(def); err == nil && digest != known {
		_, err = g.t.reconciler.Records().PutDefinition(ctx, def)
	}
	if err != nil {
		return "", err
	}
	g.learn(digest, def)
	return digest, nil
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
