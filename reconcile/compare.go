package reconcile

import (
	"cmp"
	"slices"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// actionNone: the instance stays as it is.
const actionNone InstanceAction = ""

func actionOf(o plan.Outlook) InstanceAction {
	switch {
	case o.Replaced:
		return ActionReplace
	case o.Leaves == plan.StartDrain:
		return ActionDrain
	case o.Leaves == plan.Delete:
		return ActionDelete
	}
	return actionNone
}

// A memberChange is what another configuration does to one member.
type memberChange struct {
	id       nstance.InstanceID
	action   InstanceAction
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
		if change.action == ActionReplace && will[i].Counted {
			creates++
		}
		change.id = after.Members[i].ID
		changes = append(changes, change)
	}
	slices.SortFunc(changes, func(a, b memberChange) int { return cmp.Compare(a.id, b.id) })
	return changes, creates + max(0, after.Counts().Missing-before.Counts().Missing)
}

func compareMember(before, after *plan.Census, was, will plan.Outlook) (out memberChange, changed bool) {
	out = memberChange{action: actionOf(will), reason: will.Reason, drifts: will.Drifts}
	same := out.action == actionOf(was)
	switch sooner := will.Doomed && !was.Doomed; {
	case sooner && out.action == ActionReplace:
	case same && (out.action != ActionReplace || after.Hash == before.Hash):
		undefined := before.Hash == plan.UnknownHash && !before.Removing
		if out.action != actionNone || undefined || after.RuntimeHash == before.RuntimeHash || !will.Counted {
			return out, false
		}
		out.action, out.reason = ActionPush, "its runtime configuration changes"
	case out.action == actionNone:
		return out, false
	case same:
		out.repeated, out.drifts = true, false
		out.reason = "it is being replaced already, and the definition changes again"
	}
	return out, true
}
