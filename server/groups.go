package server

import (
	"context"
	"fmt"
	"sync"

	"github.com/nstance-go/nstance"
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
	doc *storage.Doc[overlays]

	mu    sync.Mutex // held only in memory work
	known overlays
}

func newGroups(t *term) *groups {
	return &groups{t: t, doc: storage.NewDoc[overlays](t.server.store, storage.GroupsKey(t.conf.Shard.ID), &storage.DocOptions{
		Epoch: t.granted.Epoch(), Check: t.granted.Err,
	})}
}

// load reads the overlays and makes the reconciler want what they say.
func (g *groups) load(ctx context.Context) error {
	o, err := g.doc.Load(ctx)
	if err != nil {
		return err
	}
	g.set(o)
	return g.publish(g.t.server.config())
}

func (g *groups) set(o overlays) {
	g.mu.Lock()
	g.known = o
	g.mu.Unlock()
}

// publish tells the reconciler what every group of conf should be.
func (g *groups) publish(conf *config.Config) error {
	g.mu.Lock()
	over := g.known
	g.mu.Unlock()
	var wanted []nstance.Group
	for _, spec := range conf.Groups() {
		if o, ok := over.Groups[spec.Key.String()]; ok {
			laid, err := conf.Overlay(spec.Key, o)
			if err != nil {
				return fmt.Errorf("group %s: %w", spec.Key, err)
			}
			spec = laid
		}
		wanted = append(wanted, spec)
	}
	g.t.reconciler.Observe(nstance.Desired{Groups: wanted})
	return nil
}

// change lays o over what the API changed of a group before; fields that o
// leaves nil stay. It returns once that is durable, or checks it only.
func (g *groups) change(ctx context.Context, key nstance.GroupKey, o config.Override, dryRun bool) (nstance.Group, error) {
	conf := g.t.server.config()
	g.mu.Lock()
	spec, err := conf.Overlay(key, over(g.known.Groups[key.String()], o))
	g.mu.Unlock()
	if err != nil || dryRun {
		return spec, err
	}
	doc, err := g.doc.Update(ctx, func(all *overlays) error {
		merged := over(all.Groups[key.String()], o)
		if _, err := conf.Overlay(key, merged); err != nil {
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
	g.set(doc)
	return spec, g.publish(conf)
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
