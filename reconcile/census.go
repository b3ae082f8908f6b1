package reconcile

import (
	"fmt"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/internal/history"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// recordCensus records what a census shows for the first time: members that have
// become ready, a group that is whole, short, or under notice.
func (s *shard) recordCensus(g *group, c *plan.Census, now time.Time) {
	heard := 0 // a new leader has yet to hear of those that are ready on record
	for i, m := range g.members {
		if m.healthySince.IsZero() || c.Status(&c.Members[i]) != nstance.Ready {
			continue
		}
		s.becameReady(m)
		heard += oneIf(!m.extra() && !c.Members[i].Preserved)
	}
	s.recordReadiness(g, c, heard)
	s.recordReady(g, now)
	if c.Counts().Ready >= g.spec.Size {
		g.belowSizeSince = time.Time{}
	} else if g.belowSizeSince.IsZero() {
		g.belowSizeSince = now.UTC()
	}
	s.checkMassNotice(g)
	if g.history.SetFallenBack(g.onDemandBeyondBase(c.Members), now) {
		s.saver.Changed()
	}
	s.recordBreaker(g, c.Breaker, now)
}

func (s *shard) becameReady(m *member) {
	if m.wasReady {
		return
	}
	m.wasReady = true
	if m.readyAt.IsZero() && !m.rec.RegisteredAt.Before(s.began) { // a former leader may have seen others ready
		m.readyAt = s.opts.Now().UTC()
	}
	if !m.wokenOrWaking() && m.rec.CreatedEpoch == s.opts.Epoch {
		m.group.pace.Launched(m.healthySince.Sub(m.rec.CreatedAt))
	}
	s.recordReturn(m, m.market() == nstance.Spot)
	s.publish(m, nstance.Event{Type: nstance.EventReady, Replaces: m.rec.Replaces})
	s.places.Forgive(m.definitionKey(), capacityShape(m.rec.Shape))
	if s.provesDefinition(m) && m.group.history.Succeeded() {
		s.saver.Changed()
	}
}

// provesDefinition reports whether m, now that it is ready, shows that its group's desired
// definition can become ready. A member that a former leader created and
// registered may have been ready for long: this leader only learns of it again.
// While creates fail, another definition proves nothing.
func (s *shard) provesDefinition(m *member) bool {
	switch {
	case m.rec.OnDemand, m.lastGood:
		return false
	case m.rec.CreatedEpoch < s.opts.Epoch && m.rec.RegisteredAt.Before(s.began):
		return false
	}
	return m.rec.InfraHash == m.group.hash || m.group.history.InRow == 0
}

// checkMassNotice raises an alarm when most of a group of three or more is under notice
// at once, and asks the provider about each. It delays nothing.
func (s *shard) checkMassNotice(g *group) {
	noticed, rehearsed := 0, 0
	for _, m := range g.members {
		if len(m.Standing) > 0 && !m.extra() {
			noticed++
			rehearsed += oneIf(m.rehearsed())
		}
	}
	if g.spec.Size < 3 || noticed*2 <= g.spec.Size {
		g.published.massNotice = false
		return
	}
	if g.published.massNotice {
		return
	}
	g.published.massNotice = true
	why := fmt.Sprintf("%d of %d members are under notice at once", noticed, len(g.members))
	if rehearsed == noticed {
		why += ": a rehearsal"
	}
	s.publishGroup(g, nstance.Event{Type: nstance.EventAlarm, Reason: why})
	for _, m := range g.members {
		if len(m.Standing) > 0 {
			s.questions.Add(m.id)
		}
	}
}

// fresh reports whether every member that counts or may return was created from the
// desired definition.
func fresh(c *plan.Census) bool {
	return !slices.ContainsFunc(c.Members, func(m plan.Member) bool {
		return !m.State.Leaving() && !m.OnDemand && !m.Standby && !m.Preserved && m.Hash != c.Hash
	})
}

// recordReadiness announces a group that has as many ready members as its size,
// and remembers that size, and the definition with which all of them are ready and
// fresh.
func (s *shard) recordReadiness(g *group, c *plan.Census, ready int) {
	if !g.defined() || g.spec.Removing {
		g.published.ready = false
		return
	}
	full := ready >= g.spec.Size
	if g.history.SetReadyAt(g.spec.Size, full) {
		s.saver.Changed()
	}
	if full && !g.published.ready {
		s.publishGroup(g, nstance.Event{Type: nstance.EventGroupReady})
	}
	g.published.ready = full
	if !full || ready == 0 || g.history.GoodHash == g.hash || !fresh(c) {
		return
	}
	for _, m := range g.members {
		if !m.extra() && m.rec.InfraHash == g.hash && m.rec.Definition != "" {
			g.history.LastGood = history.LastGood{
				GoodHash: m.rec.InfraHash, GoodDigest: m.rec.Definition, Kind: m.id.Kind(),
				Launch: m.rec.LaunchTimeout, Registration: m.rec.RegistrationTimeout,
			}
			s.saver.Changed()
			return
		}
	}
}

// recordReady records which members of g have been ready.
func (s *shard) recordReady(g *group, now time.Time) {
	var is history.Readiness
	for _, m := range g.members {
		if m.registered() && (m.wasReady || s.readyOnRecord(m, now)) {
			is.Include(m.rec.RegisteredAt)
		}
	}
	for _, m := range g.members {
		if m.registered() && !m.wasReady && !s.readyOnRecord(m, now) {
			is.Exclude(m.id)
		}
	}
	if g.history.SetReady(is) {
		s.saver.ChangedLater()
	}
}

// readyOnRecord reports whether m was ready before this term: its group's state or its
// record says so, or it has outlived its launch timeout and the state does not say otherwise.
// One that was woken is ready when its agent reports.
func (s *shard) readyOnRecord(m *member, now time.Time) bool {
	return m.registered() && !m.wokenOrWaking() && (!m.rec.ReadyAt.IsZero() || m.group.history.Ready.Covers(m.id, m.rec.RegisteredAt) || s.launchOver(m, now) && !m.group.history.Ready.Excludes(m.id))
}
