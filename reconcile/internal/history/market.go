package history

import (
	"cmp"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

const (
	// defaultReturn is how long after a fallback a group tries spot again.
	defaultReturn = 30 * time.Minute

	// longestReturn is where the doubling of the waits between two attempts to go back to
	// spot ends, unless the group's own wait is longer.
	longestReturn = 24 * time.Hour
)

// ReclaimTimes are times of reclaims, the latest last.
type ReclaimTimes []time.Time

// before returns t without times in the future: they count as now.
func (t *ReclaimTimes) before(now time.Time) *ReclaimTimes {
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

// Reclaimed counts a reclaim of a spot member. As many are remembered as the limit has.
func (g *Group) Reclaimed(limit nstance.ReclaimLimit, now time.Time) (changed bool) {
	if limit.Reclaims == 0 {
		return false
	}
	var times ReclaimTimes
	if g.Reclaims != nil {
		times = (*g.Reclaims)[max(0, len(*g.Reclaims)-limit.Reclaims+1):]
	}
	times = append(slices.Clone(times), now.UTC())
	g.Reclaims = &times
	return true
}

// ReclaimedUntil is until when creates are on demand for the reclaims that the limit counts;
// zero: there were fewer.
func (g *Group) ReclaimedUntil(limit nstance.ReclaimLimit) time.Time {
	times := g.Reclaims
	if limit.Reclaims == 0 || times == nil || len(*times) < limit.Reclaims {
		return time.Time{}
	}
	return (*times)[len(*times)-limit.Reclaims].Add(limit.Window)
}

// WaitForSpot has the next attempt to go back to spot wait from now on: a member was bought on
// demand in place of spot, or an attempt ended without a result.
func (g *Group) WaitForSpot(now time.Time) { g.FallbackAt = now.UTC() }

// ReturnEnded records whether an attempt to go back to spot succeeded. Each failure in a row
// doubles the wait for the next attempt.
func (g *Group) ReturnEnded(ok bool, now time.Time) {
	if ok {
		g.Returns = 0
		return
	}
	g.Returns++
	g.WaitForSpot(now)
}

// SetFallenBack begins the wait for spot of a group that has on-demand members in place of spot,
// and ends it when there are none.
func (g *Group) SetFallenBack(some bool, now time.Time) (changed bool) {
	switch {
	case some && g.FallbackAt.IsZero():
		g.WaitForSpot(now)
	case !some && !g.FallbackAt.IsZero():
		g.FallbackAt, g.Returns = time.Time{}, 0
	default:
		return false
	}
	return true
}

// ReturnAt is when a member may go back to spot; zero: none waits for that.
func (g *Group) ReturnAt(market nstance.Market) time.Time {
	if g.FallbackAt.IsZero() {
		return time.Time{}
	}
	wait := cmp.Or(market.ReturnAfter, defaultReturn)
	at, reclaimed := g.FallbackAt.Add(sleep.Backoff(g.Returns+1, wait, max(wait, longestReturn))), g.ReclaimedUntil(market.FallbackWhen)
	if reclaimed.After(at) {
		return reclaimed
	}
	return at
}
