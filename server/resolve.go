package server

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/server/config"
	"github.com/nstance-go/nstance/server/files"
	"github.com/nstance-go/nstance/storage"
)

// resolved is what resolved/{shard}.json holds: what names and addresses in the
// configuration stood for when they were last looked at, so that a new leader
// knows it when nobody answers.
type resolved struct {
	storage.Header
	Images   map[string]found `json:"images,omitempty"`   // the provider's ID, by query
	UserData map[string]found `json:"userdata,omitempty"` // the digest of what was fetched, by address
	Secrets  map[string]found `json:"secrets,omitempty"`  // the mark of the content, by name
	Types    map[string]found `json:"types,omitempty"`    // what instance types run, by name: comma-separated; nothing: the provider knows none of that name
}

// found is one answer.
type found struct {
	Is string    `json:"is"`
	At time.Time `json:"at"` // when it was last confirmed
}

// A resolver finds out what names of images and addresses of user data stand
// for, and whether instance types suit: when a term begins, when the
// configuration changes, and every image_refresh. What cannot be found stays
// what it was.
type resolver struct {
	t       *term
	doc     *storage.Doc[resolved]
	fetch   *fetcher
	can     provider.Abilities
	secrets files.Source
	key     []byte        // of marks; nil: not read yet. Only run uses it
	wake    chan struct{} // has room for one: there is something to find

	mu     sync.Mutex
	read   bool // known is what is durable, or newer
	known  resolved
	bodies map[string][]byte    // fetched user data, by digest
	looked map[string]time.Time // when tracked secrets were last read
	archs  map[string][]nstance.Arch
	asked  map[string]bool    // types that groups in force name
	recent []string           // types that requests named, oldest first
	tried  map[string]bool    // types that the provider was asked for in this term, whatever it said
	wrong  map[string]trouble // what could not be found, and why
	seen   *config.Config     // for which it was looked last
	stale  bool               // everything is to be looked at again
}

// A trouble is something that could not be found, as a person may see it.
type trouble struct{ what, why string }

const (
	firstResolve   = 5 * time.Second // the wait after a failure, doubling
	lastResolve    = 5 * time.Minute
	maxRecentTypes = 1000
)

func newResolver(t *term) *resolver {
	return &resolver{
		t: t, fetch: newFetcher(t.server.store, func() []netip.Prefix { return t.server.config().Shard.UserDataPrefixes() }), can: t.reconciler.Abilities(), wake: make(chan struct{}, 1),
		doc: storage.NewDoc[resolved](t.server.store, storage.ResolvedKey(t.conf.Shard.ID), &storage.DocOptions{
			Epoch: t.granted.Epoch(), Check: t.granted.Err,
		}),
		secrets: t.server.secretSource(), looked: map[string]time.Time{},
		bodies: map[string][]byte{}, archs: map[string][]nstance.Arch{}, asked: map[string]bool{}, tried: map[string]bool{}, wrong: map[string]trouble{},
	}
}

// run resolves until ctx ends.
func (v *resolver) run(ctx context.Context) {
	defer v.fetch.close()
	failed := 0
	for ctx.Err() == nil {
		conf := v.t.server.config()
		loaded := v.load(ctx, conf)
		ok := v.findTypes(ctx) && loaded && v.resolve(ctx, conf)
		v.t.groups.publish()
		v.t.groups.settleSoon()
		wait := conf.Shard.ImageRefresh*9/10 + rand.N(conf.Shard.ImageRefresh/10+1)
		if len(conf.TrackedSecrets()) > 0 {
			wait = min(wait, conf.Shard.FileRefresh)
		}
		if failed++; ok {
			failed = 0
		} else {
			wait = min(wait, firstResolve<<min(failed-1, 10), lastResolve)
		}
		select {
		case <-ctx.Done():
		case <-v.wake:
		case <-time.After(wait):
		}
	}
}

// consider has another configuration looked at.
func (v *resolver) consider(conf *config.Config) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.seen != conf {
		v.seen = conf
		v.signal()
	}
}

// again has everything looked at again.
func (v *resolver) again() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.stale = true
	v.signal()
}

func (v *resolver) signal() {
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// load reads what is durable, once, and what user data of the configuration it
// names. It reports whether nothing is left to be read.
func (v *resolver) load(ctx context.Context, conf *config.Config) bool {
	v.mu.Lock()
	read := v.read
	v.mu.Unlock()
	if read {
		return true
	}
	known, err := v.doc.Load(ctx)
	if err != nil {
		v.note(storage.ResolvedKey(conf.Shard.ID), fmt.Errorf("cannot be read: %w", err))
		return false
	}
	v.note(storage.ResolvedKey(conf.Shard.ID), nil)
	bodies := map[string][]byte{}
	for _, u := range addresses(conf) {
		digest := known.UserData[addressKey(u)].Is
		if digest == "" || bodies[digest] != nil {
			continue
		}
		data, err := v.t.reconciler.Records().Fetched(ctx, digest)
		switch code := nstance.CodeOf(err); {
		case err == nil:
			bodies[digest] = data
		case code != nstance.NotFound && code != nstance.Invalid: // those are fetched again
			v.note(storage.FetchedKey(conf.Shard.ID, digest), fmt.Errorf("cannot be read: %w", err))
			return false
		}
	}
	v.recall(known, bodies)
	v.t.groups.publish()
	return true
}

// recall takes what was known before this term.
func (v *resolver) recall(known resolved, bodies map[string][]byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.read, v.known, v.bodies = true, known, bodies
	for name, f := range known.Types {
		if _, newer := v.archs[name]; !newer {
			v.archs[name] = archsIn(f.Is)
		}
	}
}

// note remembers why something could not be found, or that it could.
func (v *resolver) note(what string, err error) { v.noteAs(what, what, err) }

// noteAs is note for what is shown as something else than it is known by.
func (v *resolver) noteAs(what, shown string, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err == nil {
		delete(v.wrong, what)
		return
	}
	if v.wrong[what].why != err.Error() {
		v.t.log.Warn("not resolved", "what", shown, "code", nstance.CodeOf(err), "err", err)
	}
	v.wrong[what] = trouble{shown, err.Error()}
}

// addresses returns the user data that is to be fetched, each address once with
// each digest.
func addresses(conf *config.Config) (out []nstance.UserData) {
	for _, t := range conf.Templates {
		u := t.UserData
		if u == nil || u.Source != nstance.SourceURL {
			continue
		}
		d := nstance.UserData{Source: u.Source, Encoding: u.Encoding, Content: u.Content, SHA256: string(u.SHA256)}
		if !slices.ContainsFunc(out, func(o nstance.UserData) bool { return o.Content == d.Content && o.SHA256 == d.SHA256 }) {
			out = append(out, d)
		}
	}
	return out
}

// queries returns the images that are to be looked for, by the key under which
// they are remembered.
func queries(conf *config.Config) map[string]nstance.ImageQuery {
	out := map[string]nstance.ImageQuery{}
	for name, t := range conf.Templates {
		if _, image, ok := conf.Image(name); ok {
			if q, lookup := image.Query(t.Arch); lookup {
				out[queryKey(q)] = q
			}
		}
	}
	return out
}

func queryKey(q nstance.ImageQuery) string {
	return strings.Join([]string{q.Owner, q.Name, string(q.Arch)}, "|")
}

// addressKey tells apart what should be at one address at different times. It
// may hold a signature: it is shown to nobody.
func addressKey(u nstance.UserData) string {
	return strings.TrimSuffix(u.Content+" "+u.SHA256, " ")
}

// resolve finds what conf needs and is not known, or not well enough any more,
// and makes it durable. It reports whether all of it was found.
func (v *resolver) resolve(ctx context.Context, conf *config.Config) bool {
	v.mu.Lock()
	all := v.stale
	v.stale = false
	v.mu.Unlock()
	due := func(f found) bool {
		return f.Is == "" || all || v.t.server.opts.Now().Sub(f.At) >= conf.Shard.ImageRefresh*9/10
	}
	ok := v.findImages(ctx, conf, due)
	ok = v.findUserData(ctx, conf, due) && ok
	ok = v.findSecrets(ctx, conf, all) && ok
	return v.save(ctx, conf) && ok
}

func (v *resolver) findImages(ctx context.Context, conf *config.Config, due func(found) bool) bool {
	ok := true
	for key, q := range queries(conf) {
		v.mu.Lock()
		was := v.known.Images[key]
		v.mu.Unlock()
		if !due(was) || v.can.Images == nil {
			continue
		}
		id, err := v.can.Images.ResolveImage(ctx, q)
		v.note("image "+key, err)
		if ok = ok && err == nil; err != nil {
			continue
		}
		v.mu.Lock()
		v.known.Images = with(v.known.Images, key, found{id, v.t.server.opts.Now().UTC()})
		v.mu.Unlock()
		if was.Is != id {
			v.t.log.Info("image resolved", "image", key, "was", was.Is, "is", id)
		}
	}
	return ok
}

func (v *resolver) findUserData(ctx context.Context, conf *config.Config, due func(found) bool) bool {
	ok := true
	for _, u := range addresses(conf) {
		key := addressKey(u)
		v.mu.Lock()
		was := v.known.UserData[key]
		_, have := v.bodies[was.Is]
		v.mu.Unlock()
		if pinned := u.SHA256 != "" && was.Is == u.SHA256; have && (pinned || !due(was)) {
			continue
		}
		data, err := v.fetch.fetch(ctx, u)
		if err == nil {
			err = v.keep(ctx, data)
		}
		v.noteAs("user data "+key, "user data "+config.ShownURL(u.Content), err)
		if ok = ok && err == nil; err != nil {
			continue
		}
		v.mu.Lock()
		v.known.UserData = with(v.known.UserData, key, found{digestOf(data), v.t.server.opts.Now().UTC()})
		v.bodies[digestOf(data)] = data
		v.mu.Unlock()
	}
	return ok
}

// keep makes fetched user data durable.
func (v *resolver) keep(ctx context.Context, data []byte) error {
	_, err := v.t.reconciler.Records().PutFetched(ctx, data)
	return err
}

// keepNamed does so once more for what is about to be named, in place of what was:
// it may have been found long before.
func (v *resolver) keepNamed(ctx context.Context, now, was map[string]found) error {
	for key, f := range now {
		v.mu.Lock()
		data, have := v.bodies[f.Is]
		v.mu.Unlock()
		if !have || was[key].Is == f.Is {
			continue
		}
		if err := v.keep(ctx, data); err != nil {
			return err
		}
	}
	return nil
}

// save makes durable what was found, without what conf does not need.
func (v *resolver) save(ctx context.Context, conf *config.Config) bool {
	needed := map[string]bool{}
	for key := range queries(conf) {
		needed[key] = true
	}
	digests, secrets := map[string]bool{}, map[string]bool{}
	for _, name := range conf.TrackedSecrets() {
		secrets[name] = true
	}
	v.mu.Lock()
	for _, u := range addresses(conf) {
		needed[addressKey(u)] = true
		digests[v.known.UserData[addressKey(u)].Is] = true
	}
	v.known = resolved{
		Images: only(v.known.Images, needed), UserData: only(v.known.UserData, needed),
		Secrets: only(v.known.Secrets, secrets), Types: v.typesKnown(),
	}
	maps.DeleteFunc(v.bodies, func(digest string, _ []byte) bool { return !digests[digest] })
	maps.DeleteFunc(v.wrong, func(what string, _ trouble) bool {
		_, key, named := strings.Cut(strings.TrimPrefix(what, "user "), " ")
		if name, ok := strings.CutPrefix(what, "secret "); ok {
			return !secrets[name]
		}
		return named && (strings.HasPrefix(what, "image ") || strings.HasPrefix(what, "user data ")) && !needed[key]
	})
	snapshot := v.known
	v.mu.Unlock()
	held, exists := v.doc.Held()
	if same(held.Images, snapshot.Images) && same(held.UserData, snapshot.UserData) && same(held.Secrets, snapshot.Secrets) && same(held.Types, snapshot.Types) || !exists && len(needed)+len(secrets)+len(snapshot.Types) == 0 {
		return true
	}
	err := v.keepNamed(ctx, snapshot.UserData, held.UserData)
	if err == nil {
		_, err = v.doc.Update(ctx, func(r *resolved) error { *r = snapshot; return nil })
	}
	v.note(storage.ResolvedKey(conf.Shard.ID), err)
	return err == nil
}

func same(a, b map[string]found) bool { return maps.Equal(a, b) }

// with returns a copy of m with one entry more: who holds m keeps what it was.
func with(m map[string]found, key string, f found) map[string]found {
	out := maps.Clone(m)
	if out == nil {
		out = map[string]found{}
	}
	out[key] = f
	return out
}

func only(m map[string]found, needed map[string]bool) map[string]found {
	out := maps.Clone(m)
	maps.DeleteFunc(out, func(key string, _ found) bool { return !needed[key] })
	if len(out) == 0 {
		return nil
	}
	return out
}

// complete puts what was found into the definition of a group as conf has it. It
// fails when something is not known yet, or does not suit: then the group cannot
// be had this way.
func (v *resolver) complete(conf *config.Config, spec *nstance.Group) error {
	if err := v.fill(conf, spec); err != nil {
		return err
	}
	return v.vet(conf, spec)
}

// fill is complete without a look at instance types.
func (v *resolver) fill(conf *config.Config, spec *nstance.Group) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	d := &spec.Definition
	if name, image, ok := conf.Image(config.TemplateName(spec.Template)); ok {
		if q, lookup := image.Query(d.Arch); lookup {
			if d.Image = v.known.Images[queryKey(q)].Is; d.Image == "" {
				return v.unknown("image "+queryKey(q), fmt.Sprintf("image %s", name))
			}
		}
	}
	if u := &d.UserData; u.Source == nstance.SourceURL {
		if u.Fetched = v.bodies[v.known.UserData[addressKey(*u)].Is]; u.Fetched == nil {
			return v.unknown("user data "+addressKey(*u), "userdata.content")
		}
	}
	return v.mark(d)
}

// vet is complete for a group whose definition stands as it is.
func (v *resolver) vet(_ *config.Config, spec *nstance.Group) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, name := range spec.Definition.InstanceTypes {
		if _, known := v.archs[name]; !known && !v.tried[name] && v.can.Types != nil {
			return nstance.Errorf(nstance.Unavailable, "instance type %.64q is not known yet: it is being looked for", name)
		}
	}
	return typeArchs(v.archs).suit(&spec.Definition)
}

func (v *resolver) unknown(what, shown string) error {
	why := v.wrong[what].why
	if why == "" {
		why = "it is being looked for"
	}
	return nstance.Errorf(nstance.Unavailable, "%s is not known yet: %s", shown, why)
}

// problems lists what a person should see.
func (v *resolver) problems() (out []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, w := range v.wrong {
		out = append(out, w.what+": "+w.why)
	}
	for name, archs := range v.archs {
		if archs == nil && v.asked[name] {
			out = append(out, fmt.Sprintf("instance type %.64q is none that the provider knows", name))
		}
	}
	if kind, _ := v.t.conf.Kind(); v.can.Types == nil && len(v.asked) > 0 && !kind.FreeTypes {
		out = append(out, "the provider does not list its instance types: whether they suit the architecture of templates is not checked")
	}
	slices.Sort(out)
	return out
}

// able refuses a configuration that asks for what the provider cannot do.
func able(conf *config.Config, can provider.Abilities) error {
	for name, image := range conf.Images {
		if image.ID == "" && can.Images == nil {
			return nstance.FieldError("images."+string(name)+".name", "give its id", "the provider cannot look for images")
		}
	}
	for name := range conf.LoadBalancers {
		if can.Balancers == nil {
			return nstance.FieldError("load_balancers."+string(name), "remove it", "the provider has no load balancers that can be changed")
		}
	}
	return nil
}
