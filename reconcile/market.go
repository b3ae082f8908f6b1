package reconcile

import (
	"time"

	"github.com/nstance-go/nstance"
)

// compareMarket publishes, once, that the machine of m is in another market than was
// requested.
func (s *shard) compareMarket(m *member) {
	if m.published.market || !m.marketDiffers() {
		return
	}
	m.published.market = true
	s.recordReturn(m, m.machine.Market == nstance.Spot)
	s.publish(m, nstance.Event{Type: nstance.EventMarketDiffers, Reason: "asked for " + string(m.rec.Shape.Market) + ", the provider says " + string(m.machine.Market)})
}

// recordFallback records that m is created on demand because spot is sold out: the
// group does not go back soon.
func (s *shard) recordFallback(m *member, now time.Time) {
	if !m.rec.OnDemand {
		m.group.history.FallbackAt = now.UTC()
		s.saver.Changed()
	}
}

// recordReturn records whether m, a spot member in place of an on-demand one, has
// become ready or failed. Each failure in a row
// doubles the time until the next attempt.
func (s *shard) recordReturn(m *member, ok bool) {
	if !m.returnsToSpot() {
		return
	}
	m.requiredMarket = ""
	h := &m.group.history
	if ok {
		h.Returns = 0
	} else {
		h.Returns, h.FallbackAt = h.Returns+1, s.opts.Now().UTC()
	}
	s.saver.Changed()
}

// abandonReturn ends such an attempt of m without a result. The next one waits as
// long as this one did.
func (s *shard) abandonReturn(m *member) {
	if m.returnsToSpot() {
		m.requiredMarket, m.group.history.FallbackAt = "", s.opts.Now().UTC()
		s.saver.Changed()
	}
}

// recordMarkets begins the wait for spot of a group that has on-demand members
// beyond its base, and ends it when there are none.
func (s *shard) recordMarkets(g *group, now time.Time) {
	h, beyond := &g.history, g.onDemandBeyondBase()
	switch {
	case beyond && h.FallbackAt.IsZero():
		h.FallbackAt = now.UTC()
	case !beyond && (h.Returns > 0 || !h.FallbackAt.IsZero()):
		h.FallbackAt, h.Returns = time.Time{}, 0
	default:
		return
	}
	s.saver.Changed()
}

// spotFree reports whether spot capacity for g is not known to be sold out.
func (s *shard) spotFree(g *group, now time.Time) bool {
	if g.history.FallbackAt.IsZero() {
		return false
	}
	_, _, free := s.admission.Choose(s.requestFor(g, inMarket(g.spec.Definition, nstance.Spot)), now)
	return free
}
