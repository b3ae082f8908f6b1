// Package attention sorts what needs attention for those that show it.
package attention

import (
	"slices"

	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// Alarm is the kind of an entry that a server makes of an alarm that was raised lately.
const Alarm reconcile.AttentionKind = "alarm"

// HoldKinds returns the kinds of holds that need attention.
func HoldKinds() (kinds []reconcile.AttentionKind) {
	for _, kind := range []plan.HoldKind{
		plan.HoldBackoff, plan.HoldBreaker, plan.HoldCapacity, plan.HoldClock, plan.HoldDefinition, plan.HoldFrozen, plan.HoldHalted, plan.HoldPaused, plan.HoldRolledBack,
		plan.HoldUnhealthyCap, plan.HoldDrain, plan.HoldUnreadable, plan.HoldPending, plan.HoldAvoided, plan.HoldRefused,
	} {
		kinds = append(kinds, reconcile.AttentionKind(kind))
	}
	return kinds
}

// Loading is the kind of an entry of a shard that is not read yet: its list is not whole.
const Loading reconcile.AttentionKind = "loading"

// short is the kind of a group that has fewer ready members than its size.
const short reconcile.AttentionKind = "short"

// Problems returns in words what of a list is neither a group's own hold or lack
// of members nor an alarm.
func Problems(list []reconcile.Attention) (out []string) {
	for _, a := range list {
		held := a.Group != "" && slices.Contains(HoldKinds(), a.Kind)
		if !held && a.Kind != short && a.Kind != Alarm {
			out = append(out, a.Why)
		}
	}
	slices.Sort(out)
	return out
}
