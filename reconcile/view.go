package reconcile

import (
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
		SpotFree: s.spotFree(g, now), Claims: len(g.history.Standing()), Unreadable: g.unreadable, Removing: g.spec.Removing,
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
		v.Breaker = g.breaker.Holds(s.massSilence(g, now), now)
	}
	return v
}

// memberView returns what Plan needs to know of m as a member of g, which may be
// another configuration of m's group.
func (s *shard) memberView(g *group, m *member, now time.Time) plan.Member {
	verdict, _ := s.evaluateHealth(m, now)
	v := plan.Member{
		ID: m.id, State: m.state, OnDemand: m.rec.OnDemand, Reason: plan.Reason(m.rec.Reason), Market: m.market(), Hash: comparableHash(m.rec.InfraHash, g.hash),
		CreatedAt: m.rec.CreatedAt, HasMachine: m.machineKnown(), RegisteredAt: m.rec.RegisteredAt, GoodSince: m.healthySince,
		GraceUntil: m.graceUntil, Notices: m.Standing, Silent: s.health.Misses(m.healthTrack, now) > 0,
		Unhealthy: verdict == health.Unhealthy, Gone: m.gone, Loss: m.cause, LossWords: m.words, Taken: m.taken,
		Preserved: s.preserved(m, now), Requested: s.removalRequest(m, now), NoDrain: m.skipDrain, GoesFirst: m.goesFirst, Drain: m.drain, DrainBy: m.drainDeadline, DrainOver: m.drainEnded,
		DrainBlocked: m.drainBlocked,
		Place:        s.places.Place(g.spec.Spread.By, capacityShape(m.rec.Shape), m.zone()), Replaces: m.rec.Replaces,
	}
	v.Answered = m.replacement != replacementOwed
	if v.Inherited = m.leftBefore; !m.state.Leaving() {
		v.Inherited = !m.inheritedAt.IsZero()
	}
	if len(m.deleteCauses) > 0 && m.drain == nil {
		v.DeletedFor = m.deleteCauses[0].Kind
	}
	if !m.registered() {
		v.RegisterBy = m.registerBy()
	}
	v.WasReady = s.readyOnRecord(m, now)
	if !m.wasReady {
		v.LaunchBy = s.launchBy(m)
	}
	switch {
	case !m.machineKnown() && s.launchOver(m, now) && m.answeredWith != nil:
		v.Refusal = clip.Words(m.answeredWith.Error())
	case !m.machineKnown() && s.launchOver(m, now): // another member's create may have kept m from being tried
		v.Refusal = s.places.Candidates(m.request(), now).Answer()
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

// launchBy returns when a member that this term has not seen ready must be; zero: it may have
// been ready before. One that is known not to have been has this term's whole timeout.
func (s *shard) launchBy(m *member) time.Time {
	by := after(m.rec.CreatedAt, m.rec.LaunchTimeout)
	switch {
	case by.After(s.began) || !m.registered():
		return by
	case m.group.history.Ready.Excludes(m.id):
		return after(s.began, m.rec.LaunchTimeout)
	}
	return time.Time{}
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

// evaluateHealth evaluates the health of m, and returns when time alone may change it.
func (s *shard) evaluateHealth(m *member, now time.Time) (health.Verdict, time.Time) {
	if !m.shouldReport() {
		return health.Healthy, time.Time{}
	}
	return s.health.Evaluate(m.healthTrack, now)
}

// registerBy is when a machine must have registered: a timeout after this term first
// knew of it, but never after its nonce has expired.
func (m *member) registerBy() time.Time {
	if m.rec.RegistrationTimeout <= 0 {
		return time.Time{}
	}
	last := after(m.rec.CreatedAt.Add(m.rec.RegistrationTimeout), m.rec.LaunchTimeout)
	if !m.machineKnown() {
		return last
	}
	return earliest(last, m.machineSince.Add(m.rec.RegistrationTimeout))
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
