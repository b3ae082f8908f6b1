package reconcile

import (
	"context"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/records"
)

// Drain requests that an instance is drained and then deleted, and returns once that
// cause of the drain is durable, or the deletion where there is nothing to drain. It
// may be draining already. A managed instance is replaced, unless its group has no
// definition. Fails as Removable does, and with Unavailable when ctx ends first: then
// it may still happen.
func (r *Reconciler) Drain(ctx context.Context, id nstance.InstanceID, reason string) (nstance.Drain, error) {
	err := r.request(ctx, id, reason, false)
	if err != nil {
		return nstance.Drain{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.members[id]; m != nil && m.rec.Drain != nil {
		return *m.rec.Drain, nil
	}
	return nstance.Drain{Instance: id}, nil // nothing to drain: it is being deleted
}

// Delete requests that an instance is deleted, after a drain unless noDrain. It
// returns once that is durable. A managed instance is replaced. Fails as Drain
// does.
func (r *Reconciler) Delete(ctx context.Context, id nstance.InstanceID, reason string, noDrain bool) error {
	return r.request(ctx, id, reason, noDrain)
}

func (r *Reconciler) request(ctx context.Context, id nstance.InstanceID, reason string, noDrain bool) error {
	r.mu.Lock()
	m, err := r.removable(id)
	if err != nil {
		r.mu.Unlock()
		return err
	}
	fresh := m.removalCause == nil
	if fresh {
		m.removalCause = &nstance.Cause{Kind: nstance.CauseRequest, Message: reason}
	}
	if fresh || noDrain && !m.skipDrain {
		r.publish(m, nstance.Event{Type: eventtype.RemovalRequested, Reason: removalReason(reason, noDrain)})
	}
	m.skipDrain = m.skipDrain || noDrain
	m.drainEnded = m.drainEnded || noDrain && m.state == nstance.Draining
	r.queue.Add(m.group.key, true)
	r.mu.Unlock()
	var kept error // it may be preserved before it begins to go
	if err := r.await(ctx, func() bool {
		if r.members[id] == nil || m.rec.Deleting != nil || m.rec.Drain != nil && !noDrain && includesCause(m.rec.Drain.Causes, nstance.CauseRequest) {
			kept = nil
			return true
		}
		kept = r.unpreserved(m)
		return kept != nil
	}); err != nil {
		return err
	}
	return kept
}

// RemoveFirst has instances of a group go before others when it has more than its size,
// until they are gone. Those that do not exist any more are ignored. It returns once that is
// durable, so that a caller who makes a smaller size durable afterwards has the instances
// named under every leader. Fails with Invalid, and changes nothing, when one of them is not
// for the group to remove, and with Unavailable as Pause does.
func (r *Admin) RemoveFirst(group nstance.GroupKey, ids []nstance.InstanceID) error {
	if len(ids) == 0 {
		return nil
	}
	ctx, cancel := r.underTerm(context.Background())
	defer cancel()
	return r.change(ctx, func() error { return r.nameFirst(group, ids) })
}

// nameFirst names instances to go first.
func (s *shard) nameFirst(group nstance.GroupKey, ids []nstance.InstanceID) error {
	for _, id := range ids {
		if m := s.members[id]; m != nil && (m.group.key != group || m.rec.OnDemand) {
			return nstance.FieldError("remove_first", "name instances that the group keeps", "%s is no managed instance of group %s", id, group)
		}
	}
	for _, id := range ids {
		if m := s.members[id]; m != nil && !m.goesFirst {
			m.goesFirst = true
			s.saver.Changed()
		}
	}
	if g := s.groups[group]; g != nil {
		g.recordGoingFirst()
	}
	return nil
}

// recordGoingFirst records which members of g were named to go first.
func (g *group) recordGoingFirst() {
	var named []nstance.InstanceID
	for _, m := range g.members {
		if m.goesFirst {
			named = append(named, m.id)
		}
	}
	g.history.SetGoFirst(named)
}

// restoreGoingFirst names the members that are recorded as named.
func (g *group) restoreGoingFirst() {
	for _, m := range g.members {
		m.goesFirst = m.goesFirst || g.history.GoesFirst(m.id)
	}
}

func removalReason(reason string, noDrain bool) string {
	if noDrain {
		return "without a drain" + withMessage(reason)
	}
	return reason
}

// Joined makes durable that an instance has registered, and has it counted. It is for
// programs without a Registrar, which does the same. Before the shard is read it waits
// for that: a new term has events about machines that it finds before it may write.
// Repeating it changes nothing. Fails with NotFound, and with Unavailable or Ambiguous
// when it may be repeated, as when ctx or the term ends first.
func (r *Reconciler) Joined(ctx context.Context, id nstance.InstanceID) error {
	if err := r.awaitLoaded(ctx); err != nil {
		return err
	}
	ctx, cancel := r.underTerm(ctx)
	defer cancel()
	_, err := r.records.Update(ctx, id, func(rec *records.Instance) error {
		if rec.RegisteredAt.IsZero() {
			rec.RegisteredAt = r.opts.Now().UTC()
		}
		return nil
	})
	if err != nil {
		return err
	}
	r.Observe(nstance.Registered{ID: id})
	return nil
}
