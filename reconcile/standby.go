package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/reconcile/internal/history"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// extra reports whether m is never counted in the size of its group.
func (m *member) extra() bool { return m.rec.OnDemand || m.rec.Standby != nil }

// parkedBefore reports whether m is a stand-by member that has been parked before.
func (m *member) parkedBefore() bool { return m.rec.Standby != nil && m.rec.Standby.Phase != "" }

// parkedOrWokenOnRecord reports whether m sleeps, or was woken, as its record says.
func (m *member) parkedOrWokenOnRecord() bool {
	return m.rec.Asleep() || m.parkedBefore() && m.rec.Drain == nil
}

// wokenOrWaking reports whether m is, or is to be, awake in place of others.
func (m *member) wokenOrWaking() bool {
	return m.state == nstance.Waking || m.rec.Standby != nil && m.rec.Standby.Phase == nstance.Waking && m.state != nstance.Parking
}

// parkedOrMoving reports whether m is parked, or on its way there or back.
func (m *member) parkedOrMoving() bool {
	return m.state == nstance.Parking || m.state == nstance.Parked || m.state == nstance.Waking
}

// parkMode returns what the provider must prepare for a machine that is to be parked.
func parkMode(rec records.Instance) nstance.ParkMode {
	if rec.Standby == nil || rec.Standby.Mode == nstance.ParkRunning {
		return ""
	}
	return rec.Standby.Mode
}

// viewStandby adds what Plan needs to know of a stand-by member of g.
func (s *shard) viewStandby(g *group, m *member, v *plan.Member) {
	v.Standby, v.ParkMode, v.Woken, v.WakeFailed, v.ParkFailed = true, m.rec.Standby.Mode, m.wokenOrWaking(), m.wakeFailed, m.parkFailed
	if v.EligibleAt = age(m, g.spec.WarmPool.MaxAge); !v.EligibleAt.IsZero() {
		v.EligibleFor = "older than warm_pool.max_age"
	}
	if !m.wokenOrWaking() {
		return
	}
	v.LaunchBy = time.Time{}
	if by := after(latest(m.rec.Standby.Since, m.awokeAt), m.rec.LaunchTimeout); !m.wasReady && (m.state == nstance.Waking || by.After(s.began)) {
		v.LaunchBy = by
	}
}

// restoreSleep resets m to what its record says of its sleep. The step finds out what has
// become of it.
func (m *member) restoreSleep() {
	m.standbyState = standbyState{}
	if m.rec.Asleep() {
		m.state, m.drainState = nstance.Parking, drainState{drain: m.rec.Drain, drainEnded: true}
		m.owe(stepPark)
		return
	}
	m.state = nstance.Waking
	m.owe(stepWake)
}

// tellAttempt publishes that an attempt failed, once until one succeeds.
func (s *shard) tellAttempt(m *member, published *bool, what string, err error) {
	if err != nil && !*published {
		s.publish(m, nstance.Event{Type: nstance.EventAlarm, Reason: what, Code: nstance.CodeOf(err), Error: err.Error()})
	}
	*published = err != nil
}

// askStatus asks for the machine of m, which is in a state, and records the answer. Without
// an error, and with a status that is not the wanted one, the step goes on.
func (r *Reconciler) askStatus(ctx context.Context, m *member, in nstance.State) (nstance.MachineStatus, nstance.Machine, error) {
	asked := r.opts.Now()
	mach, err := r.provider.Get(ctx, m.id)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case errors.Is(err, nstance.NotFound):
		r.handleMissing(m, absenceOf(err), asked)
		return "", mach, errAgain
	case err != nil:
		return "", mach, asUnavailable(err)
	}
	if err := r.checkMarks(m, mach); err != nil {
		return "", mach, err
	}
	r.handleMachine(mach, asked)
	if m.state != in { // it has arrived, or there is another plan for it
		return "", mach, nil
	}
	if mach.Status != nstance.StatusRunning && mach.Status != nstance.StatusStopped {
		return "", mach, errAccepted
	}
	return mach.Status, mach, nil
}

// observeSleep records what a machine's status says of a stand-by member that sleeps or is
// woken, and reports whether that is all: then a machine that is stopped is not lost.
func (s *shard) observeSleep(m *member, status nstance.MachineStatus, now time.Time) bool {
	if m.rec.Standby == nil || m.rec.Standby.Mode == nstance.ParkRunning {
		return false
	}
	stopped := status == nstance.StatusStopped
	switch running := status == nstance.StatusRunning; {
	case m.state == nstance.Parking && stopped && m.rec.Asleep():
		s.fellAsleep(m)
	case m.state == nstance.Parked && running:
		m.state = nstance.Parking // started by another program or person
		m.owe(stepPark)
	case m.state == nstance.Waking && running:
		s.awoke(m, now)
	case m.state == nstance.Booting && m.wokenOrWaking() && stopped:
		m.state = nstance.Waking
		m.owe(stepWake)
	case m.state == nstance.Booting && m.wokenOrWaking(): // a list may be older than its waking
	case m.parkedOrMoving():
	default:
		return false
	}
	return stopped || status == nstance.StatusStopping
}

// A Claim has a stand-by member of a group run in place of a node that is not of this
// shard.
type Claim struct {
	Node    string    `json:"node"`
	EventID string    `json:"event_id,omitempty"` // of what happens to the node
	Reason  string    `json:"reason,omitempty"`
	Since   time.Time `json:"since"`
	Until   time.Time `json:"until"`
}

// longestClaim is how long a claim may stand.
const longestClaim = 24 * time.Hour

// ClaimStandby has a stand-by member of a group run in place of a node, until c.Until, at
// most longestClaim from now, or until it is released. It returns the claim once that is
// durable. Another claim of the same node extends the first. Fails with NotFound, Invalid
// for a claim without a node or an end, Conflict when the group has no warm pool,
// and Unavailable while it is not durable.
func (r *Admin) ClaimStandby(ctx context.Context, key nstance.GroupKey, c Claim) (claim Claim, known bool, err error) {
	err = r.changeGroup(ctx, key, func(g *group) (nstance.Event, error) {
		now := r.opts.Now().UTC()
		switch {
		case c.Node == "":
			return nstance.Event{}, nstance.FieldError("node", "name the node that is lost", "is empty")
		case !c.Until.After(now) || c.Until.Sub(now) > longestClaim:
			return nstance.Event{}, nstance.FieldError("duration", "use up to "+longestClaim.String(), "%s is out of range", c.Until.Sub(now))
		case g.spec.WarmPool.Size == 0 || g.spec.Removing:
			return nstance.Event{}, &nstance.Error{Code: nstance.Conflict, Msg: "group " + key.String() + " has no stand-by machines", Remedy: "set warm_pool.size of the group"}
		}
		stands, extends, changed, err := g.history.AddClaim(history.Claim{Node: c.Node, EventID: c.EventID, Reason: c.Reason, Since: now, Until: c.Until.UTC()})
		claim, known = Claim(stands), extends
		switch {
		case err != nil:
			return nstance.Event{}, fmt.Errorf("group %s: %w", key, err)
		case !changed:
			return nstance.Event{}, nil
		case known:
			return nstance.Event{Type: eventtype.StandbyClaimed, Reason: "node " + c.Node + ", until " + claim.Until.Format(time.RFC3339)}, nil
		}
		return nstance.Event{Type: eventtype.StandbyClaimed, Reason: "node " + c.Node + withMessage(c.Reason)}, nil
	})
	return claim, known, err
}

// ReleaseStandby ends the claim of a node, and reports whether there was one. It returns
// once that is durable. Fails as Pause does.
func (r *Admin) ReleaseStandby(ctx context.Context, key nstance.GroupKey, node string) (known bool, err error) {
	err = r.changeGroup(ctx, key, func(g *group) (nstance.Event, error) {
		if known = g.history.EndClaim(node); !known {
			return nstance.Event{}, nil
		}
		return nstance.Event{Type: eventtype.StandbyReleased, Reason: "node " + node}, nil
	})
	return known, err
}

// claims returns the claims on stand-by members, oldest first.
func (g *group) claims() (out []Claim) {
	for _, c := range g.history.Standing() {
		out = append(out, Claim(c))
	}
	return out
}

// endClaims ends the claims of g whose time is over, and returns when the next one is.
func (s *shard) endClaims(g *group, now time.Time) (next time.Time) {
	if g.history.EndClaims(func(c history.Claim) bool { return s.reached(c.Until, now) }) {
		s.saver.Changed()
	}
	for _, c := range g.history.Standing() {
		next = earliest(next, lookAgainAt(c.Until, now))
	}
	return next
}
