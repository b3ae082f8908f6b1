package reconcile

import (
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/groupspec"
	"github.com/nstance-go/nstance/internal/notice"
	"github.com/nstance-go/nstance/reconcile/internal/notices"
)

// maintenanceLead is how long before its maintenance a member may be replaced: long
// enough for a group that replaces one at a time, and not the days that clouds announce
// ahead, in which most groups replace the member anyway.
const maintenanceLead = 24 * time.Hour

// takeAdvice keeps a notice that dooms nothing, and has it written: no source repeats to the
// next leader what this one acknowledges.
func (s *shard) takeAdvice(m *member, n nstance.Notice) {
	known := notices.Find(m.Advice, n.EventID)
	if n.ReceivedAt.IsZero() {
		n.ReceivedAt = s.opts.Now().UTC().Round(0)
	}
	switch {
	case known >= 0 && (notice.Repeats(n, m.Advice[known]) || notice.SameEvent(n, m.Advice[known])):
		return
	case known >= 0:
		m.Advice[known] = n
	case len(m.Advice) >= notices.Max && !m.DropOldestRebalance():
		s.publish(m, nstance.Event{Type: nstance.EventNoticeIgnored, Reason: "too many standing notices", Notice: &n})
		return
	default:
		m.Advice = append(m.Advice, n)
	}
	now := s.opts.Now()
	returned := s.returnedUntil(m.group, m, now)
	if n.Kind == nstance.Rebalance && groupspec.OnRebalance(&m.group.spec) != nstance.NoticeIgnore && returned.IsZero() {
		s.places.Warned(capacityShape(m.rec.Shape), m.zone(), now) // or its replacement goes back there
	}
	reason := "kind " + string(n.Kind) + " dooms nothing"
	if at, setting := heeded(n, &m.group.spec); !at.IsZero() && !m.extra() {
		reason += "; " + setting + " replaces the machine when the group's rollout permits"
		if n.Kind == nstance.Rebalance && !returned.IsZero() {
			reason += ", not before " + returned.UTC().Format(time.RFC3339) + ": the machine was made since such a notice about its pool, and the group permits no other pool"
		}
	}
	s.publish(m, nstance.Event{Type: nstance.EventNoticeIgnored, Reason: reason, Notice: &n})
	s.queue.Add(m.group.key, false)
}

func (s *shard) dropAdvice(m *member, eventID string) {
	if m.DropAdvice(eventID) {
		s.queue.Add(m.group.key, false)
	}
}

// heeded returns from when on a group replaces a member for a notice that dooms nothing,
// and the setting that says so; zero: it does not.
func heeded(n nstance.Notice, g *nstance.Group) (at time.Time, setting string) {
	switch {
	case n.Kind == nstance.Rebalance && groupspec.OnRebalance(g) != nstance.NoticeIgnore:
		return n.ReceivedAt, "on_rebalance"
	case notice.Restarts(n) && groupspec.OnMaintenance(g) == nstance.NoticeReplace:
		if early := n.NotBefore.Add(-maintenanceLead); !n.NotBefore.IsZero() && early.After(n.ReceivedAt) {
			return early, "on_maintenance"
		}
		return n.ReceivedAt, "on_maintenance"
	}
	return time.Time{}, ""
}

// eligibleAt returns when m, as a member of g, may be replaced for its age, for what its
// cloud advises or for an avoided pool; zero: never. Then why says so.
func (s *shard) eligibleAt(g *group, m *member, now time.Time) (at time.Time, why string) {
	at = age(m, g.spec.Expiry.EligibleAge)
	for _, n := range m.Advice {
		early, setting := heeded(n, &g.spec)
		if early.IsZero() {
			continue
		}
		if until := s.returnedUntil(g, m, now); n.Kind == nstance.Rebalance && until.After(early) {
			early = until
		}
		if at.IsZero() || early.Before(at) {
			at, why = early, adviceMessage(n, setting)
		}
	}
	if p, elsewhere := s.poolToLeave(g, m, now); elsewhere && (at.IsZero() || !at.Before(p.Since)) {
		return p.Since, "it is in an avoided pool: " + p.Cause()
	}
	return at, why
}

// returnedUntil returns until when a recommendation to leave the pool of m, as a member of g,
// is in vain: m was made there since such a notice, and g permits no other pool; zero: it is
// not.
func (s *shard) returnedUntil(g *group, m *member, now time.Time) time.Time {
	since, until := s.places.WarnedFor(capacityShape(m.rec.Shape), m.zone(), now)
	if since.IsZero() || m.rec.CreatedAt.Before(since) || s.places.Candidates(g.request(g.spec.Definition), now).OpenUnwarned() {
		return time.Time{}
	}
	return until
}

// adviceMessage is what the cause of a rollout says that follows advice.
func adviceMessage(n nstance.Notice, setting string) string { return n.Source + " (" + setting + ")" }

// advisesCordon reports whether c, the cause of a rollout, is advice after which m's group
// only cordons.
func (m *member) advisesCordon(c nstance.Cause) bool {
	if groupspec.OnRebalance(&m.group.spec) != nstance.NoticeCordon {
		return false
	}
	return slices.ContainsFunc(m.Advice, func(n nstance.Notice) bool {
		return n.Kind == nstance.Rebalance && c.Message == adviceMessage(n, "on_rebalance")
	})
}
