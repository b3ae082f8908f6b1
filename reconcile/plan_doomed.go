package reconcile

import (
	"slices"
	"time"

	"github.com/nstance-go/nstance"
)

// A doomedMember must go, and why.
type doomedMember struct {
	*Member
	why nstance.CauseKind
}

// remedy is P2: doomed members leave at once. It waits for nothing and no
// surge limits it.
func (p *planner) remedy() {
	slices.SortFunc(p.doomed, func(a, b doomedMember) int { return memberOlder(a.Member, b.Member) })
	var failed []*Member
	for _, d := range p.doomed {
		failure := !d.OnDemand && d.failed()
		if failure {
			p.failing++
		}
		p.remove(d.Member, p.causes(d.Member), failure)
		if d.OnDemand || !memberOwed(d.Member) {
			continue
		}
		if failure {
			failed = append(failed, d.Member)
			continue
		}
		p.lost = append(p.lost, d.Member)
		p.urgent++
	}
	p.lost = append(p.lost, failed...)
}

// failed reports whether d is a creation that came to nothing by itself: not
// ready in time, or dead or silent before it ever was. A reclaim, a request, old
// age and a cloud that took the machine are not its failure, nor is a cloud that
// made no machine in time.
func (d doomedMember) failed() bool {
	switch d.why {
	case nstance.CauseTimeout:
		return d.HasMachine || memberRegistered(d.Member)
	case nstance.CauseGone, nstance.CauseUnhealthy:
		return memberNeverReady(d.Member) && !memberNoticed(d.Member) && d.Requested == nil && !memberTaken(d.Member)
	}
	return false
}

// capSick dooms the oldest unhealthy members, as many as may be leaving for
// that cause at once: one, or a fifth of the group, which is never the majority
// of three or more. The others stay counted: they may be well, and only unable
// to say so.
func (p *planner) capSick() {
	if len(p.sick) == 0 {
		return
	}
	if p.Breaker != "" {
		for _, m := range p.sick {
			p.count(m)
		}
		p.sick = nil
		p.hold(HoldBreaker, p.Breaker, time.Time{})
		return
	}
	slices.SortFunc(p.sick, memberOlder)
	room := min(max(0, max(1, p.size/5)-p.n.sick), len(p.sick))
	for _, m := range p.sick[:room] {
		p.doomed = append(p.doomed, doomedMember{m, nstance.CauseUnhealthy})
	}
	for _, m := range p.sick[room:] {
		p.count(m)
	}
	if room < len(p.sick) {
		p.holdf(HoldUnhealthyCap, "%d unhealthy members wait for those that are leaving", len(p.sick)-room)
	}
	p.sick = p.sick[:room]
}
