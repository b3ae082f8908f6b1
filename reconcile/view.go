package reconcile

import (
	"fmt"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/confighash"
	"github.com/nstance-go/nstance/health"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// view returns Plan's input as of now. It changes nothing and makes no calls, so
// displays and rehearsals use it too. It appends to members.
func (s *shard) view(g *group, now time.Time, members []plan.Member) plan.View {
	v := plan.View{
		Group: g.spec, Hash: g.hashOrUnknown(), RuntimeHash: g.runtime, Members: slices.Grow(members, len(g.members)), History: g.plan(),
		SpotFree: s.spotFree(g, now), Claims: len(g.claims()), Unreadable: g.unreadable, Removing: g.spec.Removing,
		Frozen: s.freezeOf(g) != nil, Clock: s.clock.Distrust(),
	}
	if g.spec.Key == (nstance.GroupKey{}) { // it was never configured in this term
		v.Removing, v.Group.DrainTimeout = false, s.opts.DrainTimeout
	}
	unhealthy := false
	for _, m := range g.members {
		v.Members = append(v.Members, s.memberView(g, m, now))
		unhealthy = unhealthy || v.Members[len(v.Members)-1].Unhealthy
	}
	if unhealthy {
		v.Breaker = s.breaker(g, now)
	}
	return v
}

// memberView returns what Plan needs to know of m as a member of g, which may be
// another configuration of m's group.
func (s *shard) memberView(g *group, m *member, now time.Time) plan.Member {
	v := plan.Member{
		ID: m.id, State: m.state, OnDemand: m.rec.OnDemand, Reason: plan.Reason(m.rec.Reason), Market: m.market(), Hash: comparableHash(m.rec.InfraHash, g.hash),
		CreatedAt: m.rec.CreatedAt, HasMachine: m.machineKnown(), RegisteredAt: m.rec.RegisteredAt, GoodSince: m.healthySince,
		GraceUntil: m.graceUntil, Notices: m.notices, Silent: s.health.Misses(m.healthTrack, now) > 0,
		Unhealthy: s.verdict(m, now) == health.Unhealthy, Gone: m.gone, Loss: m.cause, LossWords: m.words, Taken: m.taken,
		Preserved: s.preserved(m, now), Requested: s.removalRequest(m, now), NoDrain: m.skipDrain, GoesFirst: m.goesFirst, Drain: m.drain, DrainBy: m.drainDeadline, DrainOver: m.drainEnded,
		DrainBlocked: m.drainBlocked,
		Place:        s.place(g, m), Replaces: m.rec.Replaces,
	}
	v.Answered = m.replacement != replacementOwed
	if v.Inherited = m.leftBefore; !m.state.Leaving() {
		v.Inherited = !m.inheritedAt.IsZero()
	}
	if len(m.deleteCauses) > 0 && m.drain == nil {
		v.DeletedFor = m.deleteCauses[0].Kind
	}
	if !m.registered() {
		v.RegisterBy = s.registerBy(m)
	}
	v.WasReady = s.readyOnRecord(m, now)
	if launchBy := after(m.rec.CreatedAt, m.rec.LaunchTimeout); !m.wasReady && (launchBy.After(s.began) || !m.registered()) {
		v.LaunchBy = launchBy
	}
	switch {
	case !m.machineKnown() && s.launchOver(m, now):
		v.Refusal = s.refusalOf(m, now)
	case m.machine.Status == nstance.StatusPending:
		v.Refusal = clip.Words(m.machine.CauseText)
	}
	switch {
	case m.rec.OnDemand:
		v.ExpireAt = age(m, g.spec.Expiry.OnDemandAge)
	case m.rec.Standby != nil:
		s.viewStandby(g, m, &v)
	default:
		v.EligibleAt, v.EligibleFor = s.eligibleAt(g, m, now)
		v.ExpireAt = age(m, g.spec.Expiry.ForcedAge)
	}
	return v
}

// refusalOf returns what the provider answered to the last create of m that failed, else to
// that of another member with a shape of m, which kept m from being tried; empty: nothing is
// known.
func (s *shard) refusalOf(m *member, now time.Time) string {
	if m.answeredWith != nil {
		return clip.Words(m.answeredWith.Error())
	}
	return s.admission.Answer(s.memberRequest(m), now)
}

// comparableHash returns the hash that a member was created from, or "" where it
// cannot be compared with the desired one: unknown is not drift. An equal one is the same
// string, so that the census compares it without reading it.
func comparableHash(have, want string) string {
	if have == want {
		return want
	}
	if confighash.Drifted(confighash.Hash(have), confighash.Hash(want)) {
		return have
	}
	return ""
}

// verdict evaluates the health of m.
func (s *shard) verdict(m *member, now time.Time) health.Verdict {
	verdict, _ := s.evaluateHealth(m, now)
	return verdict
}

// evaluateHealth is verdict, and returns when time alone may change it.
func (s *shard) evaluateHealth(m *member, now time.Time) (health.Verdict, time.Time) {
	if !m.registered() || m.gone || m.state != nstance.Booting {
		return health.Healthy, time.Time{}
	}
	return s.health.Evaluate(m.healthTrack, now)
}

// registerBy is when a machine must have registered: a timeout after this term first
// knew of it, but never after its nonce has expired.
func (s *shard) registerBy(m *member) time.Time {
	if m.rec.RegistrationTimeout <= 0 {
		return time.Time{}
	}
	last := after(m.rec.CreatedAt.Add(m.rec.RegistrationTimeout), m.rec.LaunchTimeout)
	if !m.machineKnown() {
		return last
	}
	return earliest(last, m.machineSince.Add(m.rec.RegistrationTimeout))
}

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
	s.recordMarkets(g, now)
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
	if !m.wokenOrWaking() {
		s.timeLaunch(m)
	}
	s.recordReturn(m, m.market() == nstance.Spot)
	s.publish(m, nstance.Event{Type: nstance.EventReady, Replaces: m.rec.Replaces})
	s.admission.Forgive(s.definitionOf(m), capacityShape(m.rec.Shape))
	if h := &m.group.history; s.provesDefinition(m) && (h.Failures > 0 || h.Refusals > 0) {
		h.clearFailures()
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
	return m.rec.InfraHash == m.group.hash || m.group.history.Failures == 0
}

// checkMassNotice raises an alarm when most of a group of three or more is under notice
// at once, and asks the provider about each. It delays nothing.
func (s *shard) checkMassNotice(g *group) {
	noticed, rehearsed := 0, 0
	for _, m := range g.members {
		if len(m.notices) > 0 && !m.extra() {
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
		if len(m.notices) > 0 {
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
	fullAt := min(g.history.FullAt, g.spec.Size)
	if full {
		fullAt = g.spec.Size
	}
	if fullAt != g.history.FullAt {
		g.history.FullAt = fullAt
		s.saver.Changed()
	}
	if full && !g.published.ready {
		s.publishGroup(g, nstance.Event{Type: nstance.EventGroupReady})
	}
	g.published.ready = full
	if !full || ready == 0 || g.history.LastGoodHash == g.hash || !fresh(c) {
		return
	}
	for _, m := range g.members {
		if !m.extra() && m.rec.InfraHash == g.hash && m.rec.Definition != "" {
			g.history.recordLastGood(m)
			s.saver.Changed()
			return
		}
	}
}

// age returns when a member reaches limit. Up to a tenth is taken off, by its
// own ID, so that machines created together do not expire together.
func age(m *member, limit time.Duration) time.Time {
	if limit <= 0 {
		return time.Time{}
	}
	u := m.id.UUID()
	jitter := limit / 10 * time.Duration(u[15]) / 256
	return m.rec.CreatedAt.Add(limit - jitter)
}
