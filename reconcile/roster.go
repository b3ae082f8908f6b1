package reconcile

import (
	"maps"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/notice"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/reconcile/internal/avoid"
	"github.com/nstance-go/nstance/reconcile/internal/history"
)

// group returns the group's state, made when it is first mentioned.
func (s *shard) groupOf(key nstance.GroupKey) *group {
	g := s.groups[key]
	if g == nil {
		g = &group{key: key}
		s.groups[key] = g
		s.restoreGroup(g)
	}
	return g
}

// addMember puts a member into the shard's state.
func (s *shard) addMember(g *group, m *member) {
	m.group, g.hadMembers = g, true
	s.members[m.id] = m
	g.members = append(g.members, m)
	g.countBalancers(m, 1)
}

// forget removes a member: its record is gone.
func (s *shard) forget(m *member) {
	if m.drain != nil && !m.drain.StartedAt.IsZero() {
		m.group.pace.Drained(s.opts.Now().Sub(m.drain.StartedAt))
	}
	s.createEndedWith(m, errOutdated)
	s.places.ReturnAddress(m.subnetWithoutMachine())
	s.reopenLoss(m)
	if m.returnsToSpot() { // without a result: the next attempt waits as long as this one did
		m.group.history.WaitForSpot(s.opts.Now())
		s.saver.Changed()
	}
	delete(s.members, m.id)
	m.group.countBalancers(m, -1)
	m.group.members = slices.DeleteFunc(m.group.members, func(o *member) bool { return o == m })
	if m.goesFirst {
		m.group.recordGoingFirst()
		s.saver.ChangedLater()
	}
	s.rememberUsedID(m)
	if g := m.group; len(g.members) == 0 && !g.defined() && g.unreadable == 0 {
		s.drop(g)
	}
}

// rememberUsedID remembers the ID of an instance on demand that is gone, until it is
// too old to be used again.
func (s *shard) rememberUsedID(m *member) {
	if !m.rec.OnDemand || !m.durable {
		return
	}
	now := s.opts.Now()
	for id := range s.usedIDs {
		if s.reached(id.Time().Add(2*maxIDAge), now) {
			delete(s.usedIDs, id)
		}
	}
	s.usedIDs[m.id] = now
}

// drop takes a group out of memory. Its recorded state is kept in case it is
// configured again, unless it was removed.
func (s *shard) drop(g *group) {
	delete(s.groups, g.key)
	delete(s.unplanned, g.key)
	s.admission.Demand(g.key)
	s.publishHolds(g, nil, s.opts.Now())
	if s.opts.Changed != nil {
		s.opts.Changed(GroupView{Group: nstance.Group{Key: g.key, Removing: g.spec.Removing}}, true)
	}
	switch {
	case !g.recorded && g.history.Empty():
	case g.spec.Removing:
		s.saver.Changed()
	default:
		s.absentGroups[g.key.String()] = g.history
	}
}

// dropUndefined forgets groups without definition and members that are not named.
func (s *shard) dropUndefined(named []nstance.Group) {
	keep := map[nstance.GroupKey]bool{}
	for i := range named {
		keep[named[i].Key] = true
	}
	for key, g := range s.groups {
		if !keep[key] && !g.defined() && len(g.members) == 0 && g.unreadable == 0 {
			s.drop(g)
		}
	}
}

// addRecovered makes a member of a record that this term finds.
func (s *shard) addRecovered(g *group, rec records.Instance, since time.Time) *member {
	m := s.recovered(rec, since)
	s.addMember(g, m)
	if m.state == nstance.Draining {
		m.step = stepDrain // announces it again; nothing is left to write
	}
	return m
}

// linkReplacement has the loss that m replaces answered, as its record says. A replacement
// that has failed answers nothing.
func (s *shard) linkReplacement(m *member) {
	if lost := s.members[m.replaces]; lost != nil && m.answersLoss() {
		lost.replacement = replacementCreated
	}
}

// answersLoss reports whether m, a member that this term found, is or was the replacement
// that it was created for.
func (m *member) answersLoss() bool { return m.rec.Deleting == nil || m.registered() }

// recovered returns the member of a record that an earlier term wrote, as of
// the time when this one found it.
func (s *shard) recovered(rec records.Instance, since time.Time) *member {
	m := &member{id: rec.ID, rec: rec, durable: true, machineCalls: machineCalls{inheritedAt: since}, origin: origin{replaces: rec.Replaces}}
	m.Standing, m.Advice = slices.Clone(rec.Notices), slices.Clone(rec.Advice)
	m.rehearsalMet = slices.ContainsFunc(rec.Notices, notice.Rehearsed)
	switch {
	case rec.Deleting != nil:
		m.state, m.step, m.deleteCauses, m.leftBefore = nstance.Deleting, stepDelete, []nstance.Cause{rec.Deleting.Why}, true
	case m.parkedOrWokenOnRecord():
		m.restoreSleep()
	case rec.Drain != nil:
		m.state, m.drain, m.leftBefore = nstance.Draining, rec.Drain, true
	case m.registered():
		m.state = nstance.Booting
	default:
		m.restoreIntent()
	}
	if m.registered() {
		m.readyAt, m.healthTrack = rec.ReadyAt, s.health.Begin(since, true)
		m.graceUntil = since.Add(s.health.Interval + s.health.Jitter)
	}
	return m
}

// recordProblems replaces the list of records that cannot be read.
func (s *shard) recordProblems(problems []records.Problem) {
	known := map[string]bool{}
	for _, p := range s.unreadableRecords {
		known[p.Key] = true
	}
	s.unreadableRecords = problems
	for key, g := range s.groups {
		if g.unreadable > 0 {
			g.unreadable = 0
			s.queue.Add(key, false)
		}
	}
	for _, p := range problems {
		if p.Tenant != "" && p.Group != "" {
			s.groupOf(nstance.GroupKey{Tenant: p.Tenant, Group: p.Group}).unreadable++
		}
		if known[p.Key] {
			continue
		}
		s.opts.Journal(nstance.Event{
			Time: s.opts.Now().UTC(), Type: nstance.EventRecordUnreadable, Tenant: p.Tenant, Group: p.Group, Instance: p.ID,
			Reason: p.Key, Code: nstance.CodeOf(p.Err), Error: p.Err.Error(),
		})
	}
}

// restoreStates restores what earlier leaders recorded.
func (s *shard) restoreStates(states shardState, backs map[string]desiredSpec) {
	s.frozen, s.rollbackSpecs = states.Frozen, backs
	s.absentGroups = maps.Clone(states.Groups)
	if s.absentGroups == nil {
		s.absentGroups = map[string]history.Group{}
	}
	for _, g := range s.groups {
		s.restoreGroup(g)
		s.resolveDesired(g)
	}
	var latest time.Time // another leader's clock may have been ahead
	if s.clockRight() {
		latest = s.opts.Now().Add(avoid.Longest)
	}
	s.places.AvoidedPools.Restore(states.Avoided, latest)
	s.avoidanceChanged(s.opts.Now())
}

// restoreGroup restores what earlier leaders recorded of a group.
func (s *shard) restoreGroup(g *group) {
	key := g.key.String()
	if h, ok := s.absentGroups[key]; ok {
		h.Restore(s.opts.Now().UTC(), s.clockRight())
		g.history, g.recorded = h, true
		g.restoreGoingFirst()
		delete(s.absentGroups, key)
	}
	if back, ok := s.rollbackSpecs[key]; ok {
		g.rollbackSpec = &back
	}
}

// setRemoving begins or ends the removal of a group. One that is configured again
// after it was gone has no history.
func (s *shard) setRemoving(g *group, removing bool) {
	if g.spec.Removing && !removing {
		if g.isGone() {
			g.history, g.rollbackSpec = history.Group{}, nil
			s.saver.Changed()
		}
		g.published.removal = false
	}
	g.configured.spec.Removing, g.spec.Removing = removing, removing
}

// resolveDesired sets what a group should be: what is configured, with the last good
// definition while the group is rolled back.
func (s *shard) resolveDesired(g *group) {
	rollbackEnded, changed := g.resolve()
	if rollbackEnded {
		s.publishGroup(g, nstance.Event{Type: eventtype.RollbackEnded, Reason: "another definition is configured"})
	}
	if changed {
		s.saver.Changed()
	}
}

// failedToBecomeReady counts a failed creation, unless capacity was the reason, and
// records why it failed.
func (s *shard) failedToBecomeReady(m *member, why string) {
	m.replacement = replacementNotOwed
	m.group.history.Failed(m.rec.InfraHash, m.group.hash, why, s.opts.Now())
	s.queue.Add(m.group.key, false) // which then waits until then
	s.saver.Changed()
}
