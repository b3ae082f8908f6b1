package pace_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/reconcile/internal/pace"
)

func TestMargin(t *testing.T) {
	var p pace.Pace
	for range 4 {
		p.Deleted(20 * time.Second)
	}
	require.Zero(t, p.Margin(), "too few")
	p.Deleted(20 * time.Second)
	require.Equal(t, 30*time.Second, p.Margin(), "half as much again")
	p.Deleted(10 * time.Minute)
	require.Equal(t, time.Minute, p.Margin(), "no more than a minute")
	for range 32 {
		p.Deleted(10 * time.Millisecond)
	}
	require.Equal(t, 5*time.Second, p.Margin(), "old ones are forgotten, and it is no shorter")
	p.Deleted(time.Hour)
	require.Equal(t, 5*time.Second, p.Margin(), "one in thirty-two")
}

func TestEstimate(t *testing.T) {
	var p pace.Pace
	estimate := func(w pace.Work, want time.Duration, basis string) {
		t.Helper()
		got, why := p.Estimate(w)
		require.Equal(t, want, got)
		require.Equal(t, basis, why)
	}
	limits := pace.Work{LaunchTimeout: 10 * time.Minute, DrainTimeout: 5 * time.Minute, MinReady: time.Minute, Surge: 2}
	work := func(creates, replaced, leaving int) pace.Work {
		w := limits
		w.Creates, w.Replaced, w.Leaving = creates, replaced, leaving
		return w
	}
	const noLaunch, noDrain = "no launch was seen by this leader: launch_timeout 10m0s is the upper bound", "no drain was seen: drain_timeout 5m0s is the upper bound"
	estimate(work(0, 0, 0), 0, "")
	estimate(work(3, 0, 0), 11*time.Minute, noLaunch)
	estimate(work(0, 0, 2), 5*time.Minute, noDrain)
	estimate(work(3, 3, 0), 2*16*time.Minute, noLaunch+"; "+noDrain)
	estimate(pace.Work{Creates: 1}, 0, "no launch was seen by this leader, and launch_timeout is off")
	estimate(pace.Work{Leaving: 1}, 0, "nothing is drained")

	p.Launched(90 * time.Second)
	p.Launched(1234 * time.Millisecond)
	p.Drained(700600 * time.Microsecond)
	const launches, drains = "the slowest of the last 2 launches took 1m30s", "the slowest of the last 1 drains took 701ms"
	estimate(work(4, 3, 1), 150*time.Second+700600*time.Microsecond+2*(150*time.Second+700600*time.Microsecond), launches+"; "+drains)
	p.Drained(time.Hour)
	estimate(work(0, 0, 1), 5*time.Minute, "the slowest of the last 2 drains took 5m0s")
	for range 16 {
		p.Launched(time.Second)
	}
	estimate(work(1, 0, 0), 61*time.Second, "the slowest of the last 16 launches took 1s")
}
