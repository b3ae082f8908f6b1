package server

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/server/config"
	"github.com/nstance-go/nstance/storage"
)

// overlays is what groups/{shard}.jsonc holds: what the API has changed of the
// groups in the configuration.
type overlays struct {
	Groups map[string]config.Override `json:"groups"` // by tenant/group
}

// groups lays what the API has changed over the configuration, and tells the
// reconciler what is wanted.
type groups struct {
	t   *term
	doc *storage.Doc[overlays] // holds the newest overlays that are durable

	mu       sync.Mutex // orders publications; held only in memory work
	read     bool       // doc says what is durable: before, nothing is wanted
	problems []string   // overlays that make no sense

	published *config.Config // whose load balancers the reconciler has
}

func newGroups(t *term) *groups {
	return &groups{t: t, doc: storage.NewDoc[overlays](t.server.store, storage.GroupsKey(t.conf.Shard.ID), &storage.DocOptions{
		Epoch: t.granted.Epoch(), Check: t.granted.Err,
	})}
}

// load reads the overlays, again until that succeeds or ctx ends, and makes the
// reconciler want what they say. Until then nothing is planned: the size of a
// group whose overlay is unknown is unknown. tried is called after the first
// attempt.
func (g *groups) load(ctx context.Context, tried func()) {
	defer tried() // the term may be over before it begins
	for ctx.Err() == nil {
		_, err := g.doc.Load(ctx)
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

// loaded takes note of the overlays' first reading.
func (g *groups) loaded(err error) {
	g.mu.Lock()
	if g.read = g.read || err == nil; !g.read {
		g.problems = []string{fmt.Sprintf("%s cannot be read, nothing is planned: %v", storage.GroupsKey(g.t.conf.Shard.ID), err)}
	}
	g.mu.Unlock()
	g.publish()
}

// publish tells the reconciler what every group should be, by the newest
// configuration and the newest overlays.
func (g *groups) publish() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.read {
		return
	}
	conf := g.t.server.config()
	laid, problems := g.lay(conf)
	wanted, _, more := g.complete(conf, laid)
	g.problems = append(problems, more...)
	if g.published != conf {
		g.published = conf
		g.t.resolver.consider(conf)
		g.t.reconciler.Observe(nstance.Balancing{LoadBalancers: conf.Balancers()})
	}
	g.t.reconciler.Observe(nstance.Desired{Groups: wanted})
	g.t.files.published()
}

// complete puts into groups what names and addresses in conf stand for. Those
// that cannot be had that way are returned apart: they are left as they are.
func (g *groups) complete(conf *config.Config, laid []nstance.Group) (done, open []nstance.Group, problems []string) {
	for _, spec := range laid {
		if err := g.t.resolver.complete(conf, &spec); err != nil {
			problems = append(problems, fmt.Sprintf("group %s is left as it is: %v", spec.Key, err))
			open = append(open, spec)
			continue
		}
		done = append(done, spec)
	}
	return done, open, problems
}

// impact says what another configuration would cost. It fails with Unavailable
// while the overlays are not known.
func (g *groups) impact(conf *config.Config) (reconcile.Impact, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.read {
		return reconcile.Impact{}, nstance.Errorf(nstance.Unavailable, "%s is not read yet", storage.GroupsKey(g.t.conf.Shard.ID))
	}
	laid, _ := g.lay(conf)
	done, open, _ := g.complete(conf, laid)
	return g.t.reconciler.Impact(append(done, open...)) // what is not known yet counts as another
}

// lay returns every group as conf and the newest overlays want it, and what is
// wrong with overlays. A group whose overlay makes no sense is not among them:
// it is left as it is. It needs the lock.
func (g *groups) lay(conf *config.Config) (wanted []nstance.Group, problems []string) {
	known, _ := g.doc.Held()
	for _, spec := range conf.Groups() {
		if o, ok := known.Groups[spec.Key.String()]; ok {
			laid, err := conf.Overlay(spec.Key, o)
			if err != nil {
				problems = append(problems, fmt.Sprintf("group %s is left as it is: what the API changed of it: %v", spec.Key, err))
				continue
			}
			spec = laid
		}
		wanted = append(wanted, spec)
	}
	return wanted, problems
}

// trouble returns what a person should see.
func (g *groups) trouble() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.problems
}

// change lays o over what the API changed of a group before; fields that o
// leaves nil stay. It returns once that is durable, or checks it only.
func (g *groups) change(ctx context.Context, key nstance.GroupKey, o config.Override, dryRun bool) (nstance.Group, error) {
	conf := g.t.server.config()
	var spec nstance.Group
	lay := func(all overlays) (merged config.Override, err error) {
		merged = over(all.Groups[key.String()], o)
		spec, err = conf.Overlay(key, merged)
		return merged, err
	}
	if dryRun {
		known, err := g.known(ctx)
		if err == nil {
			_, err = lay(known)
		}
		return spec, err
	}
	_, err := g.doc.Update(ctx, func(all *overlays) error {
		merged, err := lay(*all)
		if err != nil {
			return err
		}
		if all.Groups == nil {
			all.Groups = map[string]config.Override{}
		}
		all.Groups[key.String()] = merged
		return nil
	})
	if err != nil {
		return spec, err
	}
	g.loaded(nil)
	return spec, nil
}

// known returns the durable overlays, from memory once they were read.
func (g *groups) known(ctx context.Context) (overlays, error) {
	g.mu.Lock()
	read := g.read
	g.mu.Unlock()
	if !read {
		return g.doc.Load(ctx)
	}
	known, _ := g.doc.Held()
	return known, nil
}

func over(base, o config.Override) config.Override {
	if o.Size != nil {
		base.Size = o.Size
	}
	if o.InstanceType != nil {
		base.InstanceType = o.InstanceType
	}
	if o.Vars != nil {
		base.Vars = o.Vars
	}
	return base
}
