package reconcile

import (
	"context"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/reconcile/internal/history"
	"github.com/nstance-go/nstance/reconcile/internal/place"
)

// Pause stops the rollout of a group: stale members stay, and losses are
// replaced from the last good definition. Surplus members are still removed. It
// returns once that is durable; a repeat changes nothing, not even the reason.
// Fails with NotFound, and with Unavailable while it is not durable: it is in
// force with this leader all the same, and may become durable later. It needs
// Run.
func (r *Admin) Pause(ctx context.Context, key nstance.GroupKey, reason string) error {
	return r.changeGroup(ctx, key, func(g *group) (nstance.Event, error) {
		if !g.history.Pause(reason, r.opts.Now()) {
			return nstance.Event{}, nil
		}
		return nstance.Event{Type: eventtype.RolloutPaused, Reason: reason}, nil
	})
}

// Resume ends a pause and a halt, and clears the failures that led to it and what the
// provider refused: it is tried again at once. It returns
// once that is durable; nil if there was nothing to resume. The reason is for the
// journal. Fails as Pause does.
func (r *Admin) Resume(ctx context.Context, key nstance.GroupKey, reason string) error {
	return r.changeGroup(ctx, key, func(g *group) (nstance.Event, error) {
		r.places.Forgive(g.request(g.spec.Definition).Definition, place.Shape{})
		for _, m := range g.members {
			r.places.Forgive(m.definitionKey(), place.Shape{})
		}
		if !g.history.Resume(g.hash) {
			return nstance.Event{}, nil
		}
		return nstance.Event{Type: eventtype.RolloutResumed, Reason: reason}, nil
	})
}

// Rollback makes the definition with which every member was last ready the
// desired one, until another one is configured or UndoRollback. Members of the
// configured definition are then replaced like any others that are stale. It
// returns once that is durable; repeating it changes nothing. Fails with
// NotFound, with Conflict when there is no other definition to go back to, and
// with Unavailable as Pause does. The reason is for the journal. A dry run only
// checks.
func (r *Admin) Rollback(ctx context.Context, key nstance.GroupKey, reason string, dryRun bool) error {
	digest, err := r.rollbackTarget(key)
	if err != nil {
		return err
	}
	back, err := r.readDesiredSpec(ctx, digest)
	if err != nil || dryRun {
		return err
	}
	return r.changeGroup(ctx, key, func(g *group) (nstance.Event, error) {
		if g.history.Rollback != nil && g.rollbackSpec != nil {
			return nstance.Event{}, nil
		}
		if g.history.GoodDigest != digest {
			return nstance.Event{}, nstance.Errorf(nstance.Conflict, "the last good definition of group %s has changed meanwhile", key)
		}
		g.history.Rollback = &history.Rollback{Since: r.opts.Now().UTC(), From: g.configured.hash, Definition: digest}
		g.rollbackSpec = &back
		r.resolveDesired(g)
		return nstance.Event{Type: eventtype.RolledBack, Reason: "the last good definition is the desired one" + withMessage(reason)}, nil
	})
}

// rollbackTarget returns the digest of the definition to go back to.
func (r *Reconciler) rollbackTarget(key nstance.GroupKey) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.groups[key]
	switch {
	case !r.loaded:
		return "", errUnread
	case g == nil:
		return "", errNoGroup(key)
	case g.history.Rollback != nil && g.rollbackSpec != nil:
		return g.history.Rollback.Definition, nil
	case !g.defined():
		return "", nstance.Errorf(nstance.Unavailable, "it is not known yet what group %s should be", key)
	case g.history.GoodDigest == "":
		return "", noTarget("no definition of group %s has ever had all members ready", key)
	case g.history.GoodHash == g.configured.hash:
		return "", noTarget("all members of group %s were ready with the configured definition: it is the last good one", key)
	}
	return g.history.GoodDigest, nil
}

func noTarget(format string, key nstance.GroupKey) error {
	e := nstance.Errorf(nstance.Conflict, format, key)
	return &nstance.Error{Code: nstance.Conflict, Msg: e.Error(), Remedy: "configure the definition that you want"}
}

// UndoRollback makes the configured definition the desired one again, and
// returns once that is durable. Nil if the group is not rolled back. The reason
// is for the journal. Fails with NotFound, and Unavailable as Pause does.
func (r *Admin) UndoRollback(ctx context.Context, key nstance.GroupKey, reason string) error {
	return r.changeGroup(ctx, key, func(g *group) (nstance.Event, error) {
		if g.history.Rollback == nil {
			return nstance.Event{}, nil
		}
		g.history.Rollback, g.rollbackSpec = nil, nil
		r.resolveDesired(g)
		return nstance.Event{Type: eventtype.RollbackEnded, Reason: "the configured definition is the desired one" + withMessage(reason)}, nil
	})
}

// readRollbacks reads the definitions that groups are rolled back to. One that
// is missing or cannot be understood is left out; any other error is returned.
func (r *Reconciler) readRollbacks(ctx context.Context, states shardState) (map[string]desiredSpec, error) {
	var digests []string
	for _, h := range states.Groups {
		if h.Rollback != nil {
			digests = append(digests, h.Rollback.Definition)
		}
	}
	found, failed := r.records.Definitions(ctx, digests)
	out := map[string]desiredSpec{}
	for key, h := range states.Groups {
		if h.Rollback == nil {
			continue
		}
		var back desiredSpec
		err := failed[h.Rollback.Definition]
		if err == nil {
			back, err = desiredSpecFor(nstance.Group{Definition: found[h.Rollback.Definition]})
		}
		switch code := nstance.CodeOf(err); {
		case err == nil:
			out[key] = back
		case code == nstance.NotFound, code == nstance.Invalid:
			r.log.Error("group is rolled back to a definition that cannot be read: nothing is planned for it", "group", key, "err", err)
		default:
			return nil, err
		}
	}
	return out, nil
}

func (r *Reconciler) readDesiredSpec(ctx context.Context, digest string) (desiredSpec, error) {
	def, err := r.records.Definition(ctx, digest)
	if err != nil {
		return desiredSpec{}, err
	}
	return desiredSpecFor(nstance.Group{Definition: def})
}
