package plan

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nstance-go/nstance"
)

// An Outcome is what becomes of a member in the end, when all replacements are
// made.
type Outcome string

// The outcomes.
const (
	OutcomeStays    Outcome = ""
	OutcomeReplaced Outcome = "replace"
	OutcomeDrained  Outcome = "drain"
	OutcomeDeleted  Outcome = "delete" // nothing runs on it that would be drained
	OutcomePushed   Outcome = "push"   // it stays, and gets another runtime configuration
)

// A MemberChange is what another configuration does to one member.
type MemberChange struct {
	ID       nstance.InstanceID
	Outcome  Outcome
	Reason   string
	Drifts   bool // its definition changes
	Repeated bool // it is to be replaced already, and would be by yet another definition
}

// A Comparison is what another configuration of a group changes.
type Comparison struct {
	Changes []MemberChange // by ID
	Creates int            // machines that would be created
}

// Compare tells what after would do to the members of a group beyond what before
// does already, or earlier than before does. Both are censuses of the same members, in the same order.
func Compare(before, after *Census) Comparison {
	var out Comparison
	surplusBefore, surplusAfter := before.finalSurplus(), after.finalSurplus()
	replaced := 0
	for i := range after.Members {
		m := &after.Members[i]
		was, _ := before.outcome(&before.Members[i], surplusBefore)
		change, changed := after.outcome(m, surplusAfter)
		sooner := after.doom(m) != "" && before.doom(&before.Members[i]) == ""
		switch {
		case sooner && change.Outcome == OutcomeReplaced:
		case change.Outcome == was.Outcome && (change.Outcome != OutcomeReplaced || after.Hash == before.Hash):
			if change.Outcome != OutcomeStays || before.undefined() || after.RuntimeHash == before.RuntimeHash || !after.counts(m) {
				continue
			}
			change.Outcome, change.Reason = OutcomePushed, "its runtime configuration changes"
		case !changed:
			continue
		case change.Outcome == was.Outcome:
			change.Repeated, change.Drifts = true, false
			change.Reason = "it is being replaced already, and the definition changes again"
		}
		if out.Changes = append(out.Changes, change); change.Outcome == OutcomeReplaced && after.counts(m) {
			replaced++
		}
	}
	slices.SortFunc(out.Changes, func(a, b MemberChange) int { return cmp.Compare(a.ID, b.ID) })
	out.Creates = replaced + max(0, after.Need()-before.Need())
	return out
}

// finalSurplus returns the members that are surplus when no rollout is in
// progress, and those that expire without being replaced.
func (c *Census) finalSurplus() map[nstance.InstanceID]bool {
	out := map[nstance.InstanceID]bool{}
	if c.undefined() {
		return out
	}
	for _, m := range c.pick(max(0, c.n.counted-c.size), c.lessUseful) {
		out[m.ID] = true
	}
	need := c.Need()
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

// outcome says what becomes of m, and whether anything does.
func (c *Census) outcome(m *Member, surplus map[nstance.InstanceID]bool) (out MemberChange, changes bool) {
	out.ID = m.ID
	become := func(o Outcome, reason string) { out.Outcome, out.Reason = o, reason }
	switch {
	case m.excluded(), m.State.Leaving(), c.undefined(), m.OnDemand && !c.passed(m.ExpireAt):
	case m.OnDemand && c.drainable(m):
		become(OutcomeDrained, "older than expiry.on_demand_age")
	case m.OnDemand:
		become(OutcomeDeleted, "older than expiry.on_demand_age, nothing to drain")
	case c.passed(m.ExpireAt) && surplus[m.ID]:
		become(OutcomeDrained, "older than expiry.forced_age, and surplus")
	case c.passed(m.ExpireAt):
		become(OutcomeReplaced, "older than expiry.forced_age")
	case !c.counts(m):
	case surplus[m.ID] && c.drainable(m):
		become(OutcomeDrained, c.surplusCause().Message)
	case surplus[m.ID]:
		become(OutcomeDeleted, c.surplusCause().Message+"; it serves nothing yet")
	case c.drifted(m):
		become(OutcomeReplaced, "its definition changes")
		out.Drifts = true
	case c.stale(m):
		become(OutcomeReplaced, c.rolloutCause(m).Message)
	}
	return out, out.Outcome != OutcomeStays
}

func (c *Census) surplusCause() nstance.Cause {
	return nstance.Cause{Kind: nstance.CauseSurplus, Message: fmt.Sprintf("surplus: group has %d members, size is %d", c.n.counted, c.size)}
}
