package reconcile_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// silenceAgents stops the reports of agents whose machines keep running.
func (w *world) silenceAgents(ids ...nstance.InstanceID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		w.broken[id] = true
	}
}

// resumeAgents resumes the reports.
func (w *world) resumeAgents(ids ...nstance.InstanceID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		delete(w.broken, id)
	}
}

// breakerHolds reports whether the breaker holds for silent members.
func (w *world) breakerHolds() bool {
	for _, h := range w.group().Holds {
		if strings.Contains(h.Reason, "fell silent within") {
			return true
		}
	}
	return false
}

// TestUnhealthyCondition: one missed interval does not make a member unhealthy.
func TestUnhealthyCondition(t *testing.T) {
	withGroup(t, 10, simcloud.Options{}, func(t *testing.T, w *world) {
		w.mu.Lock()
		w.slowDrain = true
		w.mu.Unlock()
		w.advance(10 * time.Second)
		ids := w.ready()[:4] // enough to trip the breaker
		w.silenceAgents(ids...)
		see := func() (v reconcile.InstanceView) {
			v, err := w.r.Instance(ids[0])
			require.NoError(t, err)
			return v
		}
		w.advance(150 * time.Second)
		require.True(t, see().Silent)
		require.False(t, see().Unhealthy)
		w.advance(3 * time.Minute)
		require.True(t, see().Unhealthy)
		require.Equal(t, nstance.Ready, see().State, "a condition beside the state")
		w.resumeAgents(ids...)
		w.advance(2 * time.Minute)
		require.False(t, see().Unhealthy)
		w.silenceAgents(ids[0])
		w.advance(5 * time.Minute)
		require.Equal(t, nstance.Draining, see().State)
		require.True(t, see().Unhealthy, "still unhealthy while it drains for it")
	})
}

func TestBreaker(t *testing.T) {
	play := func(t *testing.T, size, silent int, then func(t *testing.T, w *world, ids []nstance.InstanceID)) {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, simcloud.Options{})
			defer w.close()
			w.startLeader(webGroup(size))
			w.advance(5 * time.Minute)
			require.Len(t, w.ready(), size)
			ids := w.ready()[:silent]
			w.silenceAgents(ids...)
			w.advance(10 * time.Minute)
			then(t, w, ids)
		})
	}
	t.Run("few silent members are replaced", func(t *testing.T) {
		play(t, 10, 2, func(t *testing.T, w *world, ids []nstance.InstanceID) {
			require.False(t, w.hasHold(plan.HoldBreaker))
			for _, id := range ids {
				require.NotContains(t, w.ready(), id)
			}
			require.Len(t, w.ready(), 10)
		})
	})
	t.Run("many silent members are not replaced, with one alarm", func(t *testing.T) {
		play(t, 10, 3, func(t *testing.T, w *world, ids []nstance.InstanceID) {
			require.True(t, w.hasHold(plan.HoldBreaker))
			require.Zero(t, w.count(nstance.EventUnhealthy, ""))
			require.Len(t, w.cloud.Machines(), 10)
			alarm := w.first(nstance.EventAlarm, func(e nstance.Event) bool { return strings.Contains(e.Reason, "fell silent") })
			require.Equal(t, "silent members are not replaced: 3 of the shard's 10 members fell silent within one interval", alarm.Reason)
			require.Equal(t, 1, w.count(nstance.EventAlarm, ""), "one alarm")
		})
	})
	t.Run("members recover when they report again", func(t *testing.T) {
		play(t, 10, 5, func(t *testing.T, w *world, ids []nstance.InstanceID) {
			w.resumeAgents(ids...)
			w.advance(5 * time.Minute)
			require.False(t, w.hasHold(plan.HoldBreaker))
			require.Len(t, w.ready(), 10)
			require.Len(t, w.cloud.Machines(), 10)
		})
	})
	t.Run("replaced when few remain", func(t *testing.T) {
		play(t, 10, 5, func(t *testing.T, w *world, ids []nstance.InstanceID) {
			w.resumeAgents(ids[:3]...)
			w.advance(20 * time.Minute)
			require.False(t, w.hasHold(plan.HoldBreaker))
			require.Subset(t, w.ready(), ids[:3])
			for _, id := range ids[3:] {
				require.NotContains(t, w.ready(), id)
			}
		})
	})
	t.Run("last recovering members are not replaced", func(t *testing.T) {
		play(t, 10, 10, func(t *testing.T, w *world, ids []nstance.InstanceID) {
			w.resumeAgents(ids[2:]...)
			for range 70 {
				if !w.breakerHolds() {
					break
				}
				w.advance(time.Second)
			}
			require.True(t, w.hasHold(plan.HoldBreaker), "the others have time to recover")
			w.resumeAgents(ids[:2]...)
			w.advance(20 * time.Minute)
			require.False(t, w.hasHold(plan.HoldBreaker))
			require.ElementsMatch(t, ids, w.ready())
		})
	})
	t.Run("they have one report interval, each time anew", func(t *testing.T) {
		play(t, 10, 10, func(t *testing.T, w *world, ids []nstance.InstanceID) {
			until := func(holds bool) {
				for range 120 {
					if w.breakerHolds() == holds {
						return
					}
					w.advance(time.Second)
				}
				require.Equal(t, holds, w.breakerHolds())
			}
			for range 2 {
				w.resumeAgents(ids[2:]...)
				until(false)
				w.silenceAgents(ids[2:]...) // before that time is over
				until(true)
				require.True(t, w.hasHold(plan.HoldBreaker))
			}
			w.resumeAgents(ids[2:]...)
			until(false)
			held := 0
			for ; held < 300 && w.hasHold(plan.HoldBreaker); held++ {
				w.advance(time.Second)
			}
			require.GreaterOrEqual(t, held, 60, "an interval and its jitter, in seconds")
			require.LessOrEqual(t, held, 80)
			w.advance(20 * time.Minute)
			require.Subset(t, w.ready(), ids[2:])
			for _, id := range ids[:2] {
				require.NotContains(t, w.ready(), id)
			}
		})
	})
	t.Run("majority of a small group", func(t *testing.T) {
		play(t, 3, 2, func(t *testing.T, w *world, _ []nstance.InstanceID) {
			require.True(t, w.hasHold(plan.HoldBreaker))
			require.Len(t, w.cloud.Machines(), 3)
		})
	})
	t.Run("notices and vanished machines are never held", func(t *testing.T) {
		play(t, 10, 5, func(t *testing.T, w *world, ids []nstance.InstanceID) {
			require.NoError(t, w.cloud.Kill(ids[0]))
			noticed := w.ready()[9]
			require.NoError(t, w.cloud.Reclaim(noticed, 5*time.Minute))
			w.advance(10 * time.Minute)
			require.NotContains(t, w.in(nstance.Booting), ids[0])
			require.NotContains(t, w.ready(), noticed)
			require.Len(t, w.cloud.Machines(), 10)
		})
	})
}

func TestBreakerSpread(t *testing.T) {
	bubble(t, func(t *testing.T) { // one silent member every few hours is no outage
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.startLeader(webGroup(10))
		w.advance(5 * time.Minute)
		ids := w.ready()
		for _, id := range ids[:5] {
			w.silenceAgents(id)
			w.advance(15 * time.Minute)
			require.NotContains(t, w.ready(), id)
			require.False(t, w.hasHold(plan.HoldBreaker))
		}
		require.Len(t, w.ready(), 10)
	})
}

// TestBreakerCounts: what is no member that should report neither trips the breaker nor keeps it from
// tripping, and neither do members that fall silent one after another.
func TestBreakerCounts(t *testing.T) {
	// silent starts a group and silences some of what there is; the first one is a member.
	silent := func(t *testing.T, size int, before func(w *world) []nstance.InstanceID, held bool) {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, simcloud.Options{})
			defer w.close()
			w.startLeader(webGroup(size))
			w.advance(5 * time.Minute)
			id := w.ready()[size-1]
			w.silenceAgents(append(before(w), id)...)
			w.advance(15 * time.Minute) // two drains until their deadline, one after the other
			require.Equal(t, held, w.count(nstance.EventAlarm, "") > 0, "an alarm says that it has tripped")
			require.Equal(t, held, w.exists(id))
		})
	}
	members := func(n int) func(w *world) []nstance.InstanceID {
		return func(w *world) []nstance.InstanceID { return w.ready()[:n] }
	}
	t.Run("two of two", func(t *testing.T) { silent(t, 2, members(1), false) })
	t.Run("two of three", func(t *testing.T) { silent(t, 3, members(1), true) })
	t.Run("two of four", func(t *testing.T) { silent(t, 4, members(1), false) })
	t.Run("three of seven", func(t *testing.T) { silent(t, 7, members(2), true) })
	t.Run("instances by request", func(t *testing.T) {
		silent(t, 4, func(w *world) []nstance.InstanceID {
			return []nstance.InstanceID{w.readyOnDemand(), w.readyOnDemand(), w.readyOnDemand()}
		}, false)
	})
	t.Run("instances by request that report", func(t *testing.T) {
		silent(t, 3, func(w *world) []nstance.InstanceID {
			first := w.ready()[0]
			for range 3 {
				w.readyOnDemand()
			}
			return []nstance.InstanceID{first}
		}, true)
	})
	t.Run("what drains", func(t *testing.T) {
		silent(t, 6, func(w *world) []nstance.InstanceID {
			w.withholdDrainAcks()
			leaving := w.ready()[:2]
			for _, id := range leaving {
				_, err := w.r.Drain(w.ctx, id, "by hand")
				require.NoError(t, err)
			}
			w.advance(time.Second)
			return leaving
		}, false)
	})
	t.Run("one after another", func(t *testing.T) {
		withGroup(t, 12, simcloud.Options{}, func(t *testing.T, w *world) {
			w.advance(5 * time.Minute)
			w.withholdDrainAcks()
			for _, id := range w.ready()[:4] {
				w.silenceAgents(id)
				w.advance(110 * time.Second)
			}
			w.advance(5 * time.Minute)
			require.Zero(t, w.count(nstance.EventAlarm, ""))
		})
	})
}
