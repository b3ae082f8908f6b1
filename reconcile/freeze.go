package reconcile

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// A FreezeView is a freeze: since when, and why.
type FreezeView struct {
	Since  time.Time
	Reason string
}

// Freeze forbids every change of a group's machines, except that leaving ones go on
// leaving. Notices are recorded, and acted on after the thaw; agents
// register and report as ever. It returns once that is durable; a repeat changes
// nothing, not even the reason. Fails as Pause does.
func (r *Reconciler) Freeze(ctx context.Context, key nstance.GroupKey, reason string) error {
	return r.changeGroup(ctx, key, func(g *group) (nstance.Event, error) {
		if g.history.Frozen != nil {
			return nstance.Event{}, nil
		}
		g.history.Frozen = &freeze{Since: r.opts.Now().UTC(), Reason: reason}
		r.discardPendingCreates(g)
		return nstance.Event{Type: nstance.EventFrozen, Reason: reason}, nil
	})
}

// Thaw ends the freeze of a group; that of the shard stays. It returns once that
// is durable; nil if the group was not frozen. The reason is for the journal.
// Fails as Pause does.
func (r *Reconciler) Thaw(ctx context.Context, key nstance.GroupKey, reason string) error {
	return r.changeGroup(ctx, key, func(g *group) (nstance.Event, error) {
		if g.history.Frozen == nil {
			return nstance.Event{}, nil
		}
		g.history.Frozen = nil
		r.discardPendingCreates(g)
		r.balance.Thaw()
		return nstance.Event{Type: nstance.EventThawed, Reason: reason}, nil
	})
}

// FreezeShard freezes every group, and spares machines without a record. Fails with Unavailable as Pause does.
func (r *Reconciler) FreezeShard(ctx context.Context, reason string) error {
	return r.changeShard(ctx, func() (nstance.Event, bool) {
		if r.frozen != nil {
			return nstance.Event{}, false
		}
		r.frozen = &freeze{Since: r.opts.Now().UTC(), Reason: reason}
		return nstance.Event{Type: nstance.EventFrozen, Reason: reason}, true
	})
}

// ThawShard ends the freeze of the shard; groups that are frozen by themselves
// stay so. It returns once that is durable; nil if the shard was not frozen.
// The reason is for the journal. Fails with Unavailable as Pause does.
func (r *Reconciler) ThawShard(ctx context.Context, reason string) error {
	return r.changeShard(ctx, func() (nstance.Event, bool) {
		if r.frozen == nil {
			return nstance.Event{}, false
		}
		r.frozen = nil
		r.balance.Thaw()
		return nstance.Event{Type: nstance.EventThawed, Reason: reason}, true
	})
}

// changeShard is changeGroup for what concerns every group.
func (r *Reconciler) changeShard(ctx context.Context, change func() (nstance.Event, bool)) error {
	r.mu.Lock()
	if !r.loaded {
		r.mu.Unlock()
		return nstance.Errorf(nstance.Unavailable, "the shard is not read yet")
	}
	if e, changed := change(); changed {
		e.Time = r.opts.Now().UTC()
		r.opts.Journal(e)
		r.saveSoon()
		for key, g := range r.groups {
			r.discardPendingCreates(g)
			r.queue.add(key, true)
		}
	}
	edit := r.ledger.edits
	r.mu.Unlock()
	return r.durable(ctx, edit)
}

// Frozen returns since when the shard is frozen and why, and whether it is.
func (r *Reconciler) Frozen() (FreezeView, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.frozen == nil {
		return FreezeView{}, false
	}
	return FreezeView(*r.frozen), true
}

// Thawed returns nil unless a freeze forbids to change machines of a group: then
// Conflict, with what is frozen, since when, and how to end it. The zero key asks
// about the shard alone.
func (r *Reconciler) Thawed(key nstance.GroupKey) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.thawed(key)
}

// thawed needs the lock.
func (r *Reconciler) thawed(key nstance.GroupKey) error {
	f, what, thaw := r.frozen, "the shard", "shard"
	if g := r.groups[key]; f == nil && g != nil {
		f, what, thaw = g.history.Frozen, "group "+key.String(), "group "+string(key.Group)
	}
	if f == nil {
		return nil
	}
	return &nstance.Error{
		Code: nstance.Conflict, Remedy: "nstance-admin thaw " + thaw,
		Msg: fmt.Sprintf("%s is frozen since %s%s", what, f.Since.UTC().Format(time.RFC3339), withMessage(f.Reason)),
	}
}

// FrozenGroups returns the groups that a freeze keeps from being changed.
func (r *Reconciler) FrozenGroups() map[nstance.GroupKey]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[nstance.GroupKey]bool{}
	for key, g := range r.groups {
		if r.freezeOf(g) != nil {
			out[key] = true
		}
	}
	return out
}

// freezeOf returns the freeze that a group is under, if any. It needs the lock.
func (r *Reconciler) freezeOf(g *group) *freeze {
	if r.frozen != nil {
		return r.frozen
	}
	return g.history.Frozen
}

// discardPendingCreates discards pending members when a freeze begins or ends: those
// that are not durable are forgotten, and intents without a machine are removed after
// the freeze. Their nonces may have expired meanwhile, which is no failure of their
// definition. Creates in flight are left alone. It needs the lock.
func (r *Reconciler) discardPendingCreates(g *group) {
	for _, m := range slices.Clone(g.members) {
		switch {
		case m.step != stepCreate || m.machineKnown() || m.registered() || m.running:
		case !m.durable:
			r.forget(m)
		case m.rec.OnDemand: // its launch timeout ends it, if that was too long
		case r.freezeOf(g) == nil && m.removalCause == nil:
			m.removalCause = &nstance.Cause{Kind: nstance.CauseRequest, Message: "a freeze kept it from being made"} // as far as is known
		}
	}
}

// recordStandingNotices makes notices durable that the plan does not act on: during a
// freeze, for preserved members, and those that were withdrawn after it.
func (r *Reconciler) recordStandingNotices(g *group, now time.Time) {
	held := r.freezeOf(g) != nil || !g.defined()
	for _, m := range g.members {
		kept := m.state != nstance.Deleting && r.preserved(m, now)
		if m.step != stepNone || !m.durable || m.state.Leaving() && !kept || sameNotices(m.rec.Notices, m.notices) {
			continue
		}
		if held || kept || len(m.rec.Notices) > 0 {
			m.step, m.retryDue, m.attempts = stepWriteNotices, time.Time{}, 0
			m.planRevision++
		}
	}
}

func sameNotices(a, b []nstance.Notice) bool {
	return slices.EqualFunc(a, b, func(x, y nstance.Notice) bool { return x.Repeats(y) && y.Repeats(x) })
}

// writeNotices makes the standing notices of m durable.
func (r *Reconciler) writeNotices(ctx context.Context, m *member) error {
	r.mu.Lock()
	notices := slices.Clone(m.notices)
	r.mu.Unlock()
	_, err := r.records.Update(ctx, m.id, func(rec *storage.Instance) error {
		if rec.Deleting != nil || rec.Drain != nil && rec.Preserve == nil { // a former leader's late write says more
			return errOutdated
		}
		rec.Notices = notices
		return nil
	})
	return err
}
