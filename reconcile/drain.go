package reconcile

import (
	"cmp"
	"context"
	"reflect"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// startDrain makes the planned drain durable, then starts it.
//
//	a crash after                    leaves
//	the drain is recorded            a draining member: it is announced with the same generation
//	it is acknowledged               the same: its executor acknowledges it again
//	its end is recorded (cancel)     a member without a drain
func (r *Reconciler) startDrain(ctx context.Context, m *member) error {
	r.mu.Lock()
	planned, former, story, kept := m.drain, m.formerExecutor, m.story(), preservedUntil(&m.rec)
	standing, advice := slices.Clone(m.Standing), slices.Clone(m.Advice)
	r.mu.Unlock()
	if planned == nil {
		return nil
	}
	story.Drifted = r.driftedFields(ctx, m, planned.Causes)
	var d nstance.Drain
	var said nstance.EventType
	known := false
	_, err := r.records.Update(ctx, m.id, func(rec *records.Instance) error {
		if rec.Deleting != nil {
			return nstance.Errorf(nstance.Conflict, "instance %s is being deleted", rec.ID)
		}
		if !preservedUntil(rec).Equal(kept) { // by a request that this leader does not know of
			return errOutdated
		}
		d = within(*planned, former, rec)
		if known = reflect.DeepEqual(rec.Drain, &d); known {
			return nil // of an earlier term, or attempt: only to be announced again
		}
		said = drainEvent(rec.Drain, &d)
		if rec.Drain == nil && hasNotice(d.Causes) {
			rec.Reclaims++
		}
		rec.Drain, rec.Generation, rec.Advice = &d, d.Generation, advice
		rec.StandingNotices(standing, r.opts.Now())
		rec.KeepStory(story)
		return nil
	})
	if err != nil {
		return err
	}
	r.mu.Lock()
	if m.drain == planned {
		m.drain = &d
		if !d.Deadline.Equal(planned.Deadline) {
			m.drainDeadline = time.Time{} // another leader's
		}
	}
	if !known {
		r.publish(m, nstance.Event{Type: said, Drain: &d})
	}
	r.mu.Unlock()
	return r.drains.Start(ctx, d)
}

// within merges a planned drain with the recorded one, which may be a late write of
// a former leader: its deadline is only brought forward, and no generation that has
// been cancelled is used again. The recorded executor stays, unless it is the former
// one, which loses the drain. Its times are as they are recorded.
func within(d nstance.Drain, former nstance.Executor, rec *records.Instance) nstance.Drain {
	old := rec.Drain
	d.StartedAt, d.Deadline = d.StartedAt.Round(0), d.Deadline.Round(0)
	if old == nil {
		d.Generation = max(d.Generation, rec.Generation+1)
		return d
	}
	d.Generation, d.StartedAt, d.CordonOnly = old.Generation, old.StartedAt, old.CordonOnly && d.CordonOnly
	if former == "" || old.Executor != former {
		d.Executor = old.Executor
	}
	if old.Deadline.Before(d.Deadline) {
		d.Deadline = old.Deadline
	}
	return d
}

// drainEvent names the change from a recorded drain to another.
func drainEvent(was, is *nstance.Drain) nstance.EventType {
	switch {
	case was == nil:
		return nstance.EventDrainStarted
	case was.Executor != is.Executor:
		return nstance.EventDrainReassigned
	}
	return nstance.EventDrainTightened
}

func hasNotice(causes []nstance.Cause) bool {
	for _, c := range causes {
		if c.Kind == nstance.CauseNotice {
			return true
		}
	}
	return false
}

// cancelDrain makes the end of a drain durable, then cancels it. Earlier
// acknowledgements of it do not count any more.
func (r *Reconciler) cancelDrain(ctx context.Context, m *member) error {
	var ended uint64
	cancelled := false
	_, err := r.records.Update(ctx, m.id, func(rec *records.Instance) error {
		if rec.Deleting != nil {
			return nstance.Errorf(nstance.Conflict, "instance %s is being deleted", rec.ID)
		}
		ended = rec.Generation
		if cancelled = rec.Drain != nil; cancelled {
			rec.CancelDrain(r.opts.Now())
		}
		return nil
	})
	if err != nil {
		return err
	}
	if cancelled {
		r.locked(func() { r.publish(m, nstance.Event{Type: nstance.EventDrainCancelled}) })
	}
	return r.drains.Cancel(ctx, m.id, ended)
}

// executorGrace is how long a drain waits for its operator or agent once that is gone:
// it may only be connecting again.
const executorGrace = 10 * time.Second

// rewatchPause is the pause before a watch of drains that has ended begins again.
const rewatchPause = 100 * time.Millisecond

// followDrains takes what the drain coordinator publishes until ctx ends.
func (r *Reconciler) followDrains(ctx context.Context) {
	stop := r.opts.Drains.NotifyExecutors(r.recordExecutors)
	defer stop()
	var last nstance.Seq
	for ctx.Err() == nil {
		for e, err := range r.opts.Drains.Watch(ctx, "", last) {
			if err != nil {
				break
			}
			last = max(last, e.Seq)
			if e.Ack != nil {
				r.locked(func() { r.withMember(e.Ack.Instance, func(m *member) { r.handleDrained(m, *e.Ack) }) })
			}
		}
		sleep.For(ctx, rewatchPause)
	}
}

// recordExecutors records that an operator that executes a tenant's drains (empty: every
// tenant's) has connected or disconnected: another executor may take over.
func (r *Reconciler) recordExecutors(tenant nstance.TenantID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range r.groups {
		if tenant == "" || key.Tenant == tenant {
			r.queue.Add(key, false)
		}
	}
}

// operatorDrains reports whether an operator would carry out m's drain.
func (s *shard) operatorDrains(m *member) bool {
	return s.opts.Drains.HasExecutor(m.rec.Tenant)
}

// agentDrains reports whether the hook of m's agent would carry out its drain.
func (s *shard) agentDrains(m *member, now time.Time) bool {
	return m.mayHaveHook() && !s.agentGone(m, now)
}

// executor returns what drains m: an operator that has declared that it drains, else
// the agent's hook, else nothing: then only the deadline ends the drain. A hook cannot
// only cordon.
func (s *shard) executor(m *member, cordonOnly bool, now time.Time) nstance.Executor {
	switch {
	case s.operatorDrains(m):
		return nstance.ExecutorOperator
	case s.agentDrains(m, now) && !cordonOnly:
		return nstance.ExecutorAgent
	}
	return nstance.ExecutorNone
}

// reassignDrains gives each drain whose executor has gone to another one, and returns
// when to look again.
func (s *shard) reassignDrains(g *group, now time.Time) (next time.Time) {
	for _, m := range g.members {
		if m.state != nstance.Draining || m.drain == nil || m.drainEnded {
			continue
		}
		next = earliest(next, s.reassignDrain(m, now))
	}
	return next
}

// reassignDrain does so for one member.
func (s *shard) reassignDrain(m *member, now time.Time) (next time.Time) {
	if drains, next := s.executorDrains(m, now); drains {
		m.executorGoneAt = time.Time{}
		return next
	}
	if m.executorMayReturn() {
		if m.executorGoneAt.IsZero() {
			m.executorGoneAt = now
		}
		if giveUp := m.executorGoneAt.Add(executorGrace); now.Before(giveUp) {
			return giveUp
		}
	}
	to := s.executor(m, m.drain.CordonOnly, now)
	if to == m.drain.Executor {
		return time.Time{}
	}
	d := *m.drain
	m.formerExecutor, d.Executor = m.drain.Executor, to
	m.drain, m.drainBlocked, m.executorGoneAt = &d, "", time.Time{}
	m.owe(stepDrain)
	return time.Time{}
}

// executorDrains reports whether the executor of m's drain can still carry it out, and when
// time alone may change that.
func (s *shard) executorDrains(m *member, now time.Time) (drains bool, next time.Time) {
	switch m.drain.Executor {
	case nstance.ExecutorOperator:
		return s.operatorDrains(m), time.Time{}
	case nstance.ExecutorAgent:
		if !m.connected {
			_, next = s.health.Evaluate(m.healthTrack, now)
		}
		return s.agentDrains(m, now), next
	}
	return false, time.Time{}
}

// executorMayReturn reports whether the executor of m's drain could carry it out if it were
// there.
func (m *member) executorMayReturn() bool {
	return m.drain.Executor == nstance.ExecutorOperator || m.drain.Executor == nstance.ExecutorAgent && m.mayHaveHook()
}

// cordonOnly reports whether a drain of m for these causes leaves its work alone: its group
// says so for each of them.
func (m *member) cordonOnly(causes []nstance.Cause) bool {
	return len(causes) > 0 && !slices.ContainsFunc(causes, func(c nstance.Cause) bool { return !m.cordonsFor(c) })
}

// cordonsFor reports that for one cause. Advice may be withdrawn, or unknown to a new leader,
// while the drain that it began goes on.
func (m *member) cordonsFor(c nstance.Cause) bool {
	switch c.Kind {
	case nstance.CauseNotice:
		return m.group.spec.OnReclaim == nstance.ReclaimCordon &&
			!slices.ContainsFunc(m.Standing, func(n nstance.Notice) bool { return n.Kind != nstance.Reclaim })
	case nstance.CauseRollout:
		return m.drain != nil && m.drain.CordonOnly && slices.Contains(m.drain.Causes, c) || m.advisesCordon(c)
	default:
		return false
	}
}

func (s *shard) newDrain(m *member, a plan.Action, now time.Time) *nstance.Drain {
	cordonOnly := m.cordonOnly(a.Causes)
	return &nstance.Drain{
		Instance: m.id, Group: m.group.key, ProviderID: cmp.Or(m.machine.ProviderID, m.rec.ProviderID),
		Generation: m.rec.Generation + 1, StartedAt: now.UTC(), Deadline: a.Deadline.UTC(),
		Causes: a.Causes, Voluntary: a.Voluntary, Executor: s.executor(m, cordonOnly, now), CordonOnly: cordonOnly,
	}
}
