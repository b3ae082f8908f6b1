package reconcile

import (
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// maxReason is how many bytes a hold keeps of what others say.
const maxReason = 256

// holdViews says what keeps a group from acting: since when, until when and why.
// A hold that stays keeps its beginning; one that is durable has its own.
func (s *shard) holdViews(g *group, holds []plan.Hold, now time.Time) []HoldView {
	var out []HoldView
	for _, h := range holds {
		v := HoldView{Hold: h, Since: now}
		if i := slices.IndexFunc(g.holds, func(old HoldView) bool { return old.Kind == h.Kind }); i >= 0 {
			v.Since = g.holds[i].Since
		}
		out = append(out, s.recordedHold(g, v))
	}
	if rb := g.history.Rollback; rb != nil {
		why := "the last good definition is desired, until another one is configured"
		out = append(out, HoldView{Hold: plan.Hold{Kind: plan.HoldRolledBack, Reason: why}, Since: rb.Since})
	}
	return out
}

// withPending returns a group's holds, with the one of a pending definition in place of
// others that follow from it.
func (s *shard) withPending(g *group, holds []HoldView) []HoldView {
	holds = slices.Clone(holds)
	why := g.configured.spec.Pending
	if why == "" {
		return holds
	}
	if !g.defined() {
		holds = slices.DeleteFunc(holds, func(h HoldView) bool {
			return h.Kind == plan.HoldDefinition || h.Kind == plan.HoldFrozen && s.freezeOf(g) == nil
		})
	}
	return append(holds, HoldView{Hold: plan.Hold{Kind: plan.HoldPending, Reason: why}, Since: g.pendingSince})
}

// recordedHold adds the recorded beginning and reason to a hold.
func (s *shard) recordedHold(g *group, v HoldView) HoldView {
	h := &g.history
	switch f := s.freezeOf(g); {
	case v.Kind == plan.HoldFrozen && f != nil:
		v.Since = f.Since
		if s.frozen != nil {
			v.Reason = "the shard is frozen: " + v.Reason
		}
		v.Reason += withMessage(f.Reason)
	case v.Kind == plan.HoldClock:
		v.Since = recordedAt(s.clock.Since(), v.Since)
	case v.Kind == plan.HoldPaused:
		v.Reason += withMessage(h.PauseReason)
		v.Since = recordedAt(h.PausedAt, v.Since)
	case v.Kind == plan.HoldHalted && g.halted():
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
