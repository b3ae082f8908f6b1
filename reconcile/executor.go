package reconcile

import (
	"context"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

// executorGrace is how long a drain waits for its operator once that has gone:
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
				r.recordAck(*e.Ack)
			}
		}
		sleep.For(ctx, rewatchPause)
	}
}

// recordAck records an accepted acknowledgement.
func (r *Reconciler) recordAck(a nstance.Ack) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.withMember(a.Instance, func(m *member) { r.handleDrained(m, a) })
}

// recordExecutors records that an operator that executes a tenant's drains (empty: every
// tenant's) has connected or disconnected.
func (r *Reconciler) recordExecutors(tenant nstance.TenantID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.executorsChanged(tenant)
}

// operatorDrains reports whether an operator would carry out m's drain.
func (s *shard) operatorDrains(m *member) bool {
	return s.opts.Drains.HasExecutor(m.rec.Tenant)
}

// executor returns what drains m: an operator that has declared that it drains, else
// the agent's hook, else nothing: then only the deadline ends the drain. A hook cannot
// only cordon.
func (s *shard) executor(m *member, cordonOnly bool) nstance.Executor {
	switch {
	case s.operatorDrains(m):
		return nstance.ExecutorOperator
	case m.agentDrains() && !cordonOnly:
		return nstance.ExecutorAgent
	}
	return nstance.ExecutorNone
}

// executorsChanged plans the groups whose drains another executor may take over.
func (s *shard) executorsChanged(tenant nstance.TenantID) {
	for key := range s.groups {
		if tenant == "" || key.Tenant == tenant {
			s.queue.Add(key, false)
		}
	}
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
	if m.drain.Executor == nstance.ExecutorOperator && s.operatorDrains(m) {
		m.operatorGoneAt = time.Time{}
		return time.Time{}
	}
	if m.drain.Executor == nstance.ExecutorAgent && m.agentDrains() {
		return time.Time{}
	}
	if m.drain.Executor == nstance.ExecutorOperator {
		if m.operatorGoneAt.IsZero() {
			m.operatorGoneAt = now
		}
		if giveUp := m.operatorGoneAt.Add(executorGrace); now.Before(giveUp) {
			return giveUp
		}
	}
	to := s.executor(m, m.drain.CordonOnly)
	if to == m.drain.Executor {
		return time.Time{}
	}
	d := *m.drain
	m.formerExecutor, d.Executor = m.drain.Executor, to
	m.drain = &d
	m.owe(stepDrain)
	return time.Time{}
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
			!slices.ContainsFunc(m.notices, func(n nstance.Notice) bool { return n.Kind != nstance.Reclaim })
	case nstance.CauseRollout:
		return m.drain != nil && m.drain.CordonOnly && slices.Contains(m.drain.Causes, c) || m.advisesCordon(c)
	default:
		return false
	}
}
