package reconcile_test

import (
	"fmt"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
)

// A planTrouble is something that may befall a group.
type planTrouble struct {
	name   string
	weight int
	happen func(w *planWorld)
}

var planTroubles = []planTrouble{
	{"time passes", 30, func(w *planWorld) { w.run(w.between(time.Second, 5*time.Minute)) }},
	{"much time passes", 4, func(w *planWorld) { w.run(w.between(10*time.Minute, time.Hour)) }},
	{"notice", 12, (*planWorld).reclaim},
	{"mass notice", 2, func(w *planWorld) {
		for range len(w.machines) {
			w.reclaim()
		}
	}},
	{"notice withdrawn", 6, (*planWorld).withdraw},
	{"machine dies", 4, func(w *planWorld) { w.some(func(m *planMachine) { m.reclaimAt = w.now }) }},
	{"agent falls silent", 5, func(w *planWorld) {
		w.some(func(m *planMachine) {
			if m.muteSince.IsZero() && !m.RegisteredAt.IsZero() {
				m.muteSince = w.now
			}
		})
	}},
	{"all agents fall silent", 1, func(w *planWorld) {
		for _, m := range w.machines {
			if m.muteSince.IsZero() && !m.RegisteredAt.IsZero() {
				m.muteSince = w.now
			}
		}
	}},
	{"agents are back", 4, func(w *planWorld) { w.unmute() }},
	{"probes fail", 3, func(w *planWorld) { w.some(func(m *planMachine) { m.probesFail = true }) }},
	{"probes pass", 3, func(w *planWorld) {
		for _, m := range w.machines {
			m.probesFail = false
		}
	}},
	{"leader change", 6, (*planWorld).takeover},
	{"good template", 6, func(w *planWorld) { w.template(true) }},
	{"bad template", 3, func(w *planWorld) { w.template(false) }},
	{"rollback", 2, func(w *planWorld) {
		if h := w.view.History.LastGoodHash; h != "" {
			w.view.Hash, w.view.History.Failures = h, 0
			w.wishes++
		}
	}},
	{"size", 6, func(w *planWorld) { w.view.Group.Size = w.someSize(); w.wishes++ }},
	{"max surge", 3, func(w *planWorld) { w.view.Group.Rollout.MaxSurge.N = w.dice.N(4); w.wishes++ }},
	{"pause or go on", 3, func(w *planWorld) { w.view.History.Paused = !w.view.History.Paused; w.wishes++ }},
	{"resume", 2, func(w *planWorld) { w.view.History.HaltedHash, w.view.History.Failures = "", 0; w.wishes++ }},
	{"freeze or thaw", 2, func(w *planWorld) { w.view.Frozen, w.view.Unnamed = !w.view.Frozen, false }},
	{"nobody names it", 2, func(w *planWorld) { w.view.Frozen, w.view.Unnamed = true, true }},
	{"clock wrong or right", 2, func(w *planWorld) {
		w.wishes++ // ages count no more, or again
		if w.view.Clock == "" {
			w.view.Clock = "it is an hour ahead"
		} else {
			w.view.Clock = ""
		}
	}},
	{"request", 3, func(w *planWorld) {
		w.some(func(m *planMachine) {
			m.Requested, m.NoDrain = &nstance.Cause{Kind: nstance.CauseRequest}, w.dice.N(2) == 0
		})
	}},
	{"drain timeout", 1, func(w *planWorld) { w.view.Group.DrainTimeout = time.Duration(w.dice.N(3)) * 2 * time.Minute }},
	{"unreadable record", 1, func(w *planWorld) { w.some(func(m *planMachine) { m.hidden = true }) }},
	{"repaired records", 2, func(w *planWorld) { w.unhide() }},
	{"group removed or restored", 1, func(w *planWorld) { w.view.Removing = !w.view.Removing; w.wishes++ }},
}

func (w *planWorld) trouble() {
	total, troubles := 0, slices.Concat(planTroubles, planMarketTroubles)
	for _, t := range troubles {
		total += t.weight
	}
	n := w.dice.N(total)
	for _, t := range troubles {
		if n -= t.weight; n < 0 {
			w.note("%s", t.name)
			t.happen(w)
			return
		}
	}
}

func (w *planWorld) some(happen func(*planMachine)) {
	if len(w.machines) > 0 {
		m := w.machines[w.dice.N(len(w.machines))]
		w.note("  to %s", m.ID)
		happen(m)
	}
}

func (w *planWorld) reclaim() {
	w.some(func(m *planMachine) {
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

func (w *planWorld) withdraw() {
	w.some(func(m *planMachine) {
		if len(m.Notices) > 0 && !m.Gone {
			m.Notices, m.reclaimAt = nil, time.Time{}
		}
	})
}

func (w *planWorld) unmute() {
	for _, m := range w.machines {
		m.muteSince = time.Time{}
	}
}

func (w *planWorld) unhide() {
	for _, m := range w.machines {
		if m.hidden {
			m.hidden = false
			w.wishes++
		}
	}
}

// takeover forgets what only the last leader knew.
func (w *planWorld) takeover() {
	w.view.Owed = nil
	for _, m := range w.machines {
		if m.RegisteredAt.IsZero() {
			continue
		}
		m.GoodSince, m.Silent, m.Unhealthy = time.Time{}, false, false
		m.GraceUntil, m.hearAt = w.now.Add(planInterval), w.now.Add(w.between(time.Second, planInterval))
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

// calm ends all trouble: what is broken stays broken, but nothing else breaks.
func (w *planWorld) calm() {
	w.note("calm")
	w.quiet = true
	w.view.SpotFree = true
	w.wishes++ // no age is limited any more
	w.view.Frozen, w.view.Unnamed, w.view.Removing, w.view.Clock = false, false, false, ""
	w.view.History.Paused, w.view.History.HaltedHash, w.view.History.Failures = false, "", 0
	w.view.Group.Rollout.HaltAfter = 0 // somebody would resume
	if w.broken[w.view.Hash] {
		w.template(true)
	}
	w.unhide()
	for _, m := range w.machines {
		m.EligibleAt, m.ExpireAt, m.probesFail = time.Time{}, time.Time{}, false
	}
}
