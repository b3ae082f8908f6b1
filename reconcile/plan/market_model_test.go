package plan_test

import (
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/groupspec"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// Markets of the model: half of the groups are on spot with an on-demand base, and their
// spot capacity is sometimes sold out.

const returnAfter = 30 * time.Minute

func (w *world) someMarket() {
	if w.dice.N(2) == 0 {
		w.view.Group.Definition.Market = nstance.Market{Type: nstance.Spot, Fallback: nstance.OnDemand, OnDemandBase: nstance.Count{N: w.dice.N(4)}}
	}
	w.view.SpotFree = true
}

func (w *world) onSpot() bool { return w.view.Group.Definition.Market.Type == nstance.Spot }

func (w *world) base() int { return groupspec.OnDemandBase(&w.view.Group, w.size()) }

// market returns the market in which a planned create ends.
func (w *world) market(a plan.Action) nstance.MarketType {
	switch {
	case !w.onSpot():
		return nstance.OnDemand
	case a.Market != "":
		return a.Market
	case !w.view.SpotFree || !w.quiet && w.dice.N(6) == 0:
		w.view.History.ReturnAt = w.now.Add(returnAfter)
		return nstance.OnDemand
	}
	return nstance.Spot
}

// startReturnDelay starts the delay of the return to spot, as the loop does.
func (w *world) startReturnDelay() {
	n := 0
	for _, m := range w.machines {
		if !m.OnDemand && !m.State.Leaving() && !m.Gone && m.Market == nstance.OnDemand {
			n++
		}
	}
	switch h := &w.view.History; {
	case !w.onSpot() || n <= w.base():
		h.ReturnAt = time.Time{}
	case h.ReturnAt.IsZero():
		h.ReturnAt = w.now.Add(returnAfter)
	}
}

var marketTroubles = []trouble{
	{"spot is sold out or not", 6, func(w *world) { w.view.SpotFree = !w.view.SpotFree; w.desiredChanges++ }},
	{"another base", 4, func(w *world) { w.view.Group.Definition.Market.OnDemandBase.N = w.dice.N(5); w.desiredChanges++ }},
	{"reclaimed while booting", 4, func(w *world) {
		w.some(func(m *machine) {
			if m.RegisteredAt.IsZero() && m.HasMachine {
				m.Gone, m.Taken = true, true
			}
		})
	}},
}

// moves reports whether a member is in the wrong market, by the counts.
func (p *pass) moves(m *machine) bool {
	if p.held || !p.onSpot() {
		return false
	}
	if m.Market == nstance.OnDemand {
		return p.onDemand > p.base()
	}
	return len(p.counted)-p.onDemand > p.size()-p.base()
}

// shifts reports whether a replacement may be created in another market than the member
// it replaces.
func (p *pass) shifts() bool {
	return p.onSpot() && !p.held && p.size() > 0 && p.onDemand != p.base()
}

// checkBase: voluntary removals keep the base, and its losses are replaced on demand.
func (p *pass) checkBase() {
	base, left, taken, bought := p.base(), 0, 0, 0
	for _, m := range p.counted {
		a, acted := p.acts[m.ID]
		switch {
		case m.Market != nstance.OnDemand || !m.HasMachine:
		case acted && a.Kind != plan.CancelDrain:
			taken++
		default:
			left++
		}
	}
	for _, a := range p.creates {
		if a.Market == nstance.OnDemand {
			bought++
		}
	}
	if p.v.Group.Rollout.MaxSurge.N == 0 {
		base--
	}
	if taken > 0 && left < base {
		p.failf("voluntary work takes %d on-demand members and leaves %d of a base of %d", taken, left, base)
	}
	if missing := min(p.base()-p.onDemand, len(p.creates)); bought < missing {
		p.failf("%d of %d creates are on demand, %d members of the base are missing", bought, len(p.creates), missing)
	}
	if bought > 0 && !p.onSpot() {
		p.failf("a create for the base without a base")
	}
}

// checkMarkets: at the end, the base is complete and no surplus on-demand member is
// left.
func (w *world) checkMarkets() {
	n := 0
	for _, m := range w.machines {
		if !m.OnDemand && m.Market == nstance.OnDemand {
			n++
		}
	}
	if !w.onSpot() {
		return
	}
	if n < w.base() || n > w.base() && w.view.Group.Rollout.MaxSurge.N > 0 {
		w.failf("%d on-demand members of a base of %d", n, w.base())
	}
}
