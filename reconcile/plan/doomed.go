package plan

import (
	"time"

	"github.com/nstance-go/nstance"
)

// removeDoomed is P2: doomed members leave at once. It waits for nothing, and no
// surge limits it.
func (p *planner) removeDoomed() {
	for _, d := range p.doomed {
		failure := !d.OnDemand && d.failed()
		if failure {
			p.failing++
		}
		p.remove(d.Member, p.causes(d.Member), failure)
		if !d.extra() && !failure && d.replacedAtOnce() {
			p.unanswered = append(p.unanswered, d.Member)
		}
	}
}

// failed reports whether the creation of d failed by itself: not ready in time,
// or dead or silent before it ever was. A reclaim, a request, old age, a machine
// taken by the cloud and a cloud that made no machine in time are no failures of
// the definition, and neither is what a machine does that was ready before it slept.
func (d doomedMember) failed() bool {
	if d.Woken {
		return false
	}
	switch d.why {
	case nstance.CauseTimeout:
		return d.HasMachine || d.registered()
	case nstance.CauseGone, nstance.CauseUnhealthy:
		return d.neverReady() && !d.noticed() && d.Requested == nil && !d.takenByCloud()
	}
	return false
}

// holdUnhealthy reports unhealthy members that are not replaced yet.
func (p *planner) holdUnhealthy() {
	switch {
	case p.waiting == 0:
	case p.Breaker != "":
		p.hold(HoldBreaker, p.Breaker, time.Time{})
	default:
		p.holdf(HoldUnhealthyCap, "%d unhealthy members wait: %d of the group's %d may be replaced at a time", p.waiting, max(1, p.size/5), p.size)
	}
}
