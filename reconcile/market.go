package reconcile

import (
	"cmp"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

// longestReturn is where the doubling of the pauses between two attempts to go
// back to spot ends, unless the group's own is longer.
const longestReturn = 24 * time.Hour

// inMarket returns a definition as it is for a create that may be in one market
// only; empty: as the definition says.
func inMarket(def nstance.Definition, only nstance.MarketType) nstance.Definition {
	switch only {
	case nstance.OnDemand:
		def.Market = nstance.Market{Type: nstance.OnDemand}
	case nstance.Spot:
		def.Market.Fallback = ""
	}
	return def
}

// market returns the market that m is in: the one that the provider says, else
// the one that it is asked for.
func (m *member) market() nstance.MarketType {
	return cmp.Or(m.machine.Market, m.rec.Shape.Market, m.requiredMarket, m.definition().Market.Type, nstance.OnDemand)
}

// compareMarket publishes, once, that the machine of m is in another market than was
// requested. It needs the lock.
func (r *Reconciler) compareMarket(m *member) {
	if m.published.market || !m.marketDiffers() {
		return
	}
	m.published.market = true
	r.recordReturn(m, m.machine.Market == nstance.Spot)
	r.publish(m, nstance.Event{Type: nstance.EventMarketDiffers, Reason: "asked for " + string(m.rec.Shape.Market) + ", the provider says " + string(m.machine.Market)})
}

func (m *member) marketDiffers() bool {
	return m.machine.Market != "" && m.rec.Shape.Market != "" && m.machine.Market != m.rec.Shape.Market
}

// recordFallback records that m is created on demand because spot is sold out: the
// group does not go back soon. It needs the lock.
func (r *Reconciler) recordFallback(m *member, now time.Time) {
	if !m.rec.OnDemand {
		m.group.history.FallbackAt = now.UTC()
		r.saveSoon()
	}
}

// returnsToSpot reports whether m is made on spot in place of an on-demand member, and
// has not become ready yet.
func (m *member) returnsToSpot() bool { return m.requiredMarket == nstance.Spot }

// recordReturn records whether m, a spot member in place of an on-demand one, has
// become ready or failed. Each failure in a row
// doubles the time until the next attempt. It needs the lock.
func (r *Reconciler) recordReturn(m *member, ok bool) {
	if !m.returnsToSpot() {
		return
	}
	m.requiredMarket = ""
	h := &m.group.history
	if ok {
		h.Returns = 0
	} else {
		h.Returns, h.FallbackAt = h.Returns+1, r.opts.Now().UTC()
	}
	r.saveSoon()
}

// abandonReturn ends such an attempt of m without a result. The next one waits as
// long as this one did. It needs the lock.
func (r *Reconciler) abandonReturn(m *member) {
	if m.returnsToSpot() {
		m.requiredMarket, m.group.history.FallbackAt = "", r.opts.Now().UTC()
		r.saveSoon()
	}
}

// recordMarkets begins the wait for spot of a group that has on-demand members
// beyond its base, and ends it when there are none. It needs the lock.
func (r *Reconciler) recordMarkets(g *group, now time.Time) {
	h, beyond := &g.history, g.onDemandBeyondBase()
	switch {
	case beyond && h.FallbackAt.IsZero():
		h.FallbackAt = now.UTC()
	case !beyond && (h.Returns > 0 || !h.FallbackAt.IsZero()):
		h.FallbackAt, h.Returns = time.Time{}, 0
	default:
		return
	}
	r.saveSoon()
}

func (g *group) onDemandBeyondBase() bool {
	if !g.defined() || g.spec.Definition.Market.Type != nstance.Spot {
		return false
	}
	n := -g.spec.Definition.Market.Base(g.spec.Size)
	for _, m := range g.members {
		if n += oneIf(!m.rec.OnDemand && !m.state.Leaving() && !m.gone && m.market() == nstance.OnDemand); n > 0 {
			return true
		}
	}
	return false
}

// returnAt is when a member of g may go back to spot; zero: none waits for that.
func (g *group) returnAt() time.Time {
	h := &g.history
	if h.FallbackAt.IsZero() {
		return time.Time{}
	}
	wait := cmp.Or(g.spec.Definition.Market.ReturnAfter, nstance.DefaultReturnAfter)
	return h.FallbackAt.Add(sleep.Backoff(h.Returns+1, wait, max(wait, longestReturn)))
}

// spotFree reports whether spot capacity for g is not known to be sold out. It
// needs the lock.
func (r *Reconciler) spotFree(g *group, now time.Time) bool {
	if g.history.FallbackAt.IsZero() {
		return false
	}
	_, free := r.admission.Choose(requestFor(inMarket(g.spec.Definition, nstance.Spot)), now)
	return free
}

// marketsDiffer counts the members whose machine is in another market than was
// asked for.
func (g *group) marketsDiffer() (n int) {
	for _, m := range g.members {
		n += oneIf(m.marketDiffers() && !m.gone)
	}
	return n
}

// setMarkets counts the members of g by market in a view, and adds when one may go
// back to spot.
func (g *group) setMarkets(v *GroupView) {
	for _, m := range g.members {
		if m.rec.OnDemand || m.state.Leaving() || m.gone {
			continue
		}
		if m.market() == nstance.OnDemand {
			v.OnDemandMarket++
		} else {
			v.SpotMarket++
		}
	}
	v.ReturnAt, v.FailedReturns = g.returnAt(), g.history.Returns
}
