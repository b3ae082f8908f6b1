package plan

import (
	"cmp"
	"strings"

	"github.com/nstance-go/nstance"
)

// excluded reports whether m takes no part in the plan: its create was refused,
// it is gone already, or it is kept for inspection.
func (m *Member) excluded() bool {
	if m.Preserved && !m.Gone && m.State != nstance.Deleting {
		return true
	}
	return m.State == nstance.Failed || m.State == nstance.Deleted
}

// extra reports whether m is never counted in the size of its group.
func (m *Member) extra() bool { return m.OnDemand || m.Standby }

// asleep reports whether m is parked, or on its way there or back.
func (m *Member) asleep() bool {
	return m.State == nstance.Parking || m.State == nstance.Parked || m.State == nstance.Waking
}

func (m *Member) registered() bool { return !m.RegisteredAt.IsZero() }

// replacedAtOnce reports whether the loss of m must be replaced without waiting
// for a backoff: it had begun to serve, it was to replace a member that had, or
// the cloud took its machine.
func (m *Member) replacedAtOnce() bool {
	return m.registered() || m.Reason == ReasonReplace || m.takenByCloud()
}

// takenByCloud reports whether the machine of m is gone for a cause that has
// nothing to do with what it was created from.
func (m *Member) takenByCloud() bool { return m.Gone && m.Taken }

// unreachable reports whether m may be serving but does not report. It is not
// ready, and not idle enough to be removed for free.
func (m *Member) unreachable() bool {
	return m.registered() && (m.Silent || m.Unhealthy) || m.unheard()
}

// unheard reports whether m was registered in an earlier term and has not
// reported in this one.
func (m *Member) unheard() bool {
	return m.registered() && m.GoodSince.IsZero() && !m.GraceUntil.IsZero()
}

// neverReady reports whether m certainly was never ready.
func (m *Member) neverReady() bool {
	return !m.registered() || m.GoodSince.IsZero() && !m.LaunchBy.IsZero() && !m.unheard()
}

// olderFirst orders members by creation. It is total, so that no choice
// depends on the order in which members are listed.
func olderFirst(a, b *Member) int {
	if c := a.CreatedAt.Compare(b.CreatedAt); c != 0 {
		return c
	}
	return cmp.Compare(a.ID, b.ID)
}

// leavesVoluntarily reports whether a leaving member leaves only for a rollout or
// a surplus. Unknown counts as voluntary: then the next voluntary step waits,
// which is safe.
func (m *Member) leavesVoluntarily() bool {
	if m.Drain != nil && len(m.Drain.Causes) > 0 {
		return m.Drain.Voluntary
	}
	return m.DeletedFor == "" || isVoluntary(m.DeletedFor)
}

func (m *Member) leavesUnhealthy() bool {
	if m.Drain != nil && len(m.Drain.Causes) > 0 {
		return includesCause(m.Drain.Causes, nstance.CauseUnhealthy)
	}
	return m.DeletedFor == nstance.CauseUnhealthy
}

// noticed reports whether a notice stands against m.
func (m *Member) noticed() bool {
	for i := range m.Notices {
		if !m.Notices[i].Cancelled {
			return true
		}
	}
	return false
}

// inGrace reports whether m has not reported in this term and need not have yet:
// it counts as well.
func (c *Census) inGrace(m *Member) bool { return m.unheard() && !c.passed(m.GraceUntil) }

// ready reports whether m can be relied on: it serves and has missed no report.
func (c *Census) ready(m *Member) bool { return c.serves(m) && !m.unreachable() }

// serves reports whether m has been well for min_ready, as far as is known: it may
// have missed reports since.
func (c *Census) serves(m *Member) bool {
	return m.registered() && !m.GoodSince.IsZero() && c.passed(m.GoodSince.Add(c.Group.Rollout.MinReady))
}

// wasReady reports whether m is ready, or was before, as far as is known.
func (c *Census) wasReady(m *Member) bool {
	return c.serves(m) || m.registered() && (m.unheard() || m.LaunchBy.IsZero())
}

// stale reports whether a rollout should replace m.
func (c *Census) stale(m *Member) bool { return c.outdated(m) || c.market.misplaced[m.ID] }

// outdated reports whether m is to be replaced for what it was made from, or its
// age.
func (c *Census) outdated(m *Member) bool { return c.drifted(m) || c.due(m.EligibleAt) }

// drifted reports whether m was created from another definition.
func (c *Census) drifted(m *Member) bool {
	return m.Hash != "" && m.Hash != c.Hash && c.Hash != UnknownHash
}

// doom returns the strongest reason why m must leave whatever the group's size is,
// or "". Being unhealthy is not among them: it is capped, see capUnhealthy.
func (c *Census) doom(m *Member) nstance.CauseKind {
	switch {
	case m.Gone:
		return nstance.CauseGone
	case m.noticed():
		return nstance.CauseNotice
	case m.Requested != nil:
		return nstance.CauseRequest
	case c.due(m.ExpireAt):
		return nstance.CauseExpired
	case c.late(m):
		return nstance.CauseTimeout
	}
	return ""
}

// late reports whether m should have registered or become ready by now. Once it
// has reported well it is not late: min_ready is not part of the launch. A member
// that has not reported in this term may have been ready before: if it stays
// silent it is unhealthy, which is capped. An instance by request that has a
// machine is never late: its owner decides.
func (c *Census) late(m *Member) bool {
	switch {
	case m.asleep():
		return false
	case m.OnDemand:
		return !m.HasMachine && !m.registered() && c.due(m.LaunchBy)
	}
	if !m.registered() && c.due(m.RegisterBy) {
		return true
	}
	return m.GoodSince.IsZero() && !m.unheard() && c.due(m.LaunchBy)
}

func (c *Census) isUnhealthy(m *Member) bool { return m.Unhealthy && !m.OnDemand && !c.inGrace(m) }

// counts reports whether m is counted, once all members are sorted. The doomed
// among the unhealthy ones are the oldest.
func (c *Census) counts(m *Member) bool {
	if m.excluded() || m.State.Leaving() || m.extra() || c.doom(m) != "" {
		return false
	}
	return !c.isUnhealthy(m) || len(c.unhealthy) == 0 || olderFirst(m, c.unhealthy[len(c.unhealthy)-1]) > 0
}

// drainable reports whether anything runs on m that the group wants drained.
func (c *Census) drainable(m *Member) bool {
	return m.registered() && !m.Gone && !m.asleep() && !m.deleteRequested() && c.Group.DrainTimeout > 0
}

func (m *Member) deleteRequested() bool { return m.Requested != nil && m.NoDrain }

// causes lists everything that dooms m.
func (c *Census) causes(m *Member) []nstance.Cause {
	var out []nstance.Cause
	add := func(kind nstance.CauseKind, msg string) { out = append(out, nstance.Cause{Kind: kind, Message: msg}) }
	if m.Gone {
		add(nstance.CauseGone, goneMessage(m.Loss, m.LossWords))
	}
	for i := range m.Notices {
		if n := &m.Notices[i]; !n.Cancelled {
			out = append(out, noticeCause(n))
		}
	}
	if m.Requested != nil {
		out = append(out, *m.Requested)
	}
	if c.due(m.ExpireAt) {
		add(nstance.CauseExpired, "older than the group permits")
	}
	switch {
	case !c.late(m):
	case m.registered():
		add(nstance.CauseTimeout, "not ready within its launch timeout")
	case m.HasMachine && m.Refusal != "":
		add(nstance.CauseTimeout, "its machine did not start within its registration timeout: "+m.Refusal)
	case !m.HasMachine:
		add(nstance.CauseTimeout, noMachineMessage(m.Refusal))
	default:
		add(nstance.CauseTimeout, "not registered within its registration timeout")
	}
	if len(out) == 0 {
		add(nstance.CauseUnhealthy, "no reports past the limit, and the provider says that the machine runs")
	}
	return out
}

// noMachineMessage says that there was no machine in time, and what the provider answered
// instead; empty: that is not known.
func noMachineMessage(refusal string) string {
	const none = "the provider made no machine in time"
	if refusal == "" {
		return none
	}
	return none + "; it answered: " + refusal
}

func noticeCause(n *nstance.Notice) nstance.Cause {
	return nstance.Cause{Kind: nstance.CauseNotice, EventID: n.EventID, Message: strings.TrimSpace(n.Source + " " + n.Action)}
}

func goneMessage(why nstance.LossCause, words string) string {
	text := "the provider says that the machine does not run"
	if why != "" {
		text += ": " + string(why)
	}
	if words != "" {
		text += ": " + words
	}
	return text
}

func isVoluntary(k nstance.CauseKind) bool {
	return k == nstance.CauseRollout || k == nstance.CauseSurplus || k == nstance.CauseStandby
}

// allVoluntary reports whether causes hold nothing but rollouts and surpluses.
func allVoluntary(causes []nstance.Cause) bool {
	for i := range causes {
		if !isVoluntary(causes[i].Kind) {
			return false
		}
	}
	return true
}

// includesCause reports whether a cause of kind k is among causes.
func includesCause(causes []nstance.Cause, k nstance.CauseKind) bool {
	for i := range causes {
		if causes[i].Kind == k {
			return true
		}
	}
	return false
}
