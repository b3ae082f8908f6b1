package plan_test

import (
	"fmt"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// A trouble is an event or a fault of the group.
type trouble struct {
	name   string
	weight int
	happen func(w *world)
}

var troubles = []trouble{
	{"time passes", 30, func(w *world) { w.run(w.between(time.Second, 5*time.Minute)) }},
	{"much time passes", 4, func(w *world) { w.run(w.between(10*time.Minute, time.Hour)) }},
	{"notice", 12, (*world).reclaim},
	{"mass notice", 2, func(w *world) {
		for range len(w.machines) {
			w.reclaim()
		}
	}},
	{"notice withdrawn", 6, (*world).withdraw},
	{"machine dies", 4, func(w *world) { w.some(func(m *machine) { m.reclaimAt = w.now }) }},
	{"agent falls silent", 5, func(w *world) {
		w.some(func(m *machine) {
			if m.muteSince.IsZero() && !m.RegisteredAt.IsZero() {
				m.muteSince = w.now
			}
		})
	}},
	{"all agents fall silent", 1, func(w *world) {
		for _, m := range w.machines {
			if m.muteSince.IsZero() && !m.RegisteredAt.IsZero() {
				m.muteSince = w.now
			}
		}
	}},
	{"agents are back", 4, func(w *world) { w.unmute() }},
	{"probes fail", 3, func(w *world) { w.some(func(m *machine) { m.probesFail = true }) }},
	{"probes pass", 3, func(w *world) {
		for _, m := range w.machines {
			m.probesFail = false
		}
	}},
	{"leader change", 6, (*world).takeover},
	{"good template", 6, func(w *world) { w.template(true) }},
	{"bad template", 3, func(w *world) { w.template(false) }},
	{"rollback", 2, func(w *world) {
		if h := w.view.History.LastGoodHash; h != "" {
			w.view.Hash, w.view.History.Failures = h, 0
			w.desiredChanges++
		}
	}},
	{"size", 6, func(w *world) { w.view.Group.Size = w.someSize(); w.desiredChanges++ }},
	{"max surge", 3, func(w *world) { w.view.Group.Rollout.MaxSurge.N = w.dice.N(4); w.desiredChanges++ }},
	{"pause or resume", 3, func(w *world) { w.view.History.Paused = !w.view.History.Paused; w.desiredChanges++ }},
	{"resume", 2, func(w *world) { w.view.History.HaltedHash, w.view.History.Failures = "", 0; w.desiredChanges++ }},
	{"freeze or thaw", 2, func(w *world) { w.view.Frozen = !w.view.Frozen }},
	{"definition lost or found", 2, func(w *world) { w.undefined = !w.undefined }},
	{"clock wrong or right", 2, func(w *world) {
		w.desiredChanges++ // ages no longer count, or count again
		if w.view.Clock == "" {
			w.view.Clock = "it is an hour ahead"
		} else {
			w.view.Clock = ""
		}
	}},
	{"request", 3, func(w *world) {
		w.some(func(m *machine) {
			m.Requested, m.NoDrain = &nstance.Cause{Kind: nstance.CauseRequest}, w.dice.N(2) == 0
		})
	}},
	{"drain timeout", 1, func(w *world) { w.view.Group.DrainTimeout = time.Duration(w.dice.N(3)) * 2 * time.Minute }},
	{"unreadable record", 1, func(w *world) { w.some(func(m *machine) { m.hidden = true }) }},
	{"repaired records", 2, func(w *world) { w.unhide() }},
	{"group removed or restored", 1, func(w *world) { w.view.Removing = !w.view.Removing; w.desiredChanges++ }},
}

func (w *world) trouble() {
	total, troubles := 0, slices.Concat(troubles, marketTroubles)
	for _, t := range troubles {
		total += t.weight
	}
	n := w.dice.N(total)
	for _, t := range troubles {
		if n -= t.weight; n < 0 {
			w.logf("%s", t.name)
			t.happen(w)
			return
		}
	}
}

func (w *world) some(happen func(*machine)) {
	if len(w.machines) > 0 {
		m := w.machines[w.dice.N(len(w.machines))]
		w.logf("  to %s", m.ID)
		happen(m)
	}
}

func (w *world) reclaim() {
	w.some(func(m *machine) {
		if len(m.Notices) > 0 || m.RegisteredAt.IsZero() && w.dice.N(2) == 0 {
			return
		}
		w.events++
		n := nstance.Notice{Kind: nstance.Reclaim, Source: "gcp/preempted", EventID: fmt.Sprint(w.events), DetectedAt: w.now}
		left := []time.Duration{2 * time.Minute, 30 * time.Second, 5 * time.Second, -time.Second}[w.dice.N(4)]
		if w.dice.N(3) > 0 {
			n.Deadline = w.now.Add(left)
		}
		m.Notices, m.reclaimAt = []nstance.Notice{n}, w.now.Add(max(left, time.Second))
	})
}

func (w *world) withdraw() {
	w.some(func(m *machine) {
		if len(m.Notices) > 0 && !m.Gone {
			m.Notices, m.reclaimAt = nil, time.Time{}
		}
	})
}

func (w *world) unmute() {
	for _, m := range w.machines {
		m.muteSince = time.Time{}
	}
}

func (w *world) unhide() {
	for _, m := range w.machines {
		if m.hidden {
			m.hidden = false
			w.desiredChanges++
		}
	}
}

// takeover discards the memory of the last leader.
func (w *world) takeover() {
	for _, m := range w.machines {
		m.Answered, m.leftBefore, m.replacedBefore = false, m.State.Leaving(), m.Reason == plan.ReasonReplace
		if m.RegisteredAt.IsZero() {
			continue
		}
		m.GoodSince, m.Silent, m.Unhealthy = time.Time{}, false, false
		m.GraceUntil, m.hearAt = w.now.Add(reportInterval), w.now.Add(w.between(time.Second, reportInterval))
		if !m.muteSince.IsZero() {
			m.muteSince = w.now
		}
		if w.due(m.LaunchBy) {
			m.LaunchBy = time.Time{}
		} else if w.launch > 0 && w.now.Before(m.CreatedAt.Add(w.launch)) {
			m.LaunchBy = m.CreatedAt.Add(w.launch) // this leader cannot know that it was ready
		}
	}
}

// stopTroubles ends all trouble: existing faults remain, no new ones occur.
func (w *world) stopTroubles() {
	w.logf("calm")
	w.quiet = true
	w.view.SpotFree = true
	w.desiredChanges++ // no age limit any more
	w.view.Frozen, w.undefined, w.view.Removing, w.view.Clock = false, false, false, ""
	w.view.History.Paused, w.view.History.HaltedHash, w.view.History.Failures = false, "", 0
	w.view.Group.Rollout.HaltAfter = 0 // as if the rollout was resumed
	if w.broken[w.view.Hash] {
		w.template(true)
	}
	w.unhide()
	for _, m := range w.machines {
		m.EligibleAt, m.ExpireAt, m.probesFail = time.Time{}, time.Time{}, false
	}
}
