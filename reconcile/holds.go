package reconcile

import (
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// holdViews says what keeps a group from acting: since when, until when and why.
// A hold that stays keeps its beginning; one that is durable has its own.
func (at *snapshot) holdViews(holds []plan.Hold) []HoldView {
	var out []HoldView
	for _, h := range holds {
		v := HoldView{Hold: h, Since: at.now}
		if i := slices.IndexFunc(at.holds, func(old HoldView) bool { return old.Kind == h.Kind }); i >= 0 {
			v.Since = at.holds[i].Since
		}
		out = append(out, at.recordedHold(v))
	}
	if rb := at.history.Rollback; rb != nil {
		why := "the last good definition is desired, until another one is configured"
		out = append(out, HoldView{Hold: plan.Hold{Kind: plan.HoldRolledBack, Reason: why}, Since: rb.Since})
	}
	return out
}

// withPending returns holds of a group, with the one of a pending definition in place of
// others that follow from it.
func (at *snapshot) withPending(holds []HoldView) []HoldView {
	holds = slices.Clone(holds)
	why := at.configured.spec.Pending
	if why == "" {
		return holds
	}
	if !at.defined() {
		holds = slices.DeleteFunc(holds, func(h HoldView) bool {
			return h.Kind == plan.HoldDefinition || h.Kind == plan.HoldFrozen && at.freeze == nil
		})
	}
	return append(holds, HoldView{Hold: plan.Hold{Kind: plan.HoldPending, Reason: why}, Since: at.pendingSince})
}

// recordedHold adds the recorded beginning and reason to a hold.
func (at *snapshot) recordedHold(v HoldView) HoldView {
	h := &at.history
	switch f := at.freeze; {
	case v.Kind == plan.HoldFrozen && f != nil:
		v.Since = f.Since
		if at.allFrozen {
			v.Reason = "the shard is frozen: " + v.Reason
		}
		v.Reason += withMessage(f.Reason)
	case v.Kind == plan.HoldClock:
		v.Since = recordedAt(at.clockSince, v.Since)
	case v.Kind == plan.HoldPaused:
		v.Reason += withMessage(h.PauseReason)
		v.Since = recordedAt(h.PausedAt, v.Since)
	case v.Kind == plan.HoldHalted && at.halted():
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

// publishHolds journals which holds of a group have begun and which have ended since
// it was last called; a changed reason is not published. One
// that begins again within a minute is published only if it lasts longer than that,
// at the next plan.
func (s *shard) publishHolds(g *group, holds []HoldView, now time.Time) {
	if len(holds) == 0 && len(g.published.holds) == 0 {
		return
	}
	for i := range g.published.holds {
		known := &g.published.holds[i]
		if !known.over && !slices.ContainsFunc(holds, func(h HoldView) bool { return h.Kind == known.kind }) {
			known.over = true
			s.publishGroup(g, nstance.Event{Type: nstance.EventHoldEnded, Reason: string(known.kind) + ", after " + now.Sub(known.since).Round(time.Second).String()})
		}
	}
	g.published.holds = slices.DeleteFunc(g.published.holds, func(known publishedHold) bool { return known.over && !known.recent(now) })
	for _, h := range holds {
		if !slices.ContainsFunc(g.published.holds, func(known publishedHold) bool { return known.kind == h.Kind }) {
			g.published.holds = append(g.published.holds, publishedHold{kind: h.Kind, at: now, since: h.Since})
			s.publishGroup(g, nstance.Event{Type: nstance.EventHoldStarted, Reason: h.text()})
		}
	}
}
