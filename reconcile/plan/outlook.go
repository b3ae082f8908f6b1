package plan

import (
	"fmt"
	"slices"

	"github.com/nstance-go/nstance"
)

// An Outlook is what becomes of a member in the end, when all replacements are made.
type Outlook struct {
	Counted  bool       `json:"counted"`          // it is wanted, or surplus
	Doomed   bool       `json:"doomed"`           // it must leave, whatever the size of its group
	Drifted  bool       `json:"drifted"`          // it was created from another definition of its group
	Expired  bool       `json:"expired"`          // it is older than its group permits, or prefers
	Leaves   ActionKind `json:"leaves,omitempty"` // StartDrain, or Delete where nothing on it would be drained; empty: it stays, or leaves already
	Replaced bool       `json:"replaced"`         // Leaves: another is created in its place
	Drifts   bool       `json:"drifts"`           // Replaced: because it has drifted
	Reason   string     `json:"reason,omitempty"` // Leaves: why
}

// Outlooks returns what becomes of the members, in their order.
func (c *Census) Outlooks() []Outlook {
	out, surplus := make([]Outlook, len(c.Members)), c.finalSurplus()
	for i := range c.Members {
		m := &c.Members[i]
		out[i] = c.outlook(m, surplus[m.ID])
	}
	return out
}

// finalSurplus returns the members that are surplus when no rollout is in
// progress, and those that expire without being replaced.
func (c *Census) finalSurplus() map[nstance.InstanceID]bool {
	out := map[nstance.InstanceID]bool{}
	for _, m := range c.pick(max(0, c.n.counted-c.size), c.lessUseful) {
		out[m.ID] = true
	}
	need := c.need()
	for _, d := range slices.Backward(c.doomed) {
		switch {
		case d.OnDemand || d.why != nstance.CauseExpired:
		case need > 0:
			need--
		default:
			out[d.ID] = true
		}
	}
	return out
}

func (c *Census) outlook(m *Member, surplus bool) Outlook {
	out := Outlook{
		Counted: c.counts(m), Doomed: c.doom(m) != "", Drifted: !m.OnDemand && c.drifted(m),
		Expired: c.passed(m.EligibleAt) && m.EligibleFor == "" || c.passed(m.ExpireAt),
	}
	leave := func(replaced bool, reason string) {
		out.Leaves, out.Replaced, out.Reason = Delete, replaced, reason
		if c.drainable(m) {
			out.Leaves = StartDrain
		}
	}
	switch expires := c.passed(m.ExpireAt); {
	case m.excluded(), m.State.Leaving(), c.undefined(), m.OnDemand && !expires:
	case m.Standby && c.stalePooled(m):
		leave(true, c.poolCause(m).Message)
		out.Drifts = out.Drifted
	case m.Standby:
	case m.OnDemand && c.drainable(m):
		leave(false, "older than expiry.on_demand_age")
	case m.OnDemand:
		leave(false, "older than expiry.on_demand_age, nothing to drain")
	case expires && surplus:
		leave(false, "older than expiry.forced_age, and surplus")
	case expires:
		leave(true, "older than expiry.forced_age")
	case !out.Counted:
	case surplus && c.drainable(m):
		leave(false, c.surplusCause().Message)
	case surplus:
		leave(false, c.surplusCause().Message+"; it serves nothing yet")
	case out.Drifted:
		leave(true, "its definition changes")
		out.Drifts = true
	case c.stale(m):
		leave(true, c.rolloutCause(m).Message)
	}
	return out
}

func (c *Census) surplusCause() nstance.Cause {
	return nstance.Cause{Kind: nstance.CauseSurplus, Message: fmt.Sprintf("surplus: group has %d members, size is %d", c.n.counted, c.size)}
}
