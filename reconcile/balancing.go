package reconcile

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/internal/balance"
)

// balancedMembers is what load balancers are compared with: the members of the
// shard.
type balancedMembers struct{ r *Reconciler }

// Members implements [balance.Source].
func (s balancedMembers) Members(t balance.Target, all bool) (out []balance.Member) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	for _, g := range s.r.groups {
		if !all && !g.concerns(t) {
			continue
		}
		for _, m := range g.members {
			if m.machine.ProviderID != "" {
				out = append(out, balance.Member{Machine: m.machine, Membership: s.r.membership(m, t), Frozen: s.r.frozenOut(g, stepBalance)})
			}
		}
	}
	return out
}

// Withdrawn implements [balance.Source]: deletions that waited for it go on.
func (s balancedMembers) Withdrawn(machines []nstance.Machine) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	for _, mach := range machines {
		if m := s.r.members[mach.ID]; m != nil && m.step == stepDelete && !m.running {
			m.retryDue = time.Time{}
			s.r.queue.Add(m.group.key, true)
		}
	}
}

// Suspect implements [balance.Source].
func (s balancedMembers) Suspect(id nstance.InstanceID) { s.r.questions.Add(id) }

// membership says where m belongs with regard to t. It joins with its first good
// report and leaves when its removal begins or it is preserved; in between a bad
// report changes nothing, for load balancers have health checks of their own. A
// member that has not reported yet stays as it is, and a freeze adds no member and
// withdraws only those that leave. Nothing of it is durable: a new leader compares all.
func (s *shard) membership(m *member, t balance.Target) balance.Membership {
	switch {
	case m.state.Leaving(), m.gone, m.outOfService(), m.rec.Standby != nil && (m.parkedOrMoving() || !m.wokenOrWaking()):
		return balance.Out
	case s.frozenOut(m.group, stepBalance):
		return balance.Unchanged
	case m.knowsBalancers() && !m.names(t), t.Removed:
		return balance.Out
	case m.names(t) && m.state == nstance.Booting && m.registered() && !m.healthySince.IsZero():
		return balance.In
	}
	return balance.Unchanged
}

// rebalance has the load balancers compared that g names: one of its members may
// have to join or leave.
func (s *shard) rebalance(g *group) { s.balance.Mark(g.concerns) }

// changeBalancers has those load balancers compared that g joins or leaves when it names
// these ones. It is called before it does.
func (s *shard) changeBalancers(g *group, names []string) {
	undecided := !g.defined() && len(g.members) > 0 // its members stayed as they were so far
	s.balance.MarkAll(func(t balance.Target) bool {
		return undecided || slices.Contains(g.configured.spec.Definition.LoadBalancers, t.Name) != slices.Contains(names, t.Name)
	})
}

// names reports whether the members of g belong into t. A rollback makes no
// difference: this is about machines that run.
func (g *group) names(t balance.Target) bool {
	return g.defined() && !t.Removed && slices.Contains(g.configured.spec.Definition.LoadBalancers, t.Name)
}

// concerns reports whether members of g may have to join or leave t.
func (g *group) concerns(t balance.Target) bool {
	return g.names(t) || !g.defined() || g.ownBalancers[t.Name] > 0
}

// countBalancers keeps count of the load balancers that members name themselves.
func (g *group) countBalancers(m *member, by int) {
	for _, name := range m.rec.LoadBalancers {
		if g.ownBalancers == nil {
			g.ownBalancers = map[string]int{}
		}
		if g.ownBalancers[name] += by; g.ownBalancers[name] == 0 {
			delete(g.ownBalancers, name)
		}
	}
}

// names reports whether m belongs into t: by its own request if that says so,
// else as a member of its group.
func (m *member) names(t balance.Target) bool {
	if own := m.rec.LoadBalancers; len(own) > 0 {
		return !t.Removed && slices.Contains(own, t.Name)
	}
	return m.group.names(t)
}

// knowsBalancers reports whether it is known which load balancers m names.
func (m *member) knowsBalancers() bool { return m.group.defined() || len(m.rec.LoadBalancers) > 0 }

// balancersLeft reports whether m may be deleted or parked as far as load balancers go: none
// sends traffic to it any more, or withdrawTimeout has passed.
func (r *Reconciler) balancersLeft(m *member) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	var names []string
	switch id := m.machine.ProviderID; {
	case m.gone || r.provider.Abilities().Balancers == nil:
	case id != "":
		names = r.balance.Attached(id, m.registered())
	case m.registered(): // the provider has not shown its machine in this term yet
		names = r.balance.Names()
		r.questions.Add(m.id)
	}
	now := r.opts.Now()
	switch {
	case m.withdrawalOver || len(names) == 0:
		m.withdrawalOver = true
		return true
	case m.withdrawBy.IsZero():
		m.withdrawBy = now.Add(r.withdrawalWait(m, now))
		r.rebalance(m.group)
		return false
	case now.Before(m.withdrawBy):
		return false
	}
	m.withdrawalOver = true
	done := "parked"
	if m.step == stepDelete {
		done = "deleted"
		r.balance.WithdrawDeleted(m.machine, names)
	}
	r.publish(m, nstance.Event{Type: nstance.EventAlarm, Reason: fmt.Sprintf("%s although it could not be withdrawn from %s within %s", done, strings.Join(names, ", "), withdrawTimeout)})
	return true
}

// withdrawalWait is withdrawTimeout, or where earlier terms have waited for that long, the
// time of one attempt: a deletion must end although every term is short.
func (s *shard) withdrawalWait(m *member, now time.Time) time.Duration {
	if d := m.rec.Deleting; d != nil && s.reached(d.At.Add(withdrawTimeout+clocksApart), now) {
		return firstLookUps
	}
	return withdrawTimeout
}

// withdrawTimeout is how long a deletion, or parking, waits for load balancers to withdraw
// the machine, once nothing else delays it.
const withdrawTimeout = 30 * time.Second
