package admin

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/spf13/cobra"
)

// A Rehearsal is what interrupt --group --wait prints: how long each stage took of
// each instance, counted from the notice, and which of them would have been lost with
// work on it.
type Rehearsal struct {
	Tenant        nstance.TenantID     `json:"tenant"`
	Group         nstance.GroupID      `json:"group"`
	Stages        []RehearsedStage     `json:"stages"`
	Missed        []nstance.InstanceID `json:"missed"` // whose drain did not succeed before the deadline
	Interruptions []document           `json:"interruptions"`
}

// A RehearsedStage is how long one stage took, of the instances that reached it.
type RehearsedStage struct {
	Stage  string  `json:"stage"`
	Count  int     `json:"count"`
	Median float64 `json:"median_seconds"`
	P90    float64 `json:"p90_seconds"` // nine of ten took as long, or less
	Max    float64 `json:"max_seconds"`

	latencies []time.Duration // sorted
}

func interruptGroup(cmd *cobra.Command, r *remote, c *client, i interruption, out *output) error {
	ctx := cmd.Context()
	g, err := c.group(ctx, nstance.TenantID(i.tenant), i.group)
	if err != nil {
		return err
	}
	w := &rehearsals{r: r, c: c, i: i, key: wire.GroupKeyOf(g)}
	if err := confirm(cmd, i.yes || i.dryRun, fmt.Sprintf("this interrupts %s of group %s, which has %d ready of %d: they are drained, then deleted, and the group replaces them",
		plural(int(i.count), "member"), w.key, g.GetReady(), g.GetSize())); err != nil {
		return err
	}
	if i.dryRun || !i.wait {
		if err := w.inject(ctx); err != nil {
			return err
		}
		return out.print(document{w.answer}, func(t *table) { writeInjected(t, i, w.answer) })
	}
	err = w.observe(ctx)
	if w.answer == nil {
		return err
	}
	report := w.report()
	if err == nil && len(report.Missed) > 0 {
		err = fault(nstance.Internal, nil, "give drains more time, or make them shorter",
			fmt.Sprintf("%d of %s missed the deadline", len(report.Missed), plural(len(w.all), "instance")))
	}
	return errors.Join(err, out.print(report, func(t *table) { writeRehearsal(t, report) }))
}

func (w *rehearsals) report() Rehearsal {
	report := Rehearsal{Tenant: w.key.Tenant, Group: w.key.Group, Missed: []nstance.InstanceID{}, Interruptions: []document{}}
	byStage := map[string][]time.Duration{}
	for _, x := range w.all {
		report.Interruptions = append(report.Interruptions, document{x.seen})
		if missedDeadline(x.seen) {
			report.Missed = append(report.Missed, x.id)
		}
		for _, s := range rehearsedStages(x.seen) {
			if s.at != nil {
				byStage[s.name] = append(byStage[s.name], max(0, s.at.AsTime().Sub(noticeTime(x.seen))))
			}
		}
	}
	for _, s := range rehearsedStages(nil) {
		report.Stages = append(report.Stages, rehearsedStage(s.name, byStage[s.name]))
	}
	return report
}

func rehearsedStages(i *apiv1.Interruption) []stage {
	return slices.Insert(stagesOf(i), 2, stage{"drain requested", i.GetDrainStartedAt(), ""})
}

func rehearsedStage(name string, latencies []time.Duration) RehearsedStage {
	s := RehearsedStage{Stage: name, Count: len(latencies), latencies: latencies}
	if n := len(latencies); n > 0 {
		slices.Sort(latencies)
		s.Median, s.P90, s.Max = latencies[(n-1)/2].Seconds(), latencies[(9*n-1)/10].Seconds(), latencies[n-1].Seconds()
	}
	return s
}

// missedDeadline reports whether a drain did not succeed before the notice's deadline.
func missedDeadline(i *apiv1.Interruption) bool {
	deadline := i.GetNotice().GetDeadline()
	if deadline == nil || i.GetDrainStartedAt() == nil {
		return false
	}
	drained := i.GetDrainedAt() != nil && i.GetDrainOutcome() == string(nstance.OutcomeDrained)
	return !drained || i.GetDrainedAt().AsTime().After(deadline.AsTime())
}

func writeRehearsal(t *table, r Rehearsal) {
	t.row("INSTANCE", "RECEIVED", "REPLACEMENT REQUESTED", "DRAIN REQUESTED", "DRAINED", "REPLACEMENT READY", "DELETED", "DEADLINE")
	for _, d := range r.Interruptions {
		i := d.Message.(*apiv1.Interruption)
		t.row(i.GetInstance(), latency(i, i.GetReceivedAt()), latency(i, i.GetReplacementRequestedAt()), latency(i, i.GetDrainStartedAt()),
			rehearsedDrain(i), latency(i, i.GetReplacementReadyAt()), latency(i, i.GetDeletedAt()), rehearsedDeadline(i))
	}
	t.say("")
	t.row("STAGE", "INSTANCES", "MEDIAN", "P90", "MAX")
	for _, s := range r.Stages {
		t.row(s.Stage, fmt.Sprint(s.Count), seconds(s.Median), seconds(s.P90), seconds(s.Max))
	}
	for _, s := range r.Stages {
		if s.Stage == stageDrainOver || s.Stage == stageReplacementReady {
			writeHistogram(t, s)
		}
	}
}

func rehearsedDrain(i *apiv1.Interruption) string {
	if i.GetIgnored() != "" {
		return "ignored"
	}
	if i.GetDrainOutcome() == string(nstance.OutcomeDrained) {
		return latency(i, i.GetDrainedAt())
	}
	return strings.TrimSpace(i.GetDrainOutcome() + " " + latency(i, i.GetDrainedAt()))
}

func rehearsedDeadline(i *apiv1.Interruption) string {
	switch {
	case missedDeadline(i):
		return "missed"
	case i.GetNotice().GetDeadline() == nil:
		return ""
	}
	return "met"
}

func seconds(s float64) string { return fmt.Sprintf("%.3fs", s) }

const (
	histogramRows  = 8
	histogramWidth = 40 // characters of the longest bar
)

// writeHistogram shows how many instances took how long.
func writeHistogram(t *table, s RehearsedStage) {
	if s.Count < 2 {
		return
	}
	step := s.latencies[s.Count-1]/histogramRows + 1
	var counts [histogramRows]int
	for _, l := range s.latencies {
		counts[l/step]++
	}
	most := slices.Max(counts[:])
	t.say("")
	t.row(strings.ToUpper(s.Stage)+" WITHIN", "INSTANCES", "SHARE")
	for row, n := range counts {
		bar := strings.Repeat("#", (n*histogramWidth+most-1)/most)
		t.row(seconds((step * time.Duration(row+1)).Seconds()), fmt.Sprint(n), bar)
	}
}
