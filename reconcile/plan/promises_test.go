package plan_test

import (
	"reflect"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// pass is one plan with the counts for its checks.
type pass struct {
	*world
	v        plan.View
	d        plan.Decision
	acts     map[nstance.InstanceID]plan.Action
	creates  []plan.Action
	counted  []*machine // members that stay or would be surplus
	stale    int
	onDemand int // counted, on demand
	need     int
	lost     int
	urgent   int // losses that skip the backoff
	held     bool
}

func (w *world) check(v plan.View, d plan.Decision) {
	if len(d.Actions) == 0 && d.Next.IsZero() && len(v.Members) == 0 {
		return
	}
	p := w.examine(v, d)
	p.checkPurity()
	p.checkActions()
	p.checkDrains()
	p.checkFrozen()
	if p.idle() {
		return
	}
	p.checkDoomed()
	p.checkCreates()
	p.checkUnhealthyCap()
	p.checkVoluntary()
	p.checkFloor()
	p.checkInFlight()
	p.checkHalt()
	p.checkBase()
}

func (w *world) examine(v plan.View, d plan.Decision) *pass {
	p := &pass{world: w, v: v, d: d, acts: map[nstance.InstanceID]plan.Action{}}
	for _, a := range createsApart(d.Actions) {
		if a.Kind == plan.Create {
			p.creates = append(p.creates, a)
			continue
		}
		if _, twice := p.acts[a.ID]; twice {
			w.failf("two actions on %s", a.ID)
		}
		p.acts[a.ID] = a
	}
	leaving, inherited := 0, 0
	for i := range v.Members {
		m := w.find(v.Members[i].ID)
		a, ok := p.acts[m.ID]
		returns := a.Kind == plan.CancelDrain
		if m.State.Leaving() && !m.OnDemand && !returns {
			switch {
			case !replacedAtOnce(m):
			case leavesVoluntarily(m):
				leaving++
			case m.Answered:
			case m.Inherited:
				inherited++
			default:
				p.urgent++
			}
		}
		if m.OnDemand || m.State.Leaving() && !returns {
			continue
		}
		if ok && !returns && !voluntary(a.Causes) {
			if replacedAtOnce(m) && !a.Failure {
				p.urgent++
			}
			continue
		}
		p.counted = append(p.counted, m)
		if m.Inherited && m.Reason == plan.ReasonReplace && !w.knownReady(&m.Member) {
			inherited--
		}
		if m.Market == nstance.OnDemand {
			p.onDemand++
		}
		if p.isStale(m) {
			p.stale++
		}
	}
	p.need = max(0, w.size()-len(p.counted))
	p.urgent += max(0, inherited-v.Unreadable)
	p.lost = max(p.urgent, min(w.size(), v.History.FullAt)-len(p.counted)-v.Unreadable-leaving)
	h := v.History
	halts := v.Group.Rollout.HaltAfter > 0 && h.Failures >= v.Group.Rollout.HaltAfter
	p.held = h.Paused || h.HaltedHash == v.Hash || halts && (p.stale > 0 || h.LastGoodHash != v.Hash)
	return p
}

// replacedAtOnce reports whether m is replaced at once when it is lost.
func replacedAtOnce(m *machine) bool {
	return !m.RegisteredAt.IsZero() || m.Reason == plan.ReasonReplace || m.Gone && m.Taken
}

func leavesVoluntarily(m *machine) bool {
	if m.Drain != nil && len(m.Drain.Causes) > 0 {
		return m.Drain.Voluntary
	}
	return m.DeletedFor == "" || m.DeletedFor == nstance.CauseRollout || m.DeletedFor == nstance.CauseSurplus
}

func (p *pass) isStale(m *machine) bool {
	return m.Hash != "" && m.Hash != p.v.Hash && !p.undefined || p.due(m.EligibleAt)
}

// due reports whether a deadline has passed that drains or deletes; none has while the
// clock is wrong.
func (p *pass) due(t time.Time) bool { return p.v.Clock == "" && p.world.due(t) }

func voluntary(causes []nstance.Cause) bool {
	return !slices.ContainsFunc(causes, func(c nstance.Cause) bool {
		return c.Kind != nstance.CauseRollout && c.Kind != nstance.CauseSurplus
	})
}

// firstCause returns the kind of an action's first cause, or "".
func firstCause(a plan.Action) nstance.CauseKind {
	if len(a.Causes) == 0 {
		return ""
	}
	return a.Causes[0].Kind
}

// checkPurity: equal input gives equal output, in any order of the members, and the
// input is not changed.
func (p *pass) checkPurity() {
	if len(p.d.Actions) == 0 && p.made%8 > 0 {
		return // sampled
	}
	members := slices.Clone(p.v.Members)
	if !reflect.DeepEqual(plan.Plan(p.v, p.now), p.d) {
		p.failf("the same input gave another output")
	}
	if !reflect.DeepEqual(members, p.v.Members) {
		p.failf("the input was changed")
	}
	turned := p.v
	turned.Members = slices.Clone(members)
	slices.Reverse(turned.Members)
	d := plan.Plan(turned, p.now)
	if len(d.Actions) != len(p.d.Actions) || !d.Next.Equal(p.d.Next) || d.Halt != p.d.Halt {
		p.failf("the order of members matters: %s against %s", steps(p.d), steps(d))
	}
	for _, a := range d.Actions {
		if !slices.ContainsFunc(p.d.Actions, func(b plan.Action) bool { return reflect.DeepEqual(a, b) }) {
			p.failf("the order of members matters: %s against %s", steps(p.d), steps(d))
		}
	}
}

// checkActions: each action fits its member (I3).
func (p *pass) checkActions() {
	for id, a := range p.acts {
		m := p.find(id)
		if len(a.Causes) == 0 && a.Kind != plan.CancelDrain && m.State != nstance.Deleting {
			p.failf("%s of %s without a cause", a.Kind, id)
		}
		switch a.Kind {
		case plan.StartDrain:
			p.checkStart(m, a)
		case plan.Tighten:
			if m.State != nstance.Draining || a.Deadline.After(m.Drain.Deadline) {
				p.failf("%s: a deadline was extended", id)
			}
			if a.Deadline.Equal(m.Drain.Deadline) && reflect.DeepEqual(a.Causes, m.Drain.Causes) {
				p.failf("%s: tightened without effect", id)
			}
			if a.Voluntary != voluntary(a.Causes) {
				p.failf("%s: causes and voluntary differ", id)
			}
		case plan.CancelDrain:
			if m.State != nstance.Draining || len(m.Notices) > 0 || m.Gone || slices.ContainsFunc(m.Drain.Causes, notNotice) {
				p.failf("%s: its drain was cancelled although it must be removed", id)
			}
		case plan.Delete:
			p.checkDelete(m)
		}
	}
}

func notNotice(c nstance.Cause) bool { return c.Kind != nstance.CauseNotice }

func (p *pass) checkStart(m *machine, a plan.Action) {
	switch {
	case m.State.Leaving() || m.Gone || m.RegisteredAt.IsZero() || p.v.Group.DrainTimeout == 0:
		p.failf("%s has nothing to drain", m.ID)
	case a.Deadline.Before(p.now) || a.Deadline.After(p.now.Add(p.v.Group.DrainTimeout)):
		p.failf("%s: drain deadline %s", m.ID, a.Deadline.Sub(p.now))
	case a.Voluntary != voluntary(a.Causes):
		p.failf("%s: causes and voluntary differ", m.ID)
	}
	for _, n := range m.Notices {
		if n.Deadline.After(p.now) && !a.Deadline.Before(n.Deadline) {
			p.failf("%s: the drain ends after the machine", m.ID)
		}
	}
}

func (p *pass) checkDelete(m *machine) {
	over := m.State == nstance.Draining && (m.DrainOver || p.due(m.Drain.Deadline))
	if m.State != nstance.Deleting && !over && !m.RegisteredAt.IsZero() && !m.Gone && p.v.Group.DrainTimeout > 0 && !m.NoDrain {
		p.failf("%s deleted without a drain", m.ID)
	}
}

// checkDrains: every drain ends before the reclaim of its machine.
func (p *pass) checkDrains() {
	for i := range p.v.Members {
		m := &p.v.Members[i]
		a, acted := p.acts[m.ID]
		if m.State != nstance.Draining || m.Gone || acted && a.Kind != plan.Tighten {
			continue
		}
		end := m.Drain.Deadline
		if acted {
			end = a.Deadline
		}
		for _, n := range m.Notices {
			if n.Deadline.After(p.now) && !end.Before(n.Deadline) {
				p.failf("%s: its drain still ends after the machine", m.ID)
			}
		}
	}
}

// idle reports whether the group starts nothing by itself.
func (p *pass) idle() bool { return p.v.Frozen || p.undefined && !p.v.Removing }

// checkFrozen: only drains in progress and, in a group without a definition, requested
// removals, which start in this pass.
func (p *pass) checkFrozen() {
	if !p.idle() {
		return
	}
	requests := !p.v.Frozen
	for id := range p.acts {
		if m := p.find(id); !m.State.Leaving() && (!requests || m.Requested == nil) {
			p.failf("%s was touched in a frozen group", id)
		}
	}
	for i := range p.v.Members {
		m := p.find(p.v.Members[i].ID)
		if _, acted := p.acts[m.ID]; requests && m.Requested != nil && !m.Preserved && !m.State.Leaving() && m.State != nstance.Failed && !acted {
			p.failf("the requested removal of %s did not start", m.ID)
		}
	}
	if len(p.creates) > 0 || p.d.Halt {
		p.failf("a frozen group was changed")
	}
}

// checkDoomed: members that must be removed are removed in this pass, and no others
// without a cause.
func (p *pass) checkDoomed() {
	for i := range p.v.Members {
		m := p.find(p.v.Members[i].ID)
		a, acted := p.acts[m.ID]
		must := m.Gone || len(m.Notices) > 0 || m.Requested != nil || p.due(m.ExpireAt) ||
			!m.OnDemand && m.RegisteredAt.IsZero() && p.due(m.RegisterBy) ||
			!m.OnDemand && m.GoodSince.IsZero() && m.GraceUntil.IsZero() && p.due(m.LaunchBy) ||
			m.OnDemand && !m.HasMachine && m.RegisteredAt.IsZero() && p.due(m.LaunchBy)
		switch {
		case must && !m.State.Leaving() && (!acted || voluntary(a.Causes)):
			p.failf("doomed %s was not acted on", m.ID)
		case m.OnDemand && acted && !must && !m.State.Leaving():
			p.failf("on-demand %s was touched", m.ID)
		case acted && !must && !p.isStale(m) && !p.moves(m) && p.knownReady(&m.Member) && !m.State.Leaving() && firstCause(a) != nstance.CauseSurplus:
			p.failf("%s, ready and fresh, was touched by something else than P4", m.ID)
		}
	}
}

// checkCreates: as many as needed and no more (I5), and paced.
func (p *pass) checkCreates() {
	g, h, n := p.v.Group, p.v.History, len(p.creates)
	limit := p.size()
	if (p.stale > 0 || p.shifts()) && !p.held && limit > 0 {
		limit += g.Rollout.MaxSurge.N
	}
	backingOff := h.BackoffUntil.After(p.now)
	switch {
	case n > 0 && len(p.counted)+n > limit:
		p.failf("%d creates for %d of at most %d members", n, len(p.counted), limit)
	case n < min(p.need, p.urgent):
		p.failf("%d creates for %d losses", n, p.urgent)
	case backingOff && n > p.urgent:
		p.failf("%d creates while backing off, %d of them urgent", n, p.urgent)
	case n > p.urgent && h.Failures > 0 && !h.BackoffUntil.IsZero() && slices.ContainsFunc(p.d.Actions, createFailed):
		p.failf("%d creates although another creation has just failed, %d of them urgent", n, p.urgent)
	case n < p.need && !backingOff && (h.Failures == 0 || h.BackoffUntil.IsZero()) && p.v.Unreadable == 0:
		p.failf("%d creates for a deficit of %d", n, p.need)
	}
	for _, a := range p.creates {
		lastGood := p.held && h.LastGoodHash != "" && h.LastGoodHash != p.v.Hash
		if a.LastGood != lastGood {
			p.failf("created from the last good definition: %v, held: %v", a.LastGood, p.held)
		}
		if p.v.Unreadable > 0 && (a.Reason != plan.ReasonReplace || n > p.lost) {
			p.failf("created beyond the losses of a group with unreadable records")
		}
		if loss := p.find(a.Replaces); a.Replaces != "" && (loss == nil || !loss.State.Leaving() && voluntary(p.acts[a.Replaces].Causes) || loss.State.Leaving() && leavesVoluntarily(loss)) {
			p.failf("%s was replaced but not lost", a.Replaces)
		}
	}
}

func createFailed(a plan.Action) bool { return a.Failure }

// checkUnhealthyCap: few members are removed for being unhealthy at once.
func (p *pass) checkUnhealthyCap() {
	leaving, fresh := 0, 0
	for i := range p.v.Members {
		m := p.find(p.v.Members[i].ID)
		a := p.acts[m.ID]
		switch {
		case m.OnDemand:
		case m.State == nstance.Draining && m.Drain.Causes[0].Kind == nstance.CauseUnhealthy, m.State == nstance.Deleting && m.DeletedFor == nstance.CauseUnhealthy:
			leaving++
		case !m.State.Leaving() && firstCause(a) == nstance.CauseUnhealthy:
			fresh++
		}
	}
	if fresh > 0 && leaving+fresh > max(1, p.size()/5) {
		p.failf("%d more unhealthy members removed while %d are leaving", fresh, leaving)
	}
}

// checkVoluntary: nothing voluntary before every member could report or while records
// are unreadable. No member created by P5 is removed by P4 while the desired state is
// unchanged.
func (p *pass) checkVoluntary() {
	unheard := slices.ContainsFunc(p.counted, func(m *machine) bool {
		return !m.RegisteredAt.IsZero() && m.GoodSince.IsZero() && m.GraceUntil.After(p.now)
	})
	for _, m := range p.counted {
		a, acted := p.acts[m.ID]
		if !acted || a.Kind == plan.CancelDrain {
			continue
		}
		if unheard || p.v.Unreadable > 0 {
			p.failf("%s leaves voluntarily although the view is incomplete", m.ID)
		}
		if firstCause(a) == nstance.CauseRollout && (p.held || !p.isStale(m)) && !p.moves(m) {
			p.failf("%s leaves for a rollout that has ended", m.ID)
		}
		if firstCause(a) == nstance.CauseSurplus && m.surge && m.desiredChanges == p.desiredChanges && !p.held && !p.moves(m) {
			p.failf("%s was created by P5 and is removed by P4", m.ID)
		}
	}
	if unheard && len(p.creates) > p.need {
		p.failf("a surge before every member could report")
	}
}

// checkFloor: voluntary removals keep as many members serving as the size (I4).
func (p *pass) checkFloor() {
	floor := p.size()
	serving, sure, taken, surplus := 0, 0, 0, 0
	for _, m := range p.counted {
		a, acted := p.acts[m.ID]
		acted = acted && a.Kind != plan.CancelDrain
		switch {
		case !acted && p.serving(m):
			serving++
			if p.knownReady(&m.Member) {
				sure++
			}
		case acted && p.serving(m) && firstCause(a) == nstance.CauseRollout:
			taken++
		case acted && p.serving(m):
			surplus++
		}
	}
	if surplus > 0 && serving < min(floor, serving+surplus) {
		p.failf("surplus took %d serving members and left %d of %d", surplus, serving, floor)
	}
	if p.v.Group.Rollout.MaxSurge.N == 0 {
		floor--
	}
	if taken > 0 && sure < floor {
		p.failf("the rollout took %d serving members and left %d of %d", taken, sure, floor)
	}
}

// checkInFlight: a rollout has a limited number of members in flight.
func (p *pass) checkInFlight() {
	inFlight, begun := 0, max(0, len(p.creates)-p.need)
	for i := range p.v.Members {
		m := &p.v.Members[i]
		a, acted := p.acts[m.ID]
		switch {
		case m.OnDemand:
		case m.State == nstance.Draining && m.Drain.Voluntary && a.Kind != plan.CancelDrain:
			inFlight++
		case firstCause(a) == nstance.CauseRollout && !m.State.Leaving() && !m.GoodSince.IsZero():
			inFlight++
			begun++
		case !m.State.Leaving() && !acted && m.Hash == p.v.Hash && !p.due(m.EligibleAt) && m.Reason != plan.ReasonReplace && !p.knownReady(m) && !p.moves(p.find(m.ID)):
			inFlight++
		}
	}
	for _, a := range p.creates {
		if a.Reason != plan.ReasonReplace {
			inFlight++
		}
	}
	if begun > 0 && inFlight > max(1, p.v.Group.Rollout.MaxSurge.N) {
		p.failf("%d more members in flight for a rollout, %d in all", begun, inFlight)
	}
}

// checkHalt: after enough failures, once.
func (p *pass) checkHalt() {
	h, limit := p.v.History, p.v.Group.Rollout.HaltAfter
	failed := limit > 0 && h.Failures >= limit && (p.stale > 0 || h.LastGoodHash != p.v.Hash)
	if p.d.Halt != (failed && h.HaltedHash != p.v.Hash) {
		p.failf("halt is %v after %d failures", p.d.Halt, h.Failures)
	}
}

// checkNext: until the time that the last plan named, time alone changes nothing.
func (w *world) checkNext(to time.Time) {
	if w.partial || w.quiet && w.made%4 > 0 {
		return
	}
	d := plan.Plan(w.snapshot(), to.Add(-1))
	for _, a := range d.Actions {
		if m := w.find(a.ID); m == nil || m.State != nstance.Deleting {
			w.failf("%s would have been due before %s", steps(d), w.next.Sub(noon))
			return
		}
	}
}

// checkConverged: the group has its desired state (I8), without detours.
func (w *world) checkConverged(made, had int) {
	if w.fail != "" {
		return
	}
	w.checkMarkets()
	n := 0
	for _, m := range w.machines {
		switch {
		case m.OnDemand:
		case m.State.Leaving():
			w.failf("%s is still leaving", m.ID)
		case !w.knownReady(&m.Member) || m.Hash != w.view.Hash:
			w.failf("%s is not ready and fresh: %+v", m.ID, m.Member)
		default:
			n++
		}
	}
	if n != w.size() {
		w.failf("%d ready members of %d", n, w.size())
	}
	if limit := 4 * (had + w.size() + 2); made > limit {
		w.failf("%d creates for a group of %d that had %d machines", made, w.size(), had)
	}
}
