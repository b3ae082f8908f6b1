package reconcile

import (
	"context"

	"github.com/nstance-go/nstance"
)

// Pause stops the rollout of a group: stale members stay, and losses are
// replaced from the last good definition. Surplus members are still removed. It
// returns once that is durable; a repeat changes nothing, not even the reason.
// Fails with NotFound, and with Unavailable while it is not durable: it is in
// force with this leader all the same, and may become durable later. It needs
// Run.
func (r *Reconciler) Pause(ctx context.Context, key nstance.GroupKey, reason string) error {
	return r.changeGroup(ctx, key, func(g *group) (nstance.Event, error) {
		if g.history.Paused {
			return nstance.Event{}, nil
		}
		g.history.Paused, g.history.PausedAt, g.history.PauseReason = true, r.opts.Now().UTC(), reason
		return nstance.Event{Type: nstance.EventRolloutPaused, Reason: reason}, nil
	})
}

// Resume ends a pause and a halt, and clears the failures that led to it. It returns
// once that is durable; nil if there was nothing to resume. The reason is for the
// journal. Fails as Pause does.
func (r *Reconciler) Resume(ctx context.Context, key nstance.GroupKey, reason string) error {
	return r.changeGroup(ctx, key, func(g *group) (nstance.Event, error) {
		h := &g.history
		if !h.Paused && !g.halted() && h.Failures == 0 {
			return nstance.Event{}, nil
		}
		h.Paused, h.PausedAt, h.PauseReason = false, nstance.Event{}.Time, ""
		if g.halted() {
			h.HaltedHash, h.HaltedAt, h.HaltReason = "", nstance.Event{}.Time, ""
		}
		h.clearFailures()
		return nstance.Event{Type: nstance.EventRolloutResumed, Reason: reason}, nil
	})
}

// halted reports whether the rollout to what the group should be is halted.
func (g *group) halted() bool { return g.history.HaltedHash != "" && g.history.HaltedHash == g.hash }

// changeableGroup returns a group that requests may change. It needs the lock.
func (r *Reconciler) changeableGroup(key nstance.GroupKey) (*group, error) {
	if !r.loaded {
		return nil, nstance.Errorf(nstance.Unavailable, "the shard is not read yet")
	}
	if g := r.groups[key]; g != nil {
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
		r.saveSoon()
		r.queue.add(key, true)
	}
	edit := r.ledger.edits
	r.mu.Unlock()
	if err != nil {
		return err
	}
	return r.durable(ctx, edit)
}
