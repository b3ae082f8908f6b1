package reconcile

import (
	"slices"
	"time"
)

// A HoldView is a Hold with its beginning.
type HoldView struct {
	Hold
	Since time.Time
}

// holdViews says what keeps a group from acting: since when, until when and why.
// A hold that stays keeps its beginning; one that is durable has its own. It
// needs the lock.
func (r *Reconciler) holdViews(g *group, holds []Hold, now time.Time) []HoldView {
	var out []HoldView
	for _, h := range holds {
		v := HoldView{Hold: h, Since: now}
		if i := slices.IndexFunc(g.holds, func(old HoldView) bool { return old.Kind == h.Kind }); i >= 0 {
			v.Since = g.holds[i].Since
		}
		out = append(out, r.recordedHold(g, v))
	}
	if rb := g.history.Rollback; rb != nil {
		why := "the last good definition is desired, until another one is configured"
		out = append(out, HoldView{Hold: Hold{Kind: HoldRolledBack, Reason: why}, Since: rb.Since})
	}
	return out
}

// recordedHold adds to a hold what is on record about it.
func (r *Reconciler) recordedHold(g *group, v HoldView) HoldView {
	h := &g.history
	switch f := r.freezeOf(g); {
	case v.Kind == HoldFrozen && f != nil:
		v.Since = f.Since
		if r.frozen != nil {
			v.Reason = "the shard is frozen: " + v.Reason
		}
		v.Reason += orNothing(f.Reason)
	case v.Kind == HoldClock:
		v.Since = recordedAt(r.clock.since, v.Since)
	case v.Kind == HoldPaused:
		v.Reason += orNothing(h.PauseReason)
		v.Since = recordedAt(h.PausedAt, v.Since)
	case v.Kind == HoldHalted && g.halted():
		v.Reason = h.HaltReason
		v.Since = recordedAt(h.HaltedAt, v.Since)
	}
	return v
}

// recordedAt returns at, or what stands in for it where it is not on record.
func recordedAt(at, otherwise time.Time) time.Time {
	if at.IsZero() {
		return otherwise
	}
	return at
}
