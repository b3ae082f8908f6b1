package reconcile

import (
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/notice"
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

// recordReturn records whether m, a spot member in place of an on-demand one, has
// become ready or failed.
func (s *shard) recordReturn(m *member, ok bool) {
	if !m.returnsToSpot() {
		return
	}
	m.requiredMarket = ""
	m.group.history.ReturnEnded(ok, s.opts.Now())
	s.saver.Changed()
}

// spotFree reports whether spot capacity for g is not known to be sold out.
func (s *shard) spotFree(g *group, now time.Time) bool {
	if g.history.FallbackAt.IsZero() {
		return false
	}
	_, _, free := s.places.Choose(g.request(inMarket(g.spec.Definition, nstance.Spot)), now)
	return free
}

// recordReclaim counts a reclaim of m for market.fallback_when.
func (s *shard) recordReclaim(m *member, now time.Time) {
	g := m.group
	if !m.rec.OnDemand && m.market() == nstance.Spot && g.history.Reclaimed(g.spec.Definition.Market.FallbackWhen, now) {
		s.saver.Changed()
	}
}

// reclaimNoticed reports whether a reclaim was announced: it is counted, or was rehearsed.
func reclaimNoticed(notices []nstance.Notice) bool {
	return slices.ContainsFunc(notices, func(n nstance.Notice) bool { return n.Kind == nstance.Reclaim })
}

// rehearsed reports whether the only reclaims that were announced of m were rehearsed.
func (m *member) rehearsed() bool {
	announced := slices.ContainsFunc(m.Standing, func(n nstance.Notice) bool { return n.Kind == nstance.Reclaim && !notice.Rehearsed(n) })
	return reclaimNoticed(m.Standing) && !announced
}

// reclaimsStand reports whether g makes on-demand members for its reclaims.
func (s *shard) reclaimsStand(g *group, now time.Time) bool {
	until := g.history.ReclaimedUntil(g.spec.Definition.Market.FallbackWhen)
	return !until.IsZero() && !s.reached(until, now)
}
