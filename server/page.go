package server

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/loop"
	"github.com/nstance-go/nstance/internal/wave"
	"github.com/nstance-go/nstance/internal/web"
	"github.com/nstance-go/nstance/journal"
	"github.com/nstance-go/nstance/reconcile"
)

// addGroups adds the groups, and the sums over them and over all instances.
func addGroups(out *web.Status, groups []reconcile.GroupView, instances []reconcile.InstanceView) {
	at := make(map[nstance.GroupKey]int, len(groups))
	for _, g := range groups {
		at[g.Key] = len(out.Groups)
		row := web.Group{
			Tenant: string(g.Key.Tenant), Group: string(g.Key.Group), Size: g.Size, Ready: g.Ready, Booting: g.Booting, Leaving: g.Leaving, Stale: g.Stale,
			Standby: g.Standby, Parked: g.Parked, Spot: g.SpotMarket, OnDemand: g.OnDemandMarket, States: map[string]int{},
		}
		for _, h := range g.Holds {
			row.Holds = append(row.Holds, web.Hold{Kind: string(h.Kind), Reason: h.Reason, Since: h.Since, Until: h.Until})
		}
		out.Groups = append(out.Groups, row)
		sum := &out.Totals
		sum.Size, sum.Ready, sum.Booting, sum.Leaving, sum.Stale = sum.Size+g.Size, sum.Ready+g.Ready, sum.Booting+g.Booting, sum.Leaving+g.Leaving, sum.Stale+g.Stale
		sum.Spot, sum.OnDemand = sum.Spot+g.SpotMarket, sum.OnDemand+g.OnDemandMarket
	}
	for i := range instances {
		v := &instances[i]
		row := &web.Group{States: map[string]int{}} // of a group that is gone
		if n, ok := at[v.Group]; ok {
			row = &out.Groups[n]
		}
		row.States[string(v.State)]++
		switch {
		case v.Machine.ProviderID == "" || v.Gone: // it costs nothing
		case v.PricePerHour > 0:
			row.CostPerHour, out.Totals.CostPerHour = row.CostPerHour+v.PricePerHour, out.Totals.CostPerHour+v.PricePerHour
		default:
			row.Unpriced, out.Totals.Unpriced = row.Unpriced+1, out.Totals.Unpriced+1
		}
	}
}

type pageRates = []loop.PoolRate

// addPools adds the pools of the instances, and of rates those without instances that were
// reclaimed.
func addPools(out *web.Status, instances []reconcile.InstanceView, rates *pageRates) {
	type key struct{ instanceType, zone, market string }
	pools, priced := map[key]*web.Pool{}, map[key]time.Time{}
	pool := func(k key) *web.Pool {
		if pools[k] == nil {
			pools[k] = &web.Pool{InstanceType: k.instanceType, Zone: k.zone, Market: k.market}
		}
		return pools[k]
	}
	for i := range instances {
		v := &instances[i]
		if v.Machine.ProviderID == "" || v.Gone {
			continue
		}
		k := key{cmp.Or(v.Machine.InstanceType, v.InstanceType), v.Zone, string(v.Market)}
		p := pool(k)
		if p.Members++; v.PricePerHour > 0 && !v.CreatedAt.Before(priced[k]) {
			p.PricePerHour, priced[k] = v.PricePerHour, v.CreatedAt
		}
	}
	if rates != nil {
		for _, r := range *rates {
			k := key{r.InstanceType, r.Zone, string(r.Market)}
			if pools[k] == nil && r.Reclaims == 0 {
				continue
			}
			p := pool(k)
			p.MachineHours, p.Reclaims, p.LastReclaim = r.MachineTime.Hours(), r.Reclaims, r.LastReclaim
			if r.MachineTime > 0 {
				p.ReclaimsPer100H = 100 * float64(r.Reclaims) / r.MachineTime.Hours()
			}
		}
	}
	for _, p := range pools {
		out.Pools = append(out.Pools, *p)
	}
	slices.SortFunc(out.Pools, func(a, b web.Pool) int {
		return cmp.Or(b.Members-a.Members, b.Reclaims-a.Reclaims, cmp.Compare(a.InstanceType, b.InstanceType), cmp.Compare(a.Zone, b.Zone), cmp.Compare(a.Market, b.Market))
	})
	out.PoolsTotal = len(out.Pools)
	out.Pools = out.Pools[:min(len(out.Pools), shownPools)]
}

// addHistory adds waves, interruptions, the last day and events. What can be read is added
// also when it fails.
func (s *Server) addHistory(ctx context.Context, out *web.Status, t *term, instances []reconcile.InstanceView) error {
	events, err := s.events.Events(ctx, journal.Filter{Limit: shownEvents, Newest: true})
	list, unread := s.operators.LatestInterruptions(ctx, t.reconciler.Internals, knownInterruptions)
	addInterruptions(out, list, instances)
	marks, unmarked := s.events.Events(ctx, journal.Filter{Types: markTypes(), Since: out.Day.From, Limit: shownMarks, Newest: true})
	for _, e := range public(marks) {
		out.Day.Marks = append(out.Day.Marks, web.Mark{Time: e.Time, Event: string(e.Type), Tenant: string(e.Tenant), Group: string(e.Group), Reason: cmp.Or(e.Reason, e.Error)})
	}
	out.Events = append(out.Events, public(events)...)
	return cmp.Or(err, unread, unmarked)
}

// markTypes are the types of events on the time line.
func markTypes() []nstance.EventType {
	return []nstance.EventType{
		nstance.EventAlarm, nstance.EventRolloutHalted, nstance.EventOrphanSeen, eventtype.RolloutPaused, eventtype.RolloutResumed, eventtype.RolledBack, eventtype.RollbackEnded,
		eventtype.Frozen, eventtype.Thawed, eventtype.GroupCreated, eventtype.GroupChanged, eventtype.ConfigAccepted, eventtype.ConfigHeld, eventtype.ConfigRefused,
		eventtype.ClockWrong, eventtype.DrillStarted, eventtype.KeysRotated,
	}
}

// addInterruptions adds waves, and rows of interruptions: those that run by their deadlines,
// then the others, the latest first.
func addInterruptions(out *web.Status, list []*apiv1.Interruption, instances []reconcile.InstanceView) {
	waves := wave.Of(list)
	out.WavesTotal, out.Waves = len(waves), append(out.Waves, waves[:min(len(waves), shownWaves)]...)
	in := make(map[*apiv1.Interruption]string, len(list))
	for _, w := range waves {
		for _, i := range w.Members {
			in[i] = w.ID
		}
	}
	drains := make(map[string]time.Time, len(instances))
	for i := range instances {
		if v := &instances[i]; v.Drain != nil && !v.Drain.Unlimited() {
			drains[string(v.ID)] = v.Drain.Deadline
		}
	}
	running, ended := []web.Interruption{}, []web.Interruption{}
	for _, i := range list {
		row := interruptionRow(i)
		row.Wave = in[i]
		if wave.Over(i) {
			ended = append(ended, row)
			continue
		}
		if row.DrainedAt.IsZero() {
			row.DrainDeadline = drains[row.Instance]
		}
		running = append(running, row)
	}
	slices.SortStableFunc(running, func(a, b web.Interruption) int { return wave.CompareDeadlines(a.Deadline, b.Deadline) })
	out.InterruptionsRunning, out.InterruptionsTotal = len(running), len(list)
	out.Interruptions = append(out.Interruptions, running[:min(len(running), shownRunning)]...)
	out.Interruptions = append(out.Interruptions, ended[:min(len(ended), shownEnded)]...)
	out.Day = dayOf(list, out.Time)
}

// slotLength is how much of the time line one bar is.
const slotLength = 15 * time.Minute

// dayOf counts the interruptions of the last 24 hours, which are given the latest first.
func dayOf(list []*apiv1.Interruption, now time.Time) web.Day {
	day := web.Day{From: now.UTC().Truncate(slotLength).Add(slotLength - 24*time.Hour), Slots: []web.Slot{}, Marks: []web.Mark{}}
	slots := map[time.Time]*web.Slot{}
	for _, i := range list {
		at := wave.NoticedAt(i).UTC()
		r := wave.ResultOf(i)
		if at.Before(day.From) || r == wave.Withdrawn || r == wave.Ignored {
			continue
		}
		at = at.Truncate(slotLength)
		if slots[at] == nil {
			slots[at] = &web.Slot{At: at}
		}
		for _, slot := range []*web.Slot{slots[at], &day.Total} {
			switch {
			case r == wave.Drained:
				slot.Drained++
			case r.Incomplete():
				slot.Incomplete++
			default:
				slot.Running++
			}
		}
	}
	for _, slot := range slots {
		day.Slots = append(day.Slots, *slot)
	}
	slices.SortFunc(day.Slots, func(a, b web.Slot) int { return a.At.Compare(b.At) })
	if n := len(list); n >= knownInterruptions && !wave.NoticedAt(list[n-1]).Before(day.From) {
		day.Known = wave.NoticedAt(list[n-1]).UTC()
	}
	return day
}
