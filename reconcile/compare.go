package reconcile

import (
	"cmp"
	"slices"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// An outcome is what another configuration makes of a member.
type outcome string

const (
	outcomeStays    outcome = ""
	outcomeReplaced outcome = "replace"
	outcomeDrained  outcome = "drain"
	outcomeDeleted  outcome = "delete" // nothing runs on it that would be drained
	outcomePushed   outcome = "push"   // it stays, and gets another runtime configuration
)

func outcomeOf(o plan.Outlook) outcome {
	switch {
	case o.Replaced:
		return outcomeReplaced
	case o.Leaves == plan.StartDrain:
		return outcomeDrained
	case o.Leaves == plan.Delete:
		return outcomeDeleted
	}
	return outcomeStays
}

// A memberChange is what another configuration does to one member.
type memberChange struct {
	id       nstance.InstanceID
	outcome  outcome
	reason   string
	drifts   bool // its definition changes
	repeated bool // it is to be replaced already, and would be by yet another definition
}

// compare returns what after would do to the members of a group beyond what before
// does already, or earlier than before does, sorted by ID, and how many machines would
// be created. Both are censuses of the same members, in the same order.
func compare(before, after *plan.Census) (changes []memberChange, creates int) {
	was, will := before.Outlooks(), after.Outlooks()
	for i := range after.Members {
		change, changed := compareMember(before, after, was[i], will[i])
		if !changed {
			continue
		}
		if change.outcome == outcomeReplaced && will[i].Counted {
			creates++
		}
		change.id = after.Members[i].ID
		changes = append(changes, change)
	}
	slices.SortFunc(changes, func(a, b memberChange) int { return cmp.Compare(a.id, b.id) })
	return changes, creates + max(0, after.Counts().Missing-before.Counts().Missing)
}

func compareMember(before, after *plan.Census, was, will plan.Outlook) (out memberChange, changed bool) {
	out = memberChange{outcome: outcomeOf(will), reason: will.Reason, drifts: will.Drifts}
	same := out.outcome == outcomeOf(was)
	switch sooner := will.Doomed && !was.Doomed; {
	case sooner && out.outcome == outcomeReplaced:
	case same && (out.outcome != outcomeReplaced || after.Hash == before.Hash):
		undefined := before.Hash == plan.UnknownHash && !before.Removing
		if out.outcome != outcomeStays || undefined || after.RuntimeHash == before.RuntimeHash || !will.Counted {
			return out, false
		}
		out.outcome, out.reason = outcomePushed, "its runtime configuration changes"
	case out.outcome == outcomeStays:
		return out, false
	case same:
		out.repeated, out.drifts = true, false
		out.reason = "it is being replaced already, and the definition changes again"
	}
	return out, true
}
