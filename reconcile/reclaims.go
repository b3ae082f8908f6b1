package reconcile

import (
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/notice"
)

// recordReclaim counts a reclaim of m for market.fallback_when.
func (s *shard) recordReclaim(m *member, now time.Time) {
	g := m.group
	limit := g.spec.Definition.Market.FallbackWhen.Reclaims
	if m.rec.OnDemand || m.market() != nstance.Spot || limit == 0 {
		return
	}
	var times reclaimTimes
	if known := g.history.Reclaims; known != nil {
		times = (*known)[max(0, len(*known)-limit+1):]
	}
	times = append(slices.Clone(times), now.UTC())
	g.history.Reclaims = &times
	s.saver.Changed()
}

// reclaimNoticed reports whether a reclaim was announced: it is counted, or was rehearsed.
func reclaimNoticed(notices []nstance.Notice) bool {
	return slices.ContainsFunc(notices, func(n nstance.Notice) bool { return n.Kind == nstance.Reclaim })
}

// rehearsed reports whether the only reclaims that were announced of m were rehearsed.
func (m *member) rehearsed() bool {
	announced := slices.ContainsFunc(m.notices, func(n nstance.Notice) bool { return n.Kind == nstance.Reclaim && !notice.Rehearsed(n) })
	return reclaimNoticed(m.notices) && !announced
}

// before returns t without times in the future, by another leader's clock: they count as
// now.
func (t *reclaimTimes) before(now time.Time) *reclaimTimes {
	if t == nil {
		return nil
	}
	out := slices.Clone(*t)
	for i := range out {
		if out[i].After(now) {
			out[i] = now.UTC()
		}
	}
	return &out
}

// reclaimsStand reports whether g makes on-demand members for its reclaims.
func (s *shard) reclaimsStand(g *group, now time.Time) bool {
	until := g.reclaimedUntil()
	return !until.IsZero() && !s.reached(until, now)
}

// reclaimedUntil is until when g makes on-demand members for the reclaims that
// market.fallback_when counts; zero: there were fewer.
func (g *group) reclaimedUntil() time.Time {
	limit, times := g.spec.Definition.Market.FallbackWhen, g.history.Reclaims
	if limit.Reclaims == 0 || times == nil || len(*times) < limit.Reclaims {
		return time.Time{}
	}
	return (*times)[len(*times)-limit.Reclaims].Add(limit.Window)
}
