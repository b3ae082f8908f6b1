package reconcile

import (
	"fmt"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// holdOrphans is the hold, in the journal, while machines without a record are
// spared until an operator decides. It concerns the shard and no group.
const holdOrphans = "orphans"

// quiet is the shortest time between two beginnings of a hold of one kind in a
// group that are journalled: one that comes and goes must not fill the journal.
const quiet = time.Minute

// A HoldView is a Hold with its beginning.
type HoldView struct {
	plan.Hold
	Since time.Time
}

// holdViews says what keeps a group from acting: since when, until when and why.
// A hold that stays keeps its beginning; one that is durable has its own. It
// needs the lock.
func (r *Reconciler) holdViews(g *group, holds []plan.Hold, now time.Time) []HoldView {
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
		out = append(out, HoldView{Hold: plan.Hold{Kind: plan.HoldRolledBack, Reason: why}, Since: rb.Since})
	}
	return out
}

// withPending returns a group's holds, with the one of a pending definition in place of
// others that follow from it. It needs the lock.
func (r *Reconciler) withPending(g *group, holds []HoldView) []HoldView {
	holds = slices.Clone(holds)
	why := g.configured.spec.Pending
	if why == "" {
		return holds
	}
	if !g.defined() {
		holds = slices.DeleteFunc(holds, func(h HoldView) bool {
			return h.Kind == plan.HoldDefinition || h.Kind == plan.HoldFrozen && r.freezeOf(g) == nil
		})
	}
	return append(holds, HoldView{Hold: plan.Hold{Kind: plan.HoldPending, Reason: why}, Since: g.pendingSince})
}

// definitionHold returns the hold of members of g whose recorded definition cannot
// be read.
func (g *group) definitionHold() (plan.Hold, bool) {
	for _, m := range g.members {
		if m.step != stepCreate || m.definitionErr == nil {
			continue
		}
		why := fmt.Sprintf("the definition %.12s of %s cannot be read: %v; it is tried again", m.rec.Definition, m.id, m.definitionErr)
		return plan.Hold{Kind: plan.HoldDefinition, Reason: why}, true
	}
	return plan.Hold{}, false
}

// recordedHold adds the recorded beginning and reason to a hold.
func (r *Reconciler) recordedHold(g *group, v HoldView) HoldView {
	h := &g.history
	switch f := r.freezeOf(g); {
	case v.Kind == plan.HoldFrozen && f != nil:
		v.Since = f.Since
		if r.frozen != nil {
			v.Reason = "the shard is frozen: " + v.Reason
		}
		v.Reason += withMessage(f.Reason)
	case v.Kind == plan.HoldClock:
		v.Since = recordedAt(r.clock.Since(), v.Since)
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

// A publishedHold is a hold of a group whose beginning was published.
type publishedHold struct {
	kind  string
	at    time.Time // when its beginning was published
	since time.Time
	over  bool // and its end
}

// publishHolds journals which holds of a group have begun and which have ended since
// it was last called; a changed reason is not published. One
// that begins again within a minute is published only if it lasts longer than that,
// at the next plan. It needs the lock.
func (r *Reconciler) publishHolds(g *group, holds []HoldView, now time.Time) {
	if len(holds) == 0 && len(g.published.holds) == 0 {
		return
	}
	for i := range g.published.holds {
		known := &g.published.holds[i]
		if !known.over && !slices.ContainsFunc(holds, func(h HoldView) bool { return h.Kind == known.kind }) {
			known.over = true
			r.publishGroup(g, nstance.Event{Type: nstance.EventHoldEnded, Reason: known.kind + ", after " + now.Sub(known.since).Round(time.Second).String()})
		}
	}
	g.published.holds = slices.DeleteFunc(g.published.holds, func(known publishedHold) bool { return known.over && !known.recent(now) })
	for _, h := range holds {
		if !slices.ContainsFunc(g.published.holds, func(known publishedHold) bool { return known.kind == h.Kind }) {
			g.published.holds = append(g.published.holds, publishedHold{kind: h.Kind, at: now, since: h.Since})
			r.publishGroup(g, nstance.Event{Type: nstance.EventHoldStarted, Reason: h.text()})
		}
	}
}

// recent reports whether its beginning was published so recently that another one
// is not published yet.
func (s publishedHold) recent(now time.Time) bool {
	ago := now.Sub(s.at)
	return ago >= 0 && ago < quiet
}

// text says in one line what holds, why and until when.
func (h HoldView) text() string {
	text := h.Kind + withMessage(h.Reason)
	if !h.Until.IsZero() {
		text += ", until " + h.Until.UTC().Format(time.RFC3339)
	}
	return text
}
