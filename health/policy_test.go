package health_test

import (
	"testing"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/health"
	"github.com/stretchr/testify/require"
)

var (
	noon   = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	policy = health.Policy{Interval: time.Minute, Jitter: 6 * time.Second, Missed: 3}
)

// at returns the time so many seconds after noon.
func at(seconds int) time.Time { return noon.Add(time.Duration(seconds) * time.Second) }

// alive returns the track of an instance that connected and reported at noon.
func alive() health.Track {
	t := policy.Begin(at(-600), true)
	t.Connected(noon)
	t.Reported(noon)
	return t
}

// want checks a verdict and its next time; zero means never.
func want(t *testing.T, track health.Track, seconds int, verdict health.Verdict, next int) {
	t.Helper()
	got, when := policy.Evaluate(track, at(seconds))
	require.Equal(t, verdict.String(), got.String(), "after %d s", seconds)
	if next == 0 {
		require.Zero(t, when, "after %d s", seconds)
		return
	}
	require.Equal(t, at(next), when, "after %d s", seconds)
}

func TestConnectedAgent(t *testing.T) {
	t.Run("is healthy until a report is missed", func(t *testing.T) {
		track := alive()
		want(t, track, 0, health.Healthy, 66)
		want(t, track, 65, health.Healthy, 66)
	})
	t.Run("each report counts from its arrival", func(t *testing.T) {
		track := alive()
		track.Reported(at(63))
		want(t, track, 63, health.Healthy, 129)
	})
	t.Run("a report ends the silence", func(t *testing.T) {
		track := alive()
		track.Answered(at(70), nstance.StatusRunning)
		want(t, track, 200, health.Unhealthy, 0)
		track.Reported(at(200))
		want(t, track, 200, health.Healthy, 266)
	})
}

func TestBrokenStream(t *testing.T) {
	t.Run("reads the provider at once", func(t *testing.T) {
		track := alive()
		track.Disconnected(at(10), false)
		want(t, track, 10, health.AskProvider, 66)
	})
	t.Run("an answer to an earlier read does not count", func(t *testing.T) {
		track := alive()
		track.Disconnected(at(10), false)
		track.Answered(at(9), nstance.StatusRunning)
		want(t, track, 11, health.AskProvider, 66)
	})
	t.Run("running: waits for the reports", func(t *testing.T) {
		track := alive()
		track.Disconnected(at(10), false)
		track.Answered(at(11), nstance.StatusRunning)
		want(t, track, 12, health.Waiting, 66)
	})
	t.Run("unknown is no answer", func(t *testing.T) {
		track := alive()
		track.Disconnected(at(10), false)
		track.Answered(at(11), nstance.StatusUnknown)
		track.Answered(at(11), "")
		want(t, track, 12, health.AskProvider, 66)
	})
	t.Run("a new stream settles it", func(t *testing.T) {
		track := alive()
		track.Disconnected(at(10), false)
		track.Connected(at(11))
		want(t, track, 12, health.Healthy, 66)
	})
	t.Run("a report settles it too", func(t *testing.T) {
		track := alive()
		track.Disconnected(at(10), false)
		track.Reported(at(11))
		want(t, track, 12, health.Healthy, 77)
	})
	t.Run("of a replaced stream changes nothing", func(t *testing.T) {
		track := alive()
		track.Reported(at(12))
		track.Disconnected(at(11), false)
		want(t, track, 12, health.Healthy, 78)
	})
	t.Run("is not undone by earlier events", func(t *testing.T) {
		track := alive()
		track.Disconnected(at(10), false)
		track.Connected(at(9))
		track.Reported(at(9))
		want(t, track, 12, health.AskProvider, 75)
	})
}

func TestCleanDisconnect(t *testing.T) {
	t.Run("does not read the provider at once", func(t *testing.T) {
		track := alive()
		track.Disconnected(at(10), true)
		want(t, track, 10, health.Waiting, 66)
	})
	t.Run("the silence after it counts", func(t *testing.T) {
		track := alive()
		track.Disconnected(at(10), true)
		want(t, track, 66, health.AskProvider, 126)
		track.Answered(at(67), nstance.StatusRunning)
		want(t, track, 67, health.Silent, 126)
		want(t, track, 186, health.Unhealthy, 0)
	})
	t.Run("does not cover an earlier or later break", func(t *testing.T) {
		for _, clean := range []bool{true, false} {
			track := alive()
			track.Disconnected(at(10), clean)
			track.Disconnected(at(11), !clean)
			want(t, track, 12, health.AskProvider, 66)
		}
	})
}

func TestSilence(t *testing.T) {
	t.Run("one missed report causes a read", func(t *testing.T) {
		want(t, alive(), 66, health.AskProvider, 126)
	})
	t.Run("answered: silent until the next one is missed", func(t *testing.T) {
		track := alive()
		track.Answered(at(66), nstance.StatusRunning)
		want(t, track, 67, health.Silent, 126)
		want(t, track, 126, health.AskProvider, 186)
	})
	t.Run("an answer from before the silence does not count", func(t *testing.T) {
		track := alive()
		track.Answered(at(65), nstance.StatusRunning)
		want(t, track, 66, health.AskProvider, 126)
		want(t, track, 186, health.AskProvider, 246)
	})
	t.Run("three missed reports and running is unhealthy", func(t *testing.T) {
		track := alive()
		track.Answered(at(70), nstance.StatusRunning)
		want(t, track, 185, health.AskProvider, 186)
		want(t, track, 186, health.Unhealthy, 0)
		want(t, track, 9999, health.Unhealthy, 0)
	})
	t.Run("an answer after the stream broke is an answer after it began", func(t *testing.T) {
		track := alive()
		track.Disconnected(at(10), false)
		track.Answered(at(11), nstance.StatusRunning)
		want(t, track, 186, health.Unhealthy, 0)
	})
	t.Run("without an answer there is no verdict", func(t *testing.T) {
		track := alive()
		track.Disconnected(at(10), false)
		want(t, track, 186, health.AskProvider, 246)
		want(t, track, 100_000, health.AskProvider, 100_026)
	})
	t.Run("only the last answer counts", func(t *testing.T) {
		track := alive()
		track.Answered(at(70), nstance.StatusRunning)
		track.Answered(at(130), nstance.StatusPending)
		want(t, track, 186, health.AskProvider, 246)
		track.Answered(at(190), nstance.StatusPending)
		want(t, track, 190, health.Silent, 246)
		track.Answered(at(191), nstance.StatusRunning)
		track.Answered(at(180), nstance.StatusPending)
		want(t, track, 191, health.Unhealthy, 0)
	})
	t.Run("a connection without a report does not end it", func(t *testing.T) {
		track := alive()
		for s := 10; s < 186; s += 10 {
			track.Connected(at(s))
			track.Disconnected(at(s+5), true)
		}
		track.Answered(at(182), nstance.StatusRunning)
		want(t, track, 186, health.Unhealthy, 0)
	})
	t.Run("is counted", func(t *testing.T) {
		for seconds, n := range map[int]int{-5: 0, 0: 0, 65: 0, 66: 1, 125: 1, 126: 2, 186: 3, 246: 4} {
			require.Equal(t, n, policy.Misses(alive(), at(seconds)), "after %d s", seconds)
		}
	})
}

func TestGone(t *testing.T) {
	dead := []nstance.MachineStatus{nstance.StatusStopping, nstance.StatusStopped, nstance.StatusDeleting, nstance.StatusFailed}
	t.Run("at the provider's answer", func(t *testing.T) {
		for _, status := range dead {
			track := alive()
			track.Answered(at(5), status)
			want(t, track, 5, health.Gone, 0)
		}
	})
	t.Run("in grace and before registration too", func(t *testing.T) {
		for _, registered := range []bool{true, false} {
			track := policy.Begin(noon, registered)
			track.Answered(at(1), nstance.StatusStopped)
			want(t, track, 1, health.Gone, 0)
		}
	})
	t.Run("a later report is a contradiction: read again", func(t *testing.T) {
		track := alive()
		track.Answered(at(5), nstance.StatusStopping)
		track.Reported(at(6))
		want(t, track, 6, health.AskProvider, 72)
		track.Answered(at(7), nstance.StatusStopping)
		want(t, track, 7, health.Gone, 0)
	})
	t.Run("a later answer reverts it", func(t *testing.T) {
		track := alive()
		track.Answered(at(5), nstance.StatusStopped)
		track.Answered(at(6), nstance.StatusRunning)
		want(t, track, 6, health.Healthy, 66)
	})
	t.Run("survives a pause of the server", func(t *testing.T) {
		track := alive()
		track.Answered(at(5), nstance.StatusStopped)
		track.RestartGrace(at(6))
		want(t, track, 6, health.Gone, 0)
	})
}

func TestGrace(t *testing.T) {
	t.Run("a new term waits for a whole interval", func(t *testing.T) {
		track := policy.Begin(noon, true)
		want(t, track, 0, health.Waiting, 66)
		want(t, track, 65, health.Waiting, 66)
	})
	t.Run("connecting alone does not make it healthy", func(t *testing.T) {
		track := policy.Begin(noon, true)
		track.Connected(at(1))
		want(t, track, 2, health.Waiting, 66)
	})
	t.Run("a stream that breaks meanwhile is checked", func(t *testing.T) {
		track := policy.Begin(noon, true)
		track.Connected(at(1))
		track.Disconnected(at(2), false)
		want(t, track, 2, health.AskProvider, 66)
	})
	t.Run("an instance that never reported has the same deadline", func(t *testing.T) {
		track := policy.Begin(noon, true)
		want(t, track, 66, health.AskProvider, 126)
		track.Answered(at(67), nstance.StatusRunning)
		want(t, track, 186, health.Unhealthy, 0)
	})
	t.Run("an instance that has not registered misses no report", func(t *testing.T) {
		track := policy.Begin(noon, false)
		want(t, track, 100_000, health.Waiting, 0)
		require.Zero(t, policy.Misses(track, at(100_000)))
	})
	t.Run("registration starts the count, once", func(t *testing.T) {
		for _, register := range []func(*health.Track, time.Time){
			(*health.Track).Registered,
			(*health.Track).Connected,
		} {
			track := policy.Begin(noon, false)
			register(&track, at(100))
			register(&track, at(120))
			want(t, track, 121, health.Waiting, 166)
			want(t, track, 166, health.AskProvider, 226)
		}
	})
}

func TestRestartGrace(t *testing.T) {
	t.Run("gives a whole interval", func(t *testing.T) {
		track := alive()
		track.RestartGrace(at(600))
		want(t, track, 600, health.Healthy, 666)
		want(t, track, 666, health.AskProvider, 726)
		track.Answered(at(667), nstance.StatusRunning)
		want(t, track, 785, health.AskProvider, 786)
		want(t, track, 786, health.Unhealthy, 0)
	})
	t.Run("answers from before do not count", func(t *testing.T) {
		track := alive()
		track.Disconnected(at(10), false)
		track.Answered(at(70), nstance.StatusRunning)
		track.RestartGrace(at(600))
		want(t, track, 600, health.AskProvider, 666)
		want(t, track, 786, health.AskProvider, 846)
	})
	t.Run("never shortens", func(t *testing.T) {
		track := alive()
		track.Disconnected(at(10), false)
		track.Answered(at(10), nstance.StatusRunning)
		track.RestartGrace(at(-100))
		want(t, track, 10, health.Waiting, 66)
	})
}

func TestDefaults(t *testing.T) {
	var p health.Policy
	track := p.Begin(noon, true)
	_, next := p.Evaluate(track, noon)
	require.Equal(t, at(66), next, "60 s and a tenth")
	track.Answered(at(70), nstance.StatusRunning)
	v, _ := p.Evaluate(track, at(186))
	require.Equal(t, health.Unhealthy, v)

	_, next = health.Policy{Jitter: -1}.Evaluate(track, noon)
	require.Equal(t, at(60), next)
}

func TestWrongClockMissesNoReport(t *testing.T) {
	v, next := policy.Evaluate(alive(), noon.AddDate(-1000, 0, 0))
	require.Equal(t, health.Healthy, v)
	require.Equal(t, at(66), next)
}

func TestZeroTrackIsWaiting(t *testing.T) {
	v, next := health.Policy{}.Evaluate(health.Track{}, noon)
	require.Equal(t, health.Waiting, v)
	require.Zero(t, next)
}

func TestVerdictsHaveNames(t *testing.T) {
	for v, name := range map[health.Verdict]string{
		health.Waiting: "waiting", health.Healthy: "healthy", health.AskProvider: "ask provider",
		health.Silent: "silent", health.Unhealthy: "unhealthy", health.Gone: "gone", -1: "invalid", 6: "invalid",
	} {
		require.Equal(t, name, v.String())
	}
}

func TestTrackAllocatesNothing(t *testing.T) {
	track := alive()
	now := noon
	require.Zero(t, testing.AllocsPerRun(100, func() {
		now = now.Add(time.Second)
		track.Reported(now)
		track.Disconnected(now, false)
		track.Answered(now, nstance.StatusRunning)
		policy.Evaluate(track, now)
		policy.Misses(track, now)
	}))
}

func BenchmarkReported(b *testing.B) {
	track := alive()
	b.ReportAllocs()
	for b.Loop() {
		track.Reported(noon)
	}
}

func BenchmarkEvaluate(b *testing.B) {
	for name, seconds := range map[string]int{"healthy": 30, "silent": 70, "unhealthy": 999} {
		b.Run(name, func(b *testing.B) {
			track := alive()
			track.Answered(at(66), nstance.StatusRunning)
			b.ReportAllocs()
			for b.Loop() {
				policy.Evaluate(track, at(seconds))
			}
		})
	}
}
