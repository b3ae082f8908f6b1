package reconcile

import (
	"context"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/reconcile/internal/history"
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
		r.forgiveRefusals(g)
		if !g.history.Resume(g.hash) {
			return nstance.Event{}, nil
		}
		return nstance.Event{Type: eventtype.RolloutResumed, Reason: reason}, nil
	})
}

// changeableGroup returns a group that requests may change.
func (s *shard) changeableGroup(key nstance.GroupKey) (*group, error) {
	if !s.loaded {
		return nil, errUnread
	}
	if g := s.groups[key]; g != nil {
		return g, nil
	}
	return nil, nstance.Errorf(nstance.NotFound, "no group %s", key)
}

// changeGroup changes a group's recorded state on request, and returns once that is
// durable. Without an event nothing has changed; then it waits for earlier changes.
func (r *Reconciler) changeGroup(ctx context.Context, key nstance.GroupKey, change func(*group) (nstance.Event, error)) error {
	r.mu.Lock()
	g, err := r.changeableGroup(key)
	var e nstance.Event
	if err == nil {
		e, err = change(g)
	}
	if err == nil && e.Type != "" {
		r.publishGroup(g, e)
		r.saver.Changed()
		r.queue.Add(key, true)
	}
	edit := r.saver.Edits()
	r.mu.Unlock()
	if err != nil {
		return err
	}
	return r.saver.Await(ctx, edit)
}

// changeShard is changeGroup for what concerns every group.
func (r *Reconciler) changeShard(ctx context.Context, change func() (nstance.Event, bool)) error {
	r.mu.Lock()
	if !r.loaded {
		r.mu.Unlock()
		return errUnread
	}
	if e, changed := change(); changed {
		e.Time = r.opts.Now().UTC()
		r.opts.Journal(e)
		r.saver.Changed()
		for key, g := range r.groups {
			r.discardPendingCreates(g)
			r.queue.Add(key, true)
		}
	}
	edit := r.saver.Edits()
	r.mu.Unlock()
	return r.saver.Await(ctx, edit)
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
	g, err := r.changeableGroup(key)
	switch {
	case err != nil:
		return "", err
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

// await blocks until done, which is called under the lock, or ctx ends.
func (r *Reconciler) await(ctx context.Context, done func() bool) error {
	for {
		r.mu.Lock()
		ok, changed := done(), r.changed
		r.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return nstance.Errorf(nstance.Unavailable, "not durable yet: %w", ctx.Err())
		case <-r.over:
			return nstance.Errorf(nstance.Unavailable, "not durable: this term is over")
		case <-changed:
		}
	}
}
