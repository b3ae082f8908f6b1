package nstance_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

// TestDrainBy: a drain ends a margin before the cloud's deadline, also where that has
// to be estimated, and never in the past.
func TestDrainBy(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	in := func(d time.Duration) time.Time { return now.Add(d) }
	for name, c := range map[string]struct {
		notice nstance.Notice
		by     time.Time
	}{
		"two minutes":                  {nstance.Notice{Kind: nstance.Reclaim, Deadline: in(2 * time.Minute), ReceivedAt: now}, in(110 * time.Second)},
		"a third of little time":       {nstance.Notice{Kind: nstance.Reclaim, Deadline: in(15 * time.Second), ReceivedAt: now}, in(10 * time.Second)},
		"deadline passed since":        {nstance.Notice{Kind: nstance.Reclaim, Deadline: in(-time.Second), ReceivedAt: in(-time.Minute)}, now},
		"received after its deadline":  {nstance.Notice{Kind: nstance.Stop, Deadline: in(-time.Hour), ReceivedAt: now}, in(20 * time.Second)},
		"reclaim without deadline":     {nstance.Notice{Kind: nstance.Reclaim, DetectedAt: in(-3 * time.Second), ReceivedAt: in(-2 * time.Second)}, in(18 * time.Second)},
		"reclaim with a warning":       {nstance.Notice{Kind: nstance.Reclaim, DetectedAt: in(-3 * time.Second), ReceivedAt: in(-2 * time.Second), Warning: 2 * time.Minute}, in(107 * time.Second)},
		"the deadline beats a warning": {nstance.Notice{Kind: nstance.Reclaim, Deadline: in(time.Minute), ReceivedAt: now, Warning: 2 * time.Minute}, in(50 * time.Second)},
		"reclaim detected long ago":    {nstance.Notice{Kind: nstance.Reclaim, DetectedAt: in(-time.Hour), ReceivedAt: now}, in(20 * time.Second)},
		"reclaim without any time":     {nstance.Notice{Kind: nstance.Reclaim}, in(20 * time.Second)},
		"stop without deadline":        {nstance.Notice{Kind: nstance.Stop, DetectedAt: now, ReceivedAt: now}, time.Time{}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.by, c.notice.DrainBy(now)) })
	}
}

// TestDrainByStays: the time is the deadline's, without the monotonic reading of the
// caller's clock: a time that moves by nanoseconds would tighten the drain with each plan.
func TestDrainByStays(t *testing.T) {
	now := time.Now()
	n := nstance.Notice{Kind: nstance.Reclaim, Deadline: now.Add(2 * time.Minute).Round(0), ReceivedAt: now.Round(0)}
	require.Equal(t, fmt.Sprintf("%#v", n.Deadline.Add(-10*time.Second)), fmt.Sprintf("%#v", n.DrainBy(now)))
	require.NotContains(t, n.DrainBy(now).String(), "m=", "no monotonic reading")
}
