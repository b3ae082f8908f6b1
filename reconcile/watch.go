package reconcile

import (
	"context"
	"errors"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/health"
)

// askProvider has the provider asked about the members of g whose state only it
// knows, and returns when that may next be due.
func (s *shard) askProvider(g *group, now time.Time) (next time.Time) {
	for _, m := range g.members {
		verdict, at := s.evaluateHealth(m, now)
		if verdict == health.AskProvider || !m.missingSince.IsZero() && !m.gone {
			s.questions.Add(m.id)
		}
		next = earliest(next, at, s.askAfterBreak(m, now), s.askWhileBooting(m, now))
		if verdict == health.Unhealthy {
			next = earliest(next, now.Add(s.health.Interval/4)) // others may report meanwhile
		}
	}
	return next
}

// afterBreak are when to ask about a machine again whose stream broke although
// the provider said that it runs: a cloud may take a moment to notice that it
// does not any more.
var afterBreak = [...]time.Duration{time.Second, 3 * time.Second, 10 * time.Second}

// askAfterBreak asks about a machine whose stream broke when that is due, until
// it is answered, and returns when it is due next.
func (s *shard) askAfterBreak(m *member, now time.Time) time.Time {
	if m.streamBrokenAt.IsZero() || !m.shouldReport() || m.queriesAfterBreak >= len(afterBreak) {
		return time.Time{}
	}
	if due := m.streamBrokenAt.Add(afterBreak[m.queriesAfterBreak]); now.Before(due) {
		return due
	}
	s.questions.Add(m.id) // until there is an answer, which is followed by a plan
	return time.Time{}
}

// countQueriesAfterBreak counts the queries after a break that are answered by a call
// that was sent then.
func (m *member) countQueriesAfterBreak(asked time.Time) {
	for !m.streamBrokenAt.IsZero() && m.queriesAfterBreak < len(afterBreak) && !asked.Before(m.streamBrokenAt.Add(afterBreak[m.queriesAfterBreak])) {
		m.queriesAfterBreak++
	}
}

// whileBooting is how often the provider is asked about a machine whose agent has
// not registered yet: nothing else shows that it was taken.
const whileBooting = 30 * time.Second

// askWhileBooting asks about a machine that boots when that is due, and returns
// when it is due next.
func (s *shard) askWhileBooting(m *member, now time.Time) time.Time {
	if m.registered() || !m.machineKnown() || m.gone || m.state != nstance.Booting {
		return time.Time{}
	}
	if due := latest(m.machineSince, m.answeredAt).Add(whileBooting); now.Before(due) {
		return due
	}
	s.questions.Add(m.id)
	return time.Time{}
}

// listMachines is reconcileMachines, and returns its error.
func (r *Reconciler) listMachines(ctx context.Context) error {
	err := r.listOnce(ctx)
	if ctx.Err() == nil {
		r.locked(func() { r.listing.record(err, r.opts.Now()) })
	}
	return err
}

func (r *Reconciler) listOnce(ctx context.Context) error {
	listed := map[nstance.InstanceID]bool{}
	var strangers []nstance.Machine
	began := r.opts.Now()
	for mach, err := range r.provider.List(ctx, r.opts.Owner) {
		if err != nil {
			r.log.Warn("machines not listed", "code", nstance.CodeOf(err), "err", err)
			return err
		}
		var ours bool
		r.locked(func() {
			m := r.members[mach.ID]
			listed[mach.ID] = listed[mach.ID] || m == nil || !r.isTwin(m, mach)
			ours = r.handleListed(mach, began)
		})
		if !ours {
			strangers = append(strangers, mach)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, m := range r.members {
		if !listed[id] && m.machineKnown() && m.machineSince.Before(began) || !listed[id] && m.registered() && m.rec.RegisteredAt.Before(began) {
			r.handleUnlisted(m, began)
		}
	}
	r.recordOrphans(strangers, began)
	return nil
}

// handleListed is handleMachine of a machine in a list.
func (s *shard) handleListed(mach nstance.Machine, began time.Time) bool {
	if m := s.members[mach.ID]; m != nil && m.unexplained(mach) {
		s.questions.AddAlone(m.id)
		return true
	}
	return s.handleMachine(mach, began)
}

// handleUnlisted handles that a list which began now does not show the machine of m. Of one
// that was never ready, the end says something about its shape: it is asked for alone, when
// it is missed first and once that would prove its end.
func (s *shard) handleUnlisted(m *member, now time.Time) {
	if m.gone || m.state == nstance.Deleting || s.served(m) {
		s.handleMissing(m, absence{}, now)
		return
	}
	missed := !m.missingSince.IsZero()
	if missed && now.Sub(m.missingSince) >= s.opts.ConsistencyWindow {
		s.questions.AddAlone(m.id)
		return
	}
	s.handleMissing(m, absence{}, now)
	if !missed && !m.missingSince.IsZero() {
		s.questions.AddAlone(m.id)
	}
}

// reconcileMachines asks the provider for everything that is ours and handles the answer as
// facts. After an error nothing is known about what was not listed.
func (r *Reconciler) reconcileMachines(ctx context.Context) {
	_ = r.listMachines(ctx) // which has logged it; the next pass asks again
}

// askMachine asks the provider for one machine, and handles the answer as a fact.
func (r *Reconciler) askMachine(ctx context.Context, id nstance.InstanceID) error {
	asked := r.opts.Now()
	mach, err := r.provider.Get(ctx, id)
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[id]
	switch {
	case err == nil && m != nil && r.checkMarks(m, mach) == nil && r.isTwin(m, mach): // the provider shows no other
		r.handleMissing(m, absence{}, asked)
	case err == nil:
		r.handleMachine(mach, asked)
	case errors.Is(err, nstance.NotFound):
		r.withMember(id, func(m *member) { r.handleMissing(m, absenceOf(err), asked) })
	case ctx.Err() == nil:
		r.log.Warn("provider did not say how a machine is", "instance_id", id, "code", nstance.CodeOf(err), "err", err)
		return err
	}
	return nil
}
