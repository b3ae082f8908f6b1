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
	if m.streamBrokenAt.IsZero() || m.gone || m.state != nstance.Booting || m.queriesAfterBreak >= len(afterBreak) {
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
	listed := map[nstance.InstanceID]bool{}
	var strangers []nstance.Machine
	began := r.opts.Now()
	for mach, err := range r.provider.List(ctx, r.opts.Owner) {
		if err != nil {
			r.log.Warn("machines not listed", "code", nstance.CodeOf(err), "err", err)
			return err
		}
		listed[mach.ID] = true
		if !r.handleListed(mach, began) {
			strangers = append(strangers, mach)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, m := range r.members {
		if !listed[id] && m.machineKnown() && m.machineSince.Before(began) || !listed[id] && m.registered() && m.rec.RegisteredAt.Before(began) {
			r.handleMissing(m, absence{}, began)
		}
	}
	r.recordOrphans(strangers, began)
	return nil
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
	switch {
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

// handleListed handles a listed machine as a fact about its member, if it has one.
func (r *Reconciler) handleListed(mach nstance.Machine, asked time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.handleMachine(mach, asked)
}
