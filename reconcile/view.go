package reconcile

import (
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/confighash"
	"github.com/nstance-go/nstance/health"
)

// view makes Plan's input from a group's state, and says when time alone may
// change it. Members that have become ready are announced on the way.
func (r *Reconciler) view(g *group, now time.Time) (View, time.Time) {
	var next time.Time
	ready, steady, sick := 0, true, false
	g.buffer = g.buffer[:0]
	for _, m := range g.members {
		verdict, at := health.Well, time.Time{}
		if m.registered() && !m.gone && m.state == nstance.Booting {
			verdict, at = r.health.Judge(m.track, now)
		}
		if verdict == health.Ask || !m.absent.IsZero() && !m.gone {
			r.asks.add(m.id)
		}
		at = earliest(at, r.lookAgain(m, now), r.lookWhileBooting(m, now))
		v := r.memberView(m, verdict, now)
		if r.isReady(m, g, now) {
			if !m.rec.OnDemand && !v.Preserved {
				ready++
			}
			r.becameReady(m)
		} else if m.state == nstance.Booting && !m.goodSince.IsZero() {
			at = earliest(at, m.goodSince.Add(g.spec.Rollout.MinReady))
		}
		steady = steady && (v.State.Leaving() || v.OnDemand || v.Preserved || v.Hash == g.hash)
		if v.Preserved {
			at = earliest(at, m.preserve.Until)
		}
		sick = sick || v.Unhealthy
		next = earliest(next, at, m.due())
		g.buffer = append(g.buffer, v)
	}
	r.judgeGroup(g, ready, steady)
	if enough := ready >= g.spec.Size; enough {
		g.shortSince = time.Time{}
	} else if g.shortSince.IsZero() {
		g.shortSince = now.UTC()
	}
	r.suspect(g)
	r.noteMarkets(g, now)
	v := View{
		Group: g.spec, Hash: g.hash, Members: g.buffer, History: g.plan(), SpotFree: r.spotFree(g, now),
		Owed: g.owed.ids, Unreadable: g.unreadable, Removing: g.removing, Frozen: r.freezeOf(g) != nil,
		Clock: r.clock.why,
	}
	if sick {
		if v.Breaker = r.breaker(g, now); v.Breaker != "" {
			next = earliest(next, now.Add(r.health.Interval/4)) // others may be heard of again meanwhile
		}
	}
	r.sayBroken(g, v.Breaker)
	if !g.desired { // nobody says what it should be: what is under way is finished, nothing begins by itself
		v.Unnamed = !v.Frozen && !g.leaves()
		v.Hash, v.Frozen, v.Group.DrainTimeout = "unknown", v.Frozen || v.Unnamed, r.opts.DrainTimeout
		if g.leaves() {
			v.Group = g.open.Group
		}
	}
	return v, next
}

// looks are when to ask about a machine again whose stream broke although the
// provider said that it runs: a cloud may take a moment to notice that it does
// not any more.
var looks = [...]time.Duration{time.Second, 3 * time.Second, 10 * time.Second}

// lookAgain asks again when it is time to, until that is answered, and returns
// when it is next.
func (r *Reconciler) lookAgain(m *member, now time.Time) time.Time {
	if m.brokeAt.IsZero() || m.gone || m.state != nstance.Booting || m.looks >= len(looks) {
		return time.Time{}
	}
	if due := m.brokeAt.Add(looks[m.looks]); now.Before(due) {
		return due
	}
	r.asks.add(m.id) // until there is an answer, which is followed by a plan
	return time.Time{}
}

// looked counts the looks that an answer to a question asked then stands for.
func (m *member) looked(asked time.Time) {
	for !m.brokeAt.IsZero() && m.looks < len(looks) && !asked.Before(m.brokeAt.Add(looks[m.looks])) {
		m.looks++
	}
}

func (r *Reconciler) memberView(m *member, verdict health.Verdict, now time.Time) Member {
	v := Member{
		ID: m.id, State: m.state, OnDemand: m.rec.OnDemand, Reason: Reason(m.rec.Reason), Market: m.market(), Hash: r.comparable(m),
		CreatedAt: m.rec.CreatedAt, HasMachine: m.hasMach, RegisteredAt: m.rec.RegisteredAt, GoodSince: m.goodSince,
		GraceUntil: m.graceUntil, Notices: m.notices, Silent: r.health.Misses(m.track, now) > 0,
		Unhealthy: verdict == health.Unhealthy, Gone: m.gone, Loss: m.cause, Taken: m.taken,
		Preserved: r.preserved(m, now), Requested: r.outlived(m, now), NoDrain: m.noDrain, Drain: m.drain, DrainBy: m.drainBy, DrainOver: m.drainOver,
	}
	if len(m.why) > 0 && m.drain == nil {
		v.DeletedFor = m.why[0].Kind
	}
	if !m.registered() {
		v.RegisterBy = r.registerBy(m)
	}
	if launchBy := after(m.rec.CreatedAt, m.rec.LaunchTimeout); !m.everReady && (launchBy.After(r.began) || !m.registered()) {
		v.LaunchBy = launchBy
	}
	if !m.rec.OnDemand {
		v.EligibleAt = age(m, m.group.spec.Expiry.EligibleAge)
		v.ExpireAt = age(m, m.group.spec.Expiry.ForcedAge)
	} else {
		v.ExpireAt = age(m, m.group.spec.Expiry.OnDemandAge)
	}
	return v
}

// comparable returns the hash that m was made from, or "" where it cannot be
// compared with the desired one: unknown is not drift.
func (r *Reconciler) comparable(m *member) string {
	return comparableWith(m.rec.InfraHash, m.group.hash)
}

func comparableWith(have, want string) string {
	if have == want || confighash.Drifted(confighash.Hash(have), confighash.Hash(want)) {
		return have
	}
	return ""
}

// registerBy is when a machine must have registered: a while after this term
// first knew of it, but never after its nonce has expired.
func (r *Reconciler) registerBy(m *member) time.Time {
	if m.rec.RegistrationTimeout <= 0 {
		return time.Time{}
	}
	last := after(m.rec.CreatedAt.Add(m.rec.RegistrationTimeout), m.rec.LaunchTimeout)
	if !m.hasMach {
		return last
	}
	return earliest(last, m.machSince.Add(m.rec.RegistrationTimeout))
}

// after returns when limit has passed since t; no limit never passes.
func after(t time.Time, limit time.Duration) time.Time {
	if limit <= 0 {
		return time.Time{}
	}
	return t.Add(limit)
}

// age returns when a member reaches limit. Up to a tenth is taken off, by its
// own ID, so that machines born together do not die together.
func age(m *member, limit time.Duration) time.Time {
	if limit <= 0 {
		return time.Time{}
	}
	u := m.id.UUID()
	jitter := limit / 10 * time.Duration(u[15]) / 256
	return m.rec.CreatedAt.Add(limit - jitter)
}

// expired reports whether m is to be replaced for its age, now or when there is
// time for it.
func (r *Reconciler) expired(m *member, now time.Time) bool {
	e := m.group.spec.Expiry
	for _, limit := range []time.Duration{e.EligibleAge, e.ForcedAge} {
		if at := age(m, limit); !m.rec.OnDemand && !at.IsZero() && !now.Before(at) {
			return true
		}
	}
	at := age(m, e.OnDemandAge)
	return m.rec.OnDemand && !at.IsZero() && !now.Before(at)
}

// isReady reports whether m is ready: registered, well, and for long enough.
func (r *Reconciler) isReady(m *member, g *group, now time.Time) bool {
	return m.state == nstance.Booting && m.registered() && !m.goodSince.IsZero() && !m.gone &&
		!now.Before(m.goodSince.Add(g.spec.Rollout.MinReady))
}

func (r *Reconciler) becameReady(m *member) {
	if m.everReady {
		return
	}
	m.everReady = true
	r.timeLaunch(m)
	r.returned(m, m.market() == nstance.Spot)
	r.say(m, nstance.Event{Type: nstance.EventReady, Replaces: m.replaces})
	if h := &m.group.history; r.proves(m) && (h.Failures > 0 || h.Refusals > 0) {
		h.forgive()
		r.saveSoon()
	}
}

// proves reports whether m, now that it is ready, shows that what its group
// desires can become ready. One that a former leader has made and registered may
// have been ready for long: it is only heard of again, by this one. And while
// creations fail, what another definition can do is no comfort.
func (r *Reconciler) proves(m *member) bool {
	switch {
	case m.rec.OnDemand, m.lastGood:
		return false
	case m.rec.CreatedEpoch < r.opts.Epoch && m.rec.RegisteredAt.Before(r.began):
		return false
	}
	return m.rec.InfraHash == m.group.hash || m.group.history.Failures == 0
}

// suspect raises an alarm when most of a group of three or more is under notice
// at once, and asks the provider about each. It delays nothing.
func (r *Reconciler) suspect(g *group) {
	noticed := 0
	for _, m := range g.members {
		if len(m.notices) > 0 && !m.rec.OnDemand {
			noticed++
		}
	}
	if g.spec.Size < 3 || noticed*2 <= g.spec.Size {
		g.suspected = false
		return
	}
	if g.suspected {
		return
	}
	g.suspected = true
	r.sayGroup(g, nstance.Event{Type: nstance.EventAlarm, Reason: fmt.Sprintf("%d of %d members are under notice at once", noticed, len(g.members))})
	for _, m := range g.members {
		if len(m.notices) > 0 {
			r.asks.add(m.id)
		}
	}
}

// judgeGroup announces a group that has as many ready members as it wants, and
// remembers the definition with which all of them are ready and fresh.
func (r *Reconciler) judgeGroup(g *group, ready int, steady bool) {
	full := g.desired && !g.removing && ready >= g.spec.Size
	if full && !g.full {
		r.sayGroup(g, nstance.Event{Type: nstance.EventGroupReady})
	}
	g.full = full
	if !full || !steady || ready == 0 || g.history.LastGoodHash == g.hash {
		return
	}
	for _, m := range g.members {
		if m.rec.OnDemand {
			continue
		}
		if m.rec.InfraHash == g.hash && m.rec.Definition != "" {
			g.history.noteLastGood(m)
			r.saveSoon()
			return
		}
	}
}
