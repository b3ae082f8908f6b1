package groups

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/storage"
)

// resolved is what resolved/{shard}.json holds: what names and addresses in the
// configuration stood for when they were last looked up. A new leader starts from
// it where a look-up fails.
type resolved struct {
	records.Header
	Images   map[string]found `json:"images,omitempty"`   // the provider's ID, by query
	UserData map[string]found `json:"userdata,omitempty"` // digest of the content, by address
	Secrets  map[string]found `json:"secrets,omitempty"`  // mark of the content, by name
	Types    map[string]found `json:"types,omitempty"`    // architectures, comma-separated, by instance type; empty: the provider knows no such type
}

// found is one answer.
type found struct {
	Is string    `json:"is"`
	At time.Time `json:"at"` // when it was last confirmed
}

// A resolver looks up images, user data, tracked secrets and instance types: when a
// term begins, when the configuration changes, and every image_refresh. Where a
// look-up fails, the last answer stays.
type resolver struct {
	groups  *Groups
	doc     *records.Doc[resolved]
	fetcher *fetcher
	can     provider.Abilities
	types   *instanceTypes
	wake    chan struct{} // has room for one: there is something to look up

	mu         sync.Mutex
	markKey    []byte // nil: not read yet
	loaded     bool   // known is what is durable, or newer
	known      resolved
	bodies     map[string][]byte    // fetched user data, by digest
	markedAt   map[string]time.Time // when tracked secrets were last read
	failures   map[string]failure   // by what failed
	considered *config.Config       // of the last look-up
	refreshAll bool
}

// A failure says what could not be looked up, and why.
type failure struct{ what, why string }

// maxLookUps is how many look-ups are under way at a time.
const maxLookUps = 16

const (
	firstRetry = 5 * time.Second // the wait after a failure, doubling
	lastRetry  = 5 * time.Minute
)

func newResolver(g *Groups, store storage.Store) *resolver {
	return &resolver{
		groups: g, can: g.shard.Abilities(), types: newInstanceTypes(), wake: make(chan struct{}, 1),
		fetcher: newFetcher(store, func() []netip.Prefix { return g.Config().Shard.UserDataPrefixes() }),
		doc:     records.NewDoc[resolved](store, layout.ResolvedKey(g.Shard), &records.DocOptions{Epoch: g.Epoch, Check: g.Check}),
		bodies:  map[string][]byte{}, markedAt: map[string]time.Time{}, failures: map[string]failure{},
	}
}

// run looks up until ctx ends.
func (r *resolver) run(ctx context.Context) {
	defer r.fetcher.close()
	failed := 0
	for ctx.Err() == nil {
		conf := r.groups.Config()
		ok := r.lookUp(ctx, conf)
		r.groups.ApplySoon()
		wait := conf.Shard.ImageRefresh*9/10 + rand.N(conf.Shard.ImageRefresh/10+1)
		if len(conf.TrackedSecrets()) > 0 {
			wait = min(wait, conf.Shard.FileRefresh)
		}
		if failed++; ok {
			failed = 0
		} else {
			wait = min(wait, sleep.Backoff(failed, firstRetry, lastRetry))
		}
		select {
		case <-ctx.Done():
		case <-r.wake:
		case <-time.After(wait):
		}
	}
}

// consider has another configuration looked up.
func (r *resolver) consider(conf *config.Config) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.considered != conf {
		r.considered = conf
		r.signal()
	}
}

// refresh has everything looked up again.
func (r *resolver) refresh() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refreshAll = true
	r.signal()
}

func (r *resolver) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// load reads what is durable, once, and the user data of the configuration that it
// names. It reports whether everything was read.
func (r *resolver) load(ctx context.Context, conf *config.Config) bool {
	r.mu.Lock()
	loaded := r.loaded
	r.mu.Unlock()
	if loaded {
		return true
	}
	known, err := r.doc.Load(ctx)
	if err != nil {
		r.setFailure(layout.ResolvedKey(conf.Shard.ID), fmt.Errorf("cannot be read: %w", err))
		return false
	}
	r.setFailure(layout.ResolvedKey(conf.Shard.ID), nil)
	digests := map[string]bool{}
	for _, u := range addresses(conf) {
		digests[known.UserData[addressKey(u)].Is] = true
	}
	delete(digests, "")
	bodies, err := r.readBodies(ctx, conf.Shard.ID, slices.Collect(maps.Keys(digests)))
	if err != nil {
		return false
	}
	r.types.recall(known.Types)
	r.mu.Lock()
	r.loaded, r.known, r.bodies = true, known, bodies
	r.mu.Unlock()
	r.groups.ApplySoon()
	return true
}

// readBodies reads fetched user data, by digest. What is gone or damaged is left out: it is
// fetched again.
func (r *resolver) readBodies(ctx context.Context, shard nstance.ShardID, digests []string) (map[string][]byte, error) {
	var mu sync.Mutex
	var g errgroup.Group
	g.SetLimit(maxLookUps)
	bodies := map[string][]byte{}
	for _, digest := range digests {
		g.Go(func() error {
			data, err := r.groups.shard.Records().Fetched(ctx, digest)
			missing := errors.Is(err, nstance.NotFound) || errors.Is(err, nstance.Invalid)
			switch {
			case missing:
				err = nil
			case err != nil:
				err = fmt.Errorf("cannot be read: %w", err)
			}
			if r.setFailure(layout.FetchedKey(shard, digest), err); err != nil || missing {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			bodies[digest] = data
			return nil
		})
	}
	return bodies, g.Wait()
}

// setFailure records why a look-up failed; nil: it succeeded.
func (r *resolver) setFailure(what string, err error) { r.setShownFailure(what, what, err) }

// setShownFailure is setFailure for a look-up whose own name may hold a secret.
func (r *resolver) setShownFailure(what, shown string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		delete(r.failures, what)
		return
	}
	if r.failures[what].why != err.Error() {
		r.groups.Log.Warn("look-up failed, retrying", "what", shown, "code", nstance.CodeOf(err), "err", err)
	}
	r.failures[what] = failure{shown, err.Error()}
}

// addresses returns the user data to fetch, each address once with each digest.
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

// queries returns the images to look up, by queryKey.
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

// addressKey tells apart contents of one address with different digests. The
// address may hold a signature, so the key is not shown.
func addressKey(u nstance.UserData) string {
	return strings.TrimSuffix(u.Content+" "+u.SHA256, " ")
}

// A lookUp is one question. It puts its answer where groups find it.
type lookUp func(context.Context) error

// lookUp looks up what conf needs and is unknown or due, and makes the answers
// durable. It reports whether all look-ups succeeded. None waits for another, or for its
// success: an answer is in force when it is known.
func (r *resolver) lookUp(ctx context.Context, conf *config.Config) bool {
	loaded := r.load(ctx, conf)
	r.mu.Lock()
	all := r.refreshAll
	r.refreshAll = all && !loaded
	r.mu.Unlock()
	due := func(f found) bool {
		return f.Is == "" || all || r.groups.Now().Sub(f.At) >= conf.Shard.ImageRefresh*9/10
	}
	tasks := r.findTypes(all)
	if loaded {
		tasks = slices.Concat(tasks, r.findImages(conf, due), r.findUserData(conf, due), r.findSecrets(conf, all))
	}
	var g errgroup.Group // without its context: none ends another
	g.SetLimit(maxLookUps)
	for _, task := range tasks {
		g.Go(func() error {
			err := task(ctx)
			r.groups.ApplySoon()
			return err
		})
	}
	ok := g.Wait() == nil && loaded
	return (!loaded || r.save(ctx, conf)) && ok
}

func (r *resolver) findImages(conf *config.Config, due func(found) bool) (tasks []lookUp) {
	for key, q := range queries(conf) {
		r.mu.Lock()
		before := r.known.Images[key]
		r.mu.Unlock()
		if !due(before) || r.can.Images == nil {
			continue
		}
		tasks = append(tasks, func(ctx context.Context) error {
			id, err := r.can.Images.ResolveImage(ctx, q)
			if r.setFailure("image "+key, err); err != nil {
				return err
			}
			r.mu.Lock()
			r.known.Images = with(r.known.Images, key, found{id, r.groups.Now().UTC()})
			r.mu.Unlock()
			if before.Is != id {
				r.groups.Log.Info("image resolved", "image", key, "was", before.Is, "is", id)
			}
			return nil
		})
	}
	return tasks
}

func (r *resolver) findUserData(conf *config.Config, due func(found) bool) (tasks []lookUp) {
	for _, u := range addresses(conf) {
		key := addressKey(u)
		r.mu.Lock()
		before := r.known.UserData[key]
		_, have := r.bodies[before.Is]
		r.mu.Unlock()
		if pinned := u.SHA256 != "" && before.Is == u.SHA256; have && (pinned || !due(before)) {
			continue
		}
		tasks = append(tasks, func(ctx context.Context) error {
			data, err := r.fetcher.fetch(ctx, u)
			if err == nil {
				_, err = r.groups.shard.Records().PutFetched(ctx, data)
			}
			if r.setShownFailure("user data "+key, "user data "+config.ShownURL(u.Content), err); err != nil {
				return err
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.known.UserData = with(r.known.UserData, key, found{digestOf(data), r.groups.Now().UTC()})
			r.bodies[digestOf(data)] = data
			return nil
		})
	}
	return tasks
}

// findTypes asks for the instance types of groups, as far as they are unknown, or for all.
func (r *resolver) findTypes(all bool) []lookUp {
	names := r.types.toAsk(all)
	if len(names) == 0 {
		return nil
	}
	return []lookUp{func(ctx context.Context) error { return r.askTypes(ctx, names) }}
}

// lookUpTypes returns the architectures of the instance types of a request. The
// provider is asked for unknown ones. Without an answer they are not refused.
func (r *resolver) lookUpTypes(ctx context.Context, names []string) typeArchs {
	names = slices.Clone(names)
	slices.Sort(names)
	names = slices.Compact(names)
	ctx, cancel := r.groups.Bound(ctx)
	defer cancel()
	_ = r.askTypes(ctx, r.types.request(names)) // without an answer none is refused
	return r.types.of(names)
}

func (r *resolver) askTypes(ctx context.Context, names []string) error {
	if r.can.Types == nil || len(names) == 0 {
		return nil
	}
	archs, err := r.can.Types.TypeArchs(ctx, names)
	r.setFailure("instance types", err)
	r.types.setAnswer(names, archs, err == nil, err == nil || ctx.Err() == nil)
	return err
}

// putNamed stores fetched user data that the document is about to name, in case it
// was deleted as garbage since it was fetched.
func (r *resolver) putNamed(ctx context.Context, now, before map[string]found) error {
	for key, f := range now {
		r.mu.Lock()
		data, have := r.bodies[f.Is]
		r.mu.Unlock()
		if !have || before[key].Is == f.Is {
			continue
		}
		if _, err := r.groups.shard.Records().PutFetched(ctx, data); err != nil {
			return err
		}
	}
	return nil
}

// save makes the answers durable, without those that conf does not need.
func (r *resolver) save(ctx context.Context, conf *config.Config) bool {
	needed, secrets := map[string]bool{}, map[string]bool{}
	for key := range queries(conf) {
		needed[key] = true
	}
	for _, u := range addresses(conf) {
		needed[addressKey(u)] = true
	}
	for _, name := range conf.TrackedSecrets() {
		secrets[name] = true
	}
	now := r.forgetUnneeded(needed, secrets)
	before, exists := r.doc.Held()
	if now.equals(before) || !exists && len(needed)+len(secrets)+len(now.Types) == 0 {
		return true
	}
	err := r.putNamed(ctx, now.UserData, before.UserData)
	if err == nil {
		_, err = r.doc.Update(ctx, func(d *resolved) error {
			d.Images, d.UserData, d.Secrets, d.Types = now.Images, now.UserData, now.Secrets, now.Types
			return nil
		})
	}
	r.setFailure(layout.ResolvedKey(conf.Shard.ID), err)
	return err == nil
}

// forgetUnneeded forgets what the configuration does not name, and returns what is
// known.
func (r *resolver) forgetUnneeded(needed, secrets map[string]bool) resolved {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known = resolved{
		Images: only(r.known.Images, needed), UserData: only(r.known.UserData, needed),
		Secrets: only(r.known.Secrets, secrets), Types: r.types.durable(r.known.Types, r.groups.Now().UTC()),
	}
	digests := map[string]bool{}
	for _, f := range r.known.UserData {
		digests[f.Is] = true
	}
	maps.DeleteFunc(r.bodies, func(digest string, _ []byte) bool { return !digests[digest] })
	maps.DeleteFunc(r.failures, func(what string, _ failure) bool {
		if name, ok := strings.CutPrefix(what, "secret "); ok {
			return !secrets[name]
		}
		key, image := strings.CutPrefix(what, "image ")
		if !image {
			var userData bool
			if key, userData = strings.CutPrefix(what, "user data "); !userData {
				return false
			}
		}
		return !needed[key]
	})
	return r.known
}

func (k resolved) equals(o resolved) bool {
	return maps.Equal(k.Images, o.Images) && maps.Equal(k.UserData, o.UserData) && maps.Equal(k.Secrets, o.Secrets) && maps.Equal(k.Types, o.Types)
}

// with returns a copy of m with one entry more: m may be in use.
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

// complete puts the answers into the definition of a group as conf has it. Fails
// with Unavailable where one is missing, with Invalid where instance types do not
// suit.
func (r *resolver) complete(conf *config.Config, spec *nstance.Group) error {
	if err := r.fill(conf, spec); err != nil {
		return err
	}
	return r.checkTypes(conf, spec)
}

// fill is complete without the check of instance types.
func (r *resolver) fill(conf *config.Config, spec *nstance.Group) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := &spec.Definition
	if name, image, ok := conf.Image(config.TemplateName(spec.Template)); ok {
		if q, lookup := image.Query(d.Arch); lookup {
			if d.Image = r.known.Images[queryKey(q)].Is; d.Image == "" {
				return r.unknown("image "+queryKey(q), fmt.Sprintf("image %s", name))
			}
		}
	}
	if u := &d.UserData; u.Source == nstance.SourceURL {
		if u.Fetched = r.bodies[r.known.UserData[addressKey(*u)].Is]; u.Fetched == nil {
			return r.unknown("user data "+addressKey(*u), "userdata.content")
		}
	}
	return r.fillMarks(d)
}

// checkTypes is complete for a group whose definition is resolved.
func (r *resolver) checkTypes(_ *config.Config, spec *nstance.Group) error {
	return r.types.check(spec, r.can.Types != nil)
}

// unknown needs the lock.
func (r *resolver) unknown(what, shown string) error {
	why := r.failures[what].why
	if why == "" {
		why = "it is being looked for"
	}
	return nstance.Errorf(nstance.Unavailable, "%s is not known yet: %s", shown, why)
}

// problems returns what operators should see.
func (r *resolver) problems() (out []string) {
	r.mu.Lock()
	for _, f := range r.failures {
		out = append(out, f.what+": "+f.why)
	}
	r.mu.Unlock()
	missing, wanted := r.types.unknownToProvider()
	for _, name := range missing {
		out = append(out, fmt.Sprintf("instance type %.64q is none that the provider knows", name))
	}
	if kind, _ := r.groups.Config().Kind(); r.can.Types == nil && wanted && !kind.FreeTypes {
		out = append(out, "the provider does not list its instance types: whether they suit the architecture of templates is not checked")
	}
	slices.Sort(out)
	return out
}

// CheckAbilities refuses a configuration that asks for what the provider cannot do.
func CheckAbilities(conf *config.Config, can provider.Abilities) error {
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
