package reconcile

import (
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// A draw is what one pass over a group takes from the budgets for creates, and
// what it has to wait for.
type draw struct {
	was    losses // as the plan knew them
	owed   losses // as the next plan will
	seen   int    // creates for losses so far
	losses int    // creates for losses that wait for the create budget
	others int    // other creates that do
	holds  []plan.Hold
	next   time.Time // when to look again
}

// hold notes what is being waited for, once.
func (w *draw) hold(h plan.Hold) {
	w.next = earliest(w.next, h.Until)
	if !slices.ContainsFunc(w.holds, func(o plan.Hold) bool { return o.Kind == h.Kind && o.Reason == h.Reason }) {
		w.holds = append(w.holds, h)
	}
}

func claimOf(a plan.Action, key nstance.GroupKey) claim {
	if a.ReplacesLoss() {
		return claim{key, claimLoss}
	}
	return claim{key, claimSize}
}

// draw makes a member of the first of some creates, if the budgets permit, and
// reports whether the next may be tried. The create budget is asked last, and
// has nothing for the others either once it refuses one.
func (r *Reconciler) draw(g *group, w *draw, rest []plan.Action, now time.Time) bool {
	a := rest[0]
	leave, budget := r.launchable(g, inMarket(g.spec.Definition, a.Market), a.Reason == plan.ReasonReplace && !w.barred(), now)
	if !leave.ok {
		w.hold(launchHold(leave))
		w.owe(a, true)
		return true
	}
	if h := r.take(claimOf(a, g.key), 0, now); h != nil {
		budget.returned(leave)
		w.hold(*h)
		w.wait(rest)
		return false
	}
	m, err := r.choose(g, a, now)
	if err != nil {
		budget.returned(leave)
		w.hold(plan.Hold{Kind: plan.HoldDefinition, Reason: err.Error()})
		return false
	}
	m.launch, m.probe = budget, leave.probe
	w.count(a)
	return true
}

// wait has all creates among some actions wait for the create budget.
func (w *draw) wait(rest []plan.Action) {
	for _, a := range rest {
		switch {
		case a.Kind != plan.Create:
			continue
		case a.ReplacesLoss():
			w.losses++
		default:
			w.others++
		}
		w.owe(a, w.barred())
	}
}

// count notes that a create is dealt with.
func (w *draw) count(a plan.Action) {
	if a.ReplacesLoss() {
		w.seen++
	}
}

// barred reports whether the next create for a loss is one for which everything
// was sold out once.
func (w *draw) barred() bool { return w.seen < w.was.barred }

// owe remembers the loss that a create answers, since it has to wait.
func (w *draw) owe(a plan.Action, barred bool) {
	if a.ReplacesLoss() && a.Replaces != "" {
		w.owed.ids = append(w.owed.ids, a.Replaces)
		if barred {
			w.owed.barred = len(w.owed.ids)
		}
	}
	w.count(a)
}

// losses are members that a group has lost and whose replacements have to wait,
// oldest first. Plan sees a loss only in the pass that finds it: without this, a
// replacement that waits would be a create like any other from the next pass on.
type losses struct {
	ids    []nstance.InstanceID
	barred int // the first of them: everything was sold out for them, so they wait for answers like other creates
}
