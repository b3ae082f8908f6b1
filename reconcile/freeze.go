package reconcile

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/reconcile/internal/history"
)

// goesOnFrozen is the table of what is done during a freeze. Every place that leads to a change
// at the provider asks it: the call itself (permit), the grant of a create, a lane, a load
// balancer. An overtaken leader counts as frozen, but takes requests and removes orphans
// (thawed), which is the way out. A clock that cannot be trusted holds no step back, but plans
// and the removal of orphans. The address of the leader is no machine's: it moves as ever.
func (k stepKind) goesOnFrozen() bool {
	switch k {
	case stepDrain, stepCancel, stepWriteNotices: // nothing is asked of the provider
		return true
	case stepDelete: // of a member that leaves: requests are refused, and no plan begins one
		return true
	case stepCreate: // which also deletes a machine that did not start, of an instance that stays
	case stepNone, stepPark, stepWake, stepBalance:
	}
	return false
}

// frozenOut reports whether a freeze keeps g from a step.
func (s *shard) frozenOut(g *group, step stepKind) bool {
	return !step.goesOnFrozen() && s.freezeOf(g) != nil
}

// heldBack reports whether a freeze keeps m from a step, or that it is kept for inspection: then
// it neither falls asleep nor wakes.
func (s *shard) heldBack(m *member, step stepKind) bool {
	sleeps := step == stepPark || step == stepWake
	return s.frozenOut(m.group, step) || sleeps && s.preserved(m, s.opts.Now())
}

// permit is asked before every call that changes a machine at the provider: the term must
// stand, and nothing may hold m back from the step. With errAgain the step waits until that ends.
// Calls for load balancers, each about many members, ask for the term themselves.
func (r *Reconciler) permit(m *member, step stepKind) error {
	if err := r.opts.Check(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.heldBack(m, step) {
		return errAgain
	}
	return nil
}

// thawed fails with Conflict while an operator's freeze is in force.
func (s *shard) thawed(key nstance.GroupKey) error {
	f, what, thaw := s.frozen, "the shard", "shard"
	if g := s.groups[key]; f == nil && g != nil {
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

// freezeOf returns the freeze that a group is under, if any.
func (s *shard) freezeOf(g *group) *history.Freeze {
	if s.frozen != nil {
		return s.frozen
	}
	if f := s.overtaken(); f != nil {
		return f
	}
	return g.history.Frozen
}

// overtaken returns the freeze of a shard with a machine that a later term has made and of
// which this leader's storage has no record; nil: there is none. Epochs only grow in one
// storage, so another server leads from a copy of it. Of two such leaders the one with the
// lower epoch stands still until the machine is gone, or an operator has adopted it. Reading
// the storage again does not help: this leader's term stands.
func (s *shard) overtaken() *history.Freeze {
	o, ok := s.orphans.Newer(s.opts.Epoch)
	if !ok {
		return nil
	}
	return &history.Freeze{Since: o.FirstListed, Reason: fmt.Sprintf(
		"machine %s (%s) was made by term %d, this is term %d: another server leads this shard from a copy of its storage", o.Machine.ProviderID, o.Machine.ID, o.Machine.Epoch, s.opts.Epoch)}
}

// publishOvertaken plans every group again when a copy of the storage begins to lead or ends.
func (s *shard) publishOvertaken(before *history.Freeze) {
	now := s.overtaken()
	if (before == nil) == (now == nil) {
		return
	}
	if now != nil {
		s.opts.Journal(nstance.Event{Time: s.opts.Now().UTC(), Type: nstance.EventAlarm, Reason: now.Reason})
	}
	for key := range s.groups {
		s.queue.Add(key, false)
	}
}

// Freeze forbids every change of a group's machines, except that leaving ones go on
// leaving. Notices are recorded, and acted on after the thaw; agents
// register and report as ever. It returns once that is durable; a repeat changes
// nothing, not even the reason. Fails as Pause does.
func (r *Admin) Freeze(ctx context.Context, key nstance.GroupKey, reason string) error {
	return r.changeGroup(ctx, key, func(g *group) (nstance.Event, error) {
		if g.history.Frozen != nil {
			return nstance.Event{}, nil
		}
		g.history.Frozen = &history.Freeze{Since: r.opts.Now().UTC(), Reason: reason}
		r.discardPendingCreates(g)
		return nstance.Event{Type: eventtype.Frozen, Reason: reason}, nil
	})
}

// Thaw ends the freeze of a group; that of the shard stays. It returns once that
// is durable; nil if the group was not frozen. The reason is for the journal.
// Fails as Pause does.
func (r *Admin) Thaw(ctx context.Context, key nstance.GroupKey, reason string) error {
	return r.changeGroup(ctx, key, func(g *group) (nstance.Event, error) {
		if g.history.Frozen == nil {
			return nstance.Event{}, nil
		}
		g.history.Frozen = nil
		r.discardPendingCreates(g)
		r.balance.Thaw()
		return nstance.Event{Type: eventtype.Thawed, Reason: reason}, nil
	})
}

// FreezeShard freezes every group, and spares machines without a record. Fails with Unavailable as Pause does.
func (r *Admin) FreezeShard(ctx context.Context, reason string) error {
	return r.change(ctx, func() error {
		if r.frozen == nil {
			r.frozen = &history.Freeze{Since: r.opts.Now().UTC(), Reason: reason}
			r.shardFreezeChanged(nstance.Event{Type: eventtype.Frozen, Reason: reason})
		}
		return nil
	})
}

// ThawShard ends the freeze of the shard; groups that are frozen by themselves
// stay so. It returns once that is durable; nil if the shard was not frozen.
// The reason is for the journal. Fails with Unavailable as Pause does.
func (r *Admin) ThawShard(ctx context.Context, reason string) error {
	return r.change(ctx, func() error {
		if r.frozen != nil {
			r.frozen = nil
			r.balance.Thaw()
			r.shardFreezeChanged(nstance.Event{Type: eventtype.Thawed, Reason: reason})
		}
		return nil
	})
}

// shardFreezeChanged plans every group when a freeze of the shard begins or ends.
func (s *shard) shardFreezeChanged(e nstance.Event) {
	s.publishShard(e)
	s.saver.Changed()
	for key, g := range s.groups {
		s.discardPendingCreates(g)
		s.queue.Add(key, true)
	}
}

// discardPendingCreates discards pending members when a freeze begins or ends: those
// that are not durable are forgotten, and intents without a machine are removed after
// the freeze. Their nonces may have expired meanwhile, which is no failure of their
// definition. Creates in flight are left alone.
func (s *shard) discardPendingCreates(g *group) {
	for _, m := range slices.Clone(g.members) {
		switch {
		case m.step != stepCreate || m.machineKnown() || m.registered() || m.running:
		case !m.durable:
			s.forget(m)
		case m.rec.OnDemand: // its launch timeout ends it, if that was too long
		case !s.frozenOut(g, stepCreate) && m.removalCause == nil:
			m.removalCause = &nstance.Cause{Kind: nstance.CauseRequest, Message: "a freeze kept it from being made"} // as far as is known
		}
	}
}
