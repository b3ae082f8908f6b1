package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// eventTimes returns when events of a type happened.
func (w *world) eventTimes(typ nstance.EventType) (out []time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e.Type == typ {
			out = append(out, e.Time)
		}
	}
	return out
}

// createDelays returns how long each create, from the nth on, was delayed after the failure
// before it.
func (w *world) createDelays(n int) (out []time.Duration) {
	failed := w.eventTimes(nstance.EventDeleteRequested)
	for _, at := range w.eventTimes(nstance.EventCreateRequested)[n:] {
		var last time.Time
		for _, f := range failed {
			if !f.After(at) {
				last = f
			}
		}
		out = append(out, at.Sub(last).Round(time.Second))
	}
	return out
}

// TestBadImageOfNewGroup: machines that never register are created with backoff, and the
// backoff survives a handover. The first failure is replaced at once.
func TestBadImageOfNewGroup(t *testing.T) {
	doubling := []time.Duration{0, 10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second, 5 * time.Minute, 5 * time.Minute}
	play := func(t *testing.T, size int, test func(t *testing.T, w *world, g nstance.Group)) {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, simcloud.Options{})
			defer w.close()
			w.failUserData("v1")
			g := webGroup(size)
			g.Definition.RegistrationTimeout = time.Minute
			w.startLeader(g)
			test(t, w, g)
		})
	}
	t.Run("one machine at a time", func(t *testing.T) {
		play(t, 1, func(t *testing.T, w *world, _ nstance.Group) {
			w.advance(time.Hour)
			gaps := w.createDelays(1)
			require.GreaterOrEqual(t, len(gaps), len(doubling))
			require.Equal(t, doubling, gaps[:len(doubling)])
			for _, gap := range gaps[len(doubling):] {
				require.Equal(t, 5*time.Minute, gap)
			}
		})
	})
	t.Run("three", func(t *testing.T) {
		play(t, 3, func(t *testing.T, w *world, _ nstance.Group) {
			for range 360 {
				w.advance(10 * time.Second)
				require.LessOrEqual(t, len(w.cloud.Machines()), 3)
			}
			require.Equal(t, []time.Duration{0, 40 * time.Second, 80 * time.Second, 160 * time.Second, 5 * time.Minute, 5 * time.Minute}, w.createDelays(3)[:6],
				"the first failure is replaced at once, the others one at a time")
			require.Less(t, w.cloud.Count(simcloud.OpCreate), 3+3+12)
		})
	})
	t.Run("backoff survives a handover", func(t *testing.T) {
		play(t, 1, func(t *testing.T, w *world, g nstance.Group) {
			w.advance(30 * time.Minute)
			for !w.hasHold(plan.HoldBackoff) || time.Until(w.hold(plan.HoldBackoff).Until) < 4*time.Minute {
				w.advance(5 * time.Second)
			}
			until := w.hold(plan.HoldBackoff).Until
			made := w.cloud.Count(simcloud.OpCreate)
			w.changeLeader(g)
			require.True(t, until.Equal(w.hold(plan.HoldBackoff).Until))
			require.Contains(t, w.hold(plan.HoldBackoff).Reason, "; the latest: ", "the reason names the latest failure")
			w.advance(time.Until(until) - time.Second)
			require.Equal(t, made, w.cloud.Count(simcloud.OpCreate))
			w.advance(2 * time.Second)
			require.Equal(t, made+1, w.cloud.Count(simcloud.OpCreate))
			w.advance(10 * time.Minute)
			gaps := w.createDelays(made + 1)
			require.NotEmpty(t, gaps)
			require.Equal(t, 5*time.Minute, gaps[0], "the failure count survives")
		})
	})
}

// TestMachineNeverReady: a machine registers in time and then reports a failing probe.
// It is replaced after its launch timeout and counts as a failure.
func TestMachineNeverReady(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.failUserData("v1") // the test reports in place of the agent
		w.startLeader(webGroup(1))
		sick := func(minutes int) {
			for range minutes {
				w.advance(time.Minute)
				for _, m := range w.cloud.Machines() {
					if w.register(w.ctx, w.r, m.ID) {
						w.r.Observe(nstance.Reported{Report: nstance.Report{
							InstanceID: m.ID, Timestamp: time.Now(), CanDrain: true, Probes: []nstance.ProbeResult{{Name: "web", Message: "503"}},
						}})
					}
				}
			}
		}
		sick(14)
		require.Equal(t, 1, w.cloud.Count(simcloud.OpCreate))
		require.Equal(t, 1, w.group().Booting)
		sick(2)
		require.Equal(t, 1, w.count(nstance.EventCreateFailed, ""))
		require.Equal(t, 2, w.cloud.Count(simcloud.OpCreate), "the first failure is replaced at once")
		sick(120)
		require.Zero(t, w.count(nstance.EventReplacementRequested, ""), "it was never ready")
		failed, made := w.eventTimes(nstance.EventCreateFailed), w.eventTimes(nstance.EventCreateRequested)
		for i, gap := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second} {
			require.Equal(t, gap, made[i+2].Sub(failed[i+1]).Round(time.Second))
		}
	})
}
