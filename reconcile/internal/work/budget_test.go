package work_test

import (
	"testing"
	"time"

	"github.com/nstance-go/nstance/reconcile/internal/work"
	"github.com/stretchr/testify/require"
)

// TestPlanBudget: long plans have half of the time and a short burst; short ones cost nothing.
func TestPlanBudget(t *testing.T) {
	const long = 10 * time.Millisecond
	now := time.Now()
	b := work.NewBudget(now)
	spend := func(took time.Duration) time.Duration {
		now = now.Add(took)
		return b.Spend(took, now)
	}
	for range 100 {
		require.Zero(t, spend(work.LongPlan-1), "a short plan")
	}
	require.Zero(t, spend(work.LongPlan), "a burst")
	require.Zero(t, spend(work.LongPlan), "a burst")
	require.Equal(t, work.LongPlan, spend(work.LongPlan))
	now = now.Add(work.LongPlan)

	var planning, pauses time.Duration
	for range 100 {
		pause := spend(long)
		now = now.Add(pause)
		planning, pauses = planning+long, pauses+pause
	}
	require.Equal(t, planning, pauses, "half of the time")

	now = now.Add(time.Hour)
	require.Equal(t, long-work.Burst, spend(long), "a rest gives back the burst, and no more")
}
