package wave_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wave"
)

var start = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

// reclaim is an interruption that was noticed so long after the start, with a deadline
// two minutes later.
func reclaim(id string, after time.Duration) *apiv1.Interruption {
	at := start.Add(after)
	return &apiv1.Interruption{
		EventId: "e-" + id, Tenant: "default", Group: "web", Instance: id, InstanceType: "m7g.large", Zone: "a", Market: "spot",
		DetectedAt: timestamppb.New(at), Notice: &apiv1.Notice{Deadline: timestamppb.New(at.Add(2 * time.Minute))},
	}
}

// drained ends the drain so long after the notice, and deletes the machine a second later.
func drained(i *apiv1.Interruption, outcome string, after time.Duration) *apiv1.Interruption {
	end := i.GetDetectedAt().AsTime().Add(after)
	i.DrainOutcome, i.DrainedAt, i.DeletedAt = outcome, timestamppb.New(end), timestamppb.New(end.Add(time.Second))
	return i
}

func TestWaveCounts(t *testing.T) {
	var list []*apiv1.Interruption
	for n := range 120 {
		i := reclaim(fmt.Sprintf("i%03d", n), time.Duration(n)*100*time.Millisecond)
		if n < 111 {
			i.Replacement, i.ReplacementReadyAt = "r", timestamppb.New(start.Add(time.Minute))
		}
		if n < 40 {
			drained(i, "drained", 49*time.Second)
		}
		if n >= 90 {
			i.Zone = "b"
		}
		list = append(list, i)
	}
	drained(list[119], "cut short", 100*time.Second)
	slices.Reverse(list)
	all := wave.Of(list)
	require.Len(t, all, 1)
	w := all[0]
	require.Equal(t, wave.Count{Machines: 120, Requested: 111, Replaced: 111, Drained: 40, Incomplete: 1, Running: 79}, w.Count)
	require.InDelta(t, 20, *w.TightestSeconds, .01, "the drain that was cut short had the least time left")
	require.Equal(t, start.Add(4*time.Second+2*time.Minute), w.Deadline, "the earliest deadline of a machine that runs")
	require.Zero(t, w.Ended)
	require.Equal(t, []string{"default/web"}, w.Groups)
	require.Len(t, w.Pools, 2)
	require.Equal(t, wave.Pool{InstanceType: "m7g.large", Zone: "a", Market: "spot", Count: wave.Count{Machines: 90, Requested: 90, Replaced: 90, Drained: 40, Running: 50}}, w.Pools[0])
	require.Equal(t, 30, w.Pools[1].Machines)
}

func TestWavesApart(t *testing.T) {
	rehearsed := reclaim("i3", 2*time.Second)
	rehearsed.Rehearsal = true
	withdrawn := reclaim("i4", time.Second)
	withdrawn.Withdrawn = true
	old := drained(reclaim("i0", -time.Hour), "drained", time.Second)
	twice := reclaim("i1", 30*time.Second)
	twice.EventId = "again"
	all := wave.Of([]*apiv1.Interruption{reclaim("i1", 0), reclaim("i2", 50*time.Second), twice, rehearsed, withdrawn, old, reclaim("i5", 5*time.Minute)})
	require.Len(t, all, 4, "by a gap of more than a minute, and rehearsals apart")
	require.Equal(t, []int{2, 1, 1, 1}, []int{all[0].Machines, all[1].Machines, all[2].Machines, all[3].Machines}, "a machine with two notices counts once")
	require.True(t, all[1].Rehearsal)
	require.Equal(t, "i5", all[2].Members[0].GetInstance())
	require.Equal(t, "i0", all[3].Members[0].GetInstance(), "what has ended comes after what runs")
	require.Equal(t, old.GetDeletedAt().AsTime(), all[3].Ended)
}

// TestWaveSpan: a trickle of notices is not one wave for ever.
func TestWaveSpan(t *testing.T) {
	var list []*apiv1.Interruption
	for n := range 61 {
		list = append(list, reclaim(fmt.Sprintf("i%02d", n), time.Duration(n)*30*time.Second))
	}
	require.Len(t, wave.Of(list), 2)
}

// lostAfter ends the machine before its drain.
func lostAfter(i *apiv1.Interruption) *apiv1.Interruption {
	i.GoneAt = timestamppb.New(start)
	return i
}

func TestResult(t *testing.T) {
	lost := lostAfter(reclaim("i", 0))
	ignored := reclaim("i", 0)
	ignored.Ignored = "it is past"
	withdrawn := lostAfter(reclaim("i", 0))
	withdrawn.Withdrawn = true
	for want, i := range map[wave.Result]*apiv1.Interruption{
		wave.Running: reclaim("i", 0), wave.Drained: drained(reclaim("i", 0), "drained", time.Minute), wave.Late: drained(reclaim("i", 0), "drained", 3*time.Minute),
		wave.CutShort: drained(reclaim("i", 0), "cut short", time.Minute), wave.Failed: drained(reclaim("i", 0), "failed", time.Minute),
		wave.Lost: lost, wave.Ignored: ignored, wave.Withdrawn: withdrawn,
	} {
		require.Equal(t, want, wave.ResultOf(i))
		require.Equal(t, slices.Contains([]wave.Result{wave.Late, wave.CutShort, wave.Failed, wave.Lost}, want), want.Incomplete(), want)
	}
}

// TestWavesWithOneDeadline: among waves that run and end together, the latest comes first.
func TestWavesWithOneDeadline(t *testing.T) {
	early, late := reclaim("i1", 0), reclaim("i2", time.Hour)
	early.Notice.Deadline = late.GetNotice().GetDeadline()
	all := wave.Of([]*apiv1.Interruption{early, late})
	require.Len(t, all, 2)
	require.Equal(t, "i2", all[0].Members[0].GetInstance())
}

// TestMachineThatWasLost: the time that its drain had ends when it is gone.
func TestMachineThatWasLost(t *testing.T) {
	lost := reclaim("i1", 0)
	lost.GoneAt = timestamppb.New(start.Add(time.Minute))
	lost.DeletedAt = timestamppb.New(start.Add(time.Hour))
	w := wave.Of([]*apiv1.Interruption{lost})[0]
	require.Equal(t, start.Add(time.Minute), w.Ended)
	require.NotNil(t, w.TightestSeconds)
	require.InDelta(t, 60, *w.TightestSeconds, .01)
}

func TestWaveIsBounded(t *testing.T) {
	var list []*apiv1.Interruption
	for n := range 14 {
		for m := range n + 1 { // the last pool is the largest
			i := reclaim(fmt.Sprintf("i%02d-%d", n, m), 0)
			i.Zone, i.Group = fmt.Sprintf("z%02d", n), fmt.Sprintf("g%02d", n)
			list = append(list, i)
		}
	}
	w := wave.Of(list)[0]
	require.Len(t, w.Pools, 12)
	require.Equal(t, 2, w.PoolsOmitted)
	require.Equal(t, "z13", w.Pools[0].Zone)
	require.Equal(t, "z02", w.Pools[11].Zone)
	require.Len(t, w.Groups, 12)
	require.Equal(t, "default/g00", w.Groups[0])
}

func ExampleOf() {
	for _, w := range wave.Of([]*apiv1.Interruption{reclaim("i1", 0), reclaim("i2", time.Second)}) {
		fmt.Println(w.Machines, "reclaimed,", w.Running, "running")
	}
	// Output: 2 reclaimed, 2 running
}
