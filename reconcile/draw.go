package reconcile

import (
	"slices"
	"time"

	"github.com/nstance-go/nstance"
)

// A draw is what one pass over a group takes from the budgets for creates, and
// what it has to wait for.
type draw struct {
	was    losses // as the plan knew them
	owed   losses // as the next plan will
	seen   int    // creates for losses so far
	losses int    // creates for losses that wait for the create budget
	others int    // other creates that do
	holds  []Hold
	next   time.Time // when to look again
}

// hold notes what is being waited for, once.
func (w *draw) hold(h Hold) {
	w.next = earliest(w.next, h.Until)
	if !slices.ContainsFunc(w.holds, func(o Hold) bool { return o.Kind == h.Kind && o.Reason == h.Reason }) {
		w.holds = append(w.holds, h)
	}
}

// sudden reports whether a create answers a loss that nobody chose. A creation
// that came to nothing is none: a definition that never works would go before
// everybody else's for good.
func (a Action) sudden() bool { return a.Reason == ReasonReplace && !a.Failure }

func (a Action) claim(key nstance.GroupKey) claim {
	if a.sudden() {
		return claim{key, claimLoss}
	}
	return claim{key, claimSize}
}

// draw makes a member of the first of some creates, if the budgets permit, and
// reports whether the next may be tried. The create budget is asked last, and
// has nothing for the others either once it refuses one.
func (r *Reconciler) draw(g *group, w *draw, rest []Action, now time.Time) bool {
	a := rest[0]
	leave, budget := r.launchable(g, inMarket(g.spec.Definition, a.Market), a.Reason == ReasonReplace && !w.barred(), now)
	if !leave.ok {
		w.hold(launchHold(leave))
		w.owe(a, true)
		return true
	}
	if h := r.take(a.claim(g.key), 0, now); h != nil {
		budget.returned(leave)
		w.hold(*h)
		w.wait(rest)
		return false
	}
	m, err := r.choose(g, a, now)
	if err != nil {
		budget.returned(leave)
		w.hold(Hold{Kind: HoldDefinition, Reason: err.Error()})
		return false
	}
	m.launch, m.probe = budget, leave.probe
	w.count(a)
	return true
}

// wait has all creates among some actions wait for the create budget.
func (w *draw) wait(rest []Action) {
	for _, a := range rest {
		switch {
		case a.Kind != Create:
			continue
		case a.sudden():
			w.losses++
		default:
			w.others++
		}
		w.owe(a, w.barred())
	}
}

// count notes that a create is dealt with.
func (w *draw) count(a Action) {
	if a.sudden() {
		w.seen++
	}
}

// barred reports whether the next create for a loss is one for which everything
// was sold out once.
func (w *draw) barred() bool { return w.seen < w.was.barred }

// owe remembers the loss that a create answers, since it has to wait.
func (w *draw) owe(a Action, barred bool) {
	if a.sudden() && a.Replaces != "" {
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
