package reconcile

import (
	"cmp"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
)

// What Plan asks of one member.

// memberApart reports whether m is no concern of the plan: its create was
// refused, it is gone already, it belongs to a warm pool, or somebody looks into
// it.
func memberApart(m *Member) bool {
	if m.Preserved && !m.Gone && m.State != nstance.Deleting {
		return true
	}
	switch m.State {
	case nstance.Failed, nstance.Deleted, nstance.Parking, nstance.Parked, nstance.Waking:
		return true
	}
	return false
}

func memberRegistered(m *Member) bool { return !m.RegisteredAt.IsZero() }

// memberOwed reports whether the loss of m must be made good at once: it had
// begun to serve, it was to replace one that had, or the cloud took it.
func memberOwed(m *Member) bool {
	return memberRegistered(m) || m.Reason == ReasonReplace || memberTaken(m)
}

// memberTaken reports whether the machine of m is gone for something that it was
// not made from.
func memberTaken(m *Member) bool { return m.Gone && m.Taken }

// memberSilent reports whether m may be serving but cannot be asked. It is not
// ready to be relied on, nor idle enough to be taken for free.
func memberSilent(m *Member) bool {
	return memberRegistered(m) && (m.Silent || m.Unhealthy) || memberUnheard(m)
}

// memberUnheard reports whether an earlier term knew m and this one has not
// heard of it.
func memberUnheard(m *Member) bool {
	return memberRegistered(m) && m.GoodSince.IsZero() && !m.GraceUntil.IsZero()
}

// memberNeverReady reports whether m is certain never to have been ready.
func memberNeverReady(m *Member) bool {
	return !memberRegistered(m) || m.GoodSince.IsZero() && !m.LaunchBy.IsZero() && !memberUnheard(m)
}

// memberOlder orders members by creation. It is total, so that no choice
// depends on the order in which members are listed.
func memberOlder(a, b *Member) int {
	if c := a.CreatedAt.Compare(b.CreatedAt); c != 0 {
		return c
	}
	return cmp.Compare(a.ID, b.ID)
}

// memberLeavesVoluntarily reports whether a leaving member goes for nothing
// but a rollout or a surplus. Unknown counts as voluntary: that keeps the next
// voluntary step waiting, which is the safe side.
func memberLeavesVoluntarily(m *Member) bool {
	if m.Drain != nil && len(m.Drain.Causes) > 0 {
		return m.Drain.Voluntary
	}
	return m.DeletedFor == "" || causeVoluntary(m.DeletedFor)
}

func memberLeavesSick(m *Member) bool {
	if m.Drain != nil && len(m.Drain.Causes) > 0 {
		return causesInclude(m.Drain.Causes, nstance.CauseUnhealthy)
	}
	return m.DeletedFor == nstance.CauseUnhealthy
}

// memberNoticed reports whether a notice stands against m.
func memberNoticed(m *Member) bool {
	for i := range m.Notices {
		if !m.Notices[i].Cancelled {
			return true
		}
	}
	return false
}

// inGrace reports whether m has not been heard of in this term and need not
// have been yet: nothing bad can be said of it.
func (p *planner) inGrace(m *Member) bool { return memberUnheard(m) && !p.passed(m.GraceUntil) }

// ready reports whether m can be relied on: registered, not silent, and well
// for as long as the group asks.
func (p *planner) ready(m *Member) bool {
	return memberRegistered(m) && !m.GoodSince.IsZero() && !memberSilent(m) &&
		p.passed(m.GoodSince.Add(p.Group.Rollout.MinReady))
}

// stale reports whether a rollout should replace m.
func (p *planner) stale(m *Member) bool { return p.outdated(m) || p.market.misplaced[m.ID] }

// outdated reports whether m is to be replaced for what it was made from, or its
// age.
func (p *planner) outdated(m *Member) bool { return p.drifted(m) || p.due(m.EligibleAt) }

func (p *planner) drifted(m *Member) bool { return m.Hash != "" && m.Hash != p.Hash }

// doom returns the strongest reason why m must go whatever the group's size
// is, or "". Being unhealthy is not among them: that is capped, see isSick.
func (p *planner) doom(m *Member) nstance.CauseKind {
	switch {
	case m.Gone:
		return nstance.CauseGone
	case memberNoticed(m):
		return nstance.CauseNotice
	case m.Requested != nil:
		return nstance.CauseRequest
	case p.due(m.ExpireAt):
		return nstance.CauseExpired
	case p.late(m):
		return nstance.CauseTimeout
	}
	return ""
}

// late reports whether m should have registered or become ready by now. Once
// it has reported well it is not late: min_ready is not part of the launch. Of
// a member that this term has not heard of nobody knows whether it was ready:
// if it stays silent it is unhealthy, which is capped.
func (p *planner) late(m *Member) bool {
	if m.OnDemand { // what has a machine may take its time: it is not ours to judge
		return !m.HasMachine && !memberRegistered(m) && p.due(m.LaunchBy)
	}
	if !memberRegistered(m) && p.due(m.RegisterBy) {
		return true
	}
	return m.GoodSince.IsZero() && !memberUnheard(m) && p.due(m.LaunchBy)
}

func (p *planner) isSick(m *Member) bool { return m.Unhealthy && !m.OnDemand && !p.inGrace(m) }

// counts reports, after the survey, whether m was counted.
func (p *planner) counts(m *Member) bool {
	if memberApart(m) || m.State.Leaving() || m.OnDemand || p.doom(m) != "" {
		return false
	}
	return !p.isSick(m) || len(p.sick) == 0 || memberOlder(m, p.sick[len(p.sick)-1]) > 0
}

// drainable reports whether anything runs on m that the group wants drained.
func (p *planner) drainable(m *Member) bool {
	return memberRegistered(m) && !m.Gone && !memberDeleteAsked(m) && p.Group.DrainTimeout > 0
}

func memberDeleteAsked(m *Member) bool { return m.Requested != nil && m.NoDrain }

// causes lists everything that dooms m.
func (p *planner) causes(m *Member) []nstance.Cause {
	var out []nstance.Cause
	add := func(kind nstance.CauseKind, msg string) { out = append(out, nstance.Cause{Kind: kind, Message: msg}) }
	if m.Gone {
		add(nstance.CauseGone, "the provider says that it does not run"+orNothing(string(m.Loss)))
	}
	for i := range m.Notices {
		if n := &m.Notices[i]; !n.Cancelled {
			out = append(out, noticeCause(n))
		}
	}
	if m.Requested != nil {
		out = append(out, *m.Requested)
	}
	if p.due(m.ExpireAt) {
		add(nstance.CauseExpired, "it is older than the group permits")
	}
	switch {
	case !p.late(m):
	case memberRegistered(m):
		add(nstance.CauseTimeout, "it did not become ready in time")
	case !m.HasMachine:
		add(nstance.CauseTimeout, "no machine could be had in time")
	default:
		add(nstance.CauseTimeout, "it did not register in time")
	}
	if len(out) == 0 {
		add(nstance.CauseUnhealthy, "it is silent past its limit although the provider says that it runs")
	}
	return out
}

func noticeCause(n *nstance.Notice) nstance.Cause {
	return nstance.Cause{Kind: nstance.CauseNotice, EventID: n.EventID, Message: strings.TrimSpace(n.Source + " " + n.Action)}
}

func surplusCause() nstance.Cause {
	return nstance.Cause{Kind: nstance.CauseSurplus, Message: "the group has more members than it wants"}
}

func causeVoluntary(k nstance.CauseKind) bool {
	return k == nstance.CauseRollout || k == nstance.CauseSurplus
}

func causesVoluntary(causes []nstance.Cause) bool {
	for i := range causes {
		if !causeVoluntary(causes[i].Kind) {
			return false
		}
	}
	return true
}

func causesInclude(causes []nstance.Cause, k nstance.CauseKind) bool {
	for i := range causes {
		if causes[i].Kind == k {
			return true
		}
	}
	return false
}

const (
	// noticeMargin is kept between a drain's end and the cloud's deadline, so
	// that the end is ours.
	noticeMargin = 10 * time.Second

	// shortestWarning is assumed for a reclaim that names no deadline: 30 s is
	// what Google Compute Engine leaves between the signal and power-off
	// (cloud.google.com/compute/docs/instances/spot, "Preemption process"), and
	// no supported cloud announces less.
	shortestWarning = 30 * time.Second
)

// memberDrainEnd returns when a drain under way ends: as recorded, unless this
// term has planned that end and knows better how much time has elapsed since.
func memberDrainEnd(m *Member) time.Time {
	if !m.DrainBy.IsZero() {
		return m.DrainBy
	}
	return m.Drain.Deadline
}

// tightest returns when m's drain must end: limit, or earlier if a notice says so.
func (p *planner) tightest(m *Member, limit time.Time) time.Time {
	for i := range m.Notices {
		end := noticeEnd(&m.Notices[i], p.now)
		if m.Notices[i].Cancelled || end.IsZero() {
			continue
		}
		if d := drainEnd(end, p.now); d.Before(limit) {
			limit = d
		}
	}
	return limit
}

// noticeEnd returns when the cloud takes the machine, estimated for a reclaim
// without a deadline, zero where nothing is known. A machine that still runs when
// a notice arrives too late is drained now, in the shortest time that any cloud
// leaves: a deadline in the past would be no drain at all.
func noticeEnd(n *nstance.Notice, now time.Time) time.Time {
	end := n.Deadline
	switch {
	case !end.IsZero():
	case n.Kind != nstance.Reclaim:
		return time.Time{}
	case n.DetectedAt.IsZero():
		end = now.Add(shortestWarning)
	default:
		end = n.DetectedAt.Add(shortestWarning)
	}
	if !end.After(n.ReceivedAt) {
		end = n.ReceivedAt.Add(shortestWarning)
	}
	return end
}

// drainEnd returns when to end a drain before end: 10 s earlier, or a third of
// what is left if that is less.
func drainEnd(end, now time.Time) time.Time {
	left := end.Sub(now)
	if left <= 0 {
		return now
	}
	return end.Add(-min(noticeMargin, left/3))
}
