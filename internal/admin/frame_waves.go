package admin

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wave"
	"github.com/nstance-go/nstance/internal/wire"
)

// Bounds on what top shows of waves.
const (
	shownWaves     = 5
	shownWavePools = 3 // of each
)

// waveLines returns the waves that run, or the latest one of the last hour, with their pools.
func (f *frame) waveLines(now time.Time) []string {
	if len(f.waves) == 0 {
		return nil
	}
	running := slices.IndexFunc(f.waves, func(w *wave.Wave) bool { return w.Running == 0 })
	if running < 0 {
		running = len(f.waves)
	}
	t := &table{now: f.at}
	t.row("WAVE", "RECLAIMED", "REPLACED", "DRAINED", "INCOMPLETE", "TIGHTEST", "DEADLINE")
	for _, w := range f.waves[:min(max(running, 1), shownWaves)] {
		writeWaveRow(t, waveName(w, now), w.Count, tightest(w), waveDeadline(w, now))
		for _, p := range w.Pools[:min(len(w.Pools), shownWavePools)] {
			writeWaveRow(t, "· "+wavePool(p.InstanceType, p.Zone, p.Market), p.Count, "", "")
		}
		if more := len(w.Pools) - shownWavePools + w.PoolsOmitted; more > 0 {
			t.row(fmt.Sprintf("· ... %d more pools", more), "", "", "", "", "", "")
		}
	}
	lines := t.aligned()
	if running > shownWaves {
		lines = append(lines, fmt.Sprintf("... %d more waves, with later deadlines", running-shownWaves))
	}
	return lines
}

func writeWaveRow(t *table, name string, n wave.Count, tightest, deadline string) {
	t.row(name, strconv.Itoa(n.Machines), strconv.Itoa(n.Replaced), strconv.Itoa(n.Drained), strconv.Itoa(n.Incomplete), tightest, deadline)
}

func waveName(w *wave.Wave, now time.Time) string {
	name := strings.Join(w.Groups[:min(len(w.Groups), 2)], ", ")
	if more := len(w.Groups) - 2; more > 0 {
		name += fmt.Sprintf(" and %d more", more)
	}
	if w.Rehearsal {
		name += " (rehearsal)"
	}
	return name + ", " + short(max(0, now.Sub(w.Began))) + " ago"
}

func wavePool(instanceType, zone, market string) string {
	return cmp.Or(instanceType, "unknown type") + " " + cmp.Or(zone, "unknown zone") + " " + cmp.Or(market, "unknown market")
}

// tightest formats the least time that a drain of a wave left before the cloud's deadline.
func tightest(w *wave.Wave) string {
	if w.TightestSeconds == nil {
		return ""
	}
	left := time.Duration(*w.TightestSeconds * float64(time.Second))
	if left < 0 {
		return "missed by " + countdown(-left)
	}
	return countdown(left)
}

func waveDeadline(w *wave.Wave, now time.Time) string {
	if w.Running == 0 {
		return "over"
	}
	return deadlineLeft(w.Deadline, now)
}

// deadlineLeft formats how long it is to a deadline.
func deadlineLeft(deadline, now time.Time) string {
	switch left := deadline.Sub(now); {
	case deadline.IsZero():
		return "none"
	case left < 0:
		return "passed " + countdown(-left) + " ago"
	default:
		return "in " + countdown(left)
	}
}

// countdown formats a duration as m:ss below ten minutes.
func countdown(d time.Duration) string {
	if d >= 10*time.Minute {
		return short(d)
	}
	s := int(d.Seconds())
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}

// poolLines returns the pools of all groups that are shown, the largest first.
func (f *frame) poolLines() []string {
	type pool struct{ instanceType, zone, market string }
	type sums struct {
		members, ready, leaving int
		price                   float64 // the highest that is known
	}
	pools := map[pool]*sums{}
	for _, i := range f.instances {
		k := pool{i.GetInstanceType(), i.GetZone(), i.GetMarket()}
		if pools[k] == nil {
			pools[k] = &sums{}
		}
		n := pools[k]
		n.members++
		switch state := nstance.State(i.GetState()); {
		case state.Leaving():
			n.leaving++
		case state == nstance.Ready:
			n.ready++
		}
		n.price = max(n.price, i.GetPricePerHour())
	}
	keys := make([]pool, 0, len(pools))
	for k := range pools {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b pool) int {
		return cmp.Or(pools[b].members-pools[a].members, cmp.Compare(a.instanceType, b.instanceType), cmp.Compare(a.zone, b.zone), cmp.Compare(a.market, b.market))
	})
	t := &table{now: f.at}
	t.row("POOL", "MEMBERS", "READY", "LEAVING", "PRICE/H")
	for _, k := range keys {
		n, price := pools[k], ""
		if n.price > 0 {
			price = decimal(n.price, 4)
		}
		t.row(wavePool(k.instanceType, k.zone, k.market), strconv.Itoa(n.members), strconv.Itoa(n.ready), strconv.Itoa(n.leaving), price)
	}
	return t.aligned()
}

// interruptionLines returns the interruptions that run, the earliest deadline first.
func (f *frame) interruptionLines(now time.Time) []string {
	var list []*apiv1.Interruption
	for _, w := range f.waves {
		for _, i := range w.Members {
			if !wave.Over(i) {
				list = append(list, i)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b *apiv1.Interruption) int {
		return wave.CompareDeadlines(wire.TimeOf(a.GetNotice().GetDeadline()), wire.TimeOf(b.GetNotice().GetDeadline()))
	})
	drains := map[string]string{}
	for _, i := range f.instances {
		drains[i.GetId()] = drainOf(i, now)
	}
	t := &table{now: f.at}
	t.row("INSTANCE", "GROUP", "KIND", "DEADLINE", "DRAIN", "REPLACEMENT")
	for _, i := range list {
		drain := string(wave.ResultOf(i))
		if wave.ResultOf(i) == wave.Running {
			drain = drains[i.GetInstance()]
		}
		replacement := step(i, i.GetReplacementReadyAt())
		if replacement == "" && i.GetReplacement() != "" {
			replacement = "requested"
		}
		t.row(i.GetInstance(), wire.GroupKeyOf(i).String(), i.GetNotice().GetKind(), deadlineLeft(wire.TimeOf(i.GetNotice().GetDeadline()), now), drain, replacement)
	}
	return t.aligned()
}
