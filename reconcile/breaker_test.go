package reconcile_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// hush makes agents say nothing any more, though their machines run.
func (w *world) hush(ids ...nstance.InstanceID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		w.broken[id] = true
	}
}

// speak undoes that.
func (w *world) speak(ids ...nstance.InstanceID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		delete(w.broken, id)
	}
}

// outage reports whether the breaker holds for members that are silent now.
func (w *world) outage() bool {
	for _, h := range w.group().Holds {
		if strings.Contains(h.Reason, "fell silent within") {
			return true
		}
	}
	return false
}

// TestUnhealthyIsAConditionOfItsOwn: silence for an interval is not yet that.
func TestUnhealthyIsAConditionOfItsOwn(t *testing.T) {
	within(t, 10, simcloud.Options{}, func(t *testing.T, w *world) {
		w.mu.Lock()
		w.slowDrain = true
		w.mu.Unlock()
		w.passes(10 * time.Second)
		ids := w.ready()[:4] // so many that the breaker holds
		w.hush(ids...)
		see := func() (v reconcile.InstanceView) {
			v, err := w.r.Instance(ids[0])
			require.NoError(t, err)
			return v
		}
		w.passes(150 * time.Second)
		require.True(t, see().Silent)
		require.False(t, see().Unhealthy)
		w.passes(3 * time.Minute)
		require.True(t, see().Unhealthy)
		require.Equal(t, nstance.Ready, see().State, "beside its state")
		w.speak(ids...)
		w.passes(2 * time.Minute)
		require.False(t, see().Unhealthy)
		w.hush(ids[0])
		w.passes(5 * time.Minute)
		require.Equal(t, nstance.Draining, see().State)
		require.True(t, see().Unhealthy, "while it leaves for that, too")
	})
}

func TestBreaker(t *testing.T) {
	play := func(t *testing.T, size, silent int, then func(t *testing.T, w *world, ids []nstance.InstanceID)) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, simcloud.Options{})
			defer w.close()
			w.lead(wanted(size))
			w.passes(5 * time.Minute)
			require.Len(t, w.ready(), size)
			ids := w.ready()[:silent]
			w.hush(ids...)
			w.passes(10 * time.Minute)
			then(t, w, ids)
		})
	}
	t.Run("a few that fall silent are replaced", func(t *testing.T) {
		play(t, 10, 2, func(t *testing.T, w *world, ids []nstance.InstanceID) {
			require.False(t, w.holds(plan.HoldBreaker))
			for _, id := range ids {
				require.NotContains(t, w.ready(), id)
			}
			require.Len(t, w.ready(), 10)
		})
	})
	t.Run("many at once are not, and that is said", func(t *testing.T) {
		play(t, 10, 3, func(t *testing.T, w *world, ids []nstance.InstanceID) {
			require.True(t, w.holds(plan.HoldBreaker))
			require.Zero(t, w.count(nstance.EventUnhealthy, ""))
			require.Len(t, w.cloud.Machines(), 10)
			said := w.first(nstance.EventAlarm, func(e nstance.Event) bool { return strings.Contains(e.Reason, "fell silent") })
			require.Equal(t, "silent members are not replaced: 3 of the shard's 10 members fell silent within one interval", said.Reason)
			require.Equal(t, 1, w.count(nstance.EventAlarm, ""), "once")
		})
	})
	t.Run("they are well again when they speak", func(t *testing.T) {
		play(t, 10, 5, func(t *testing.T, w *world, ids []nstance.InstanceID) {
			w.speak(ids...)
			w.passes(5 * time.Minute)
			require.False(t, w.holds(plan.HoldBreaker))
			require.Len(t, w.ready(), 10)
			require.Len(t, w.cloud.Machines(), 10)
		})
	})
	t.Run("when few are left, those are replaced", func(t *testing.T) {
		play(t, 10, 5, func(t *testing.T, w *world, ids []nstance.InstanceID) {
			w.speak(ids[:3]...)
			w.passes(20 * time.Minute)
			require.False(t, w.holds(plan.HoldBreaker))
			require.Subset(t, w.ready(), ids[:3])
			for _, id := range ids[3:] {
				require.NotContains(t, w.ready(), id)
			}
		})
	})
	t.Run("those that come back last are not", func(t *testing.T) {
		play(t, 10, 10, func(t *testing.T, w *world, ids []nstance.InstanceID) {
			w.speak(ids[2:]...)
			for range 70 {
				if !w.outage() {
					break
				}
				w.passes(time.Second)
			}
			require.True(t, w.holds(plan.HoldBreaker), "the others have time to come back")
			w.speak(ids[:2]...)
			w.passes(20 * time.Minute)
			require.False(t, w.holds(plan.HoldBreaker))
			require.ElementsMatch(t, ids, w.ready())
		})
	})
	t.Run("the majority of a small group", func(t *testing.T) {
		play(t, 3, 2, func(t *testing.T, w *world, _ []nstance.InstanceID) {
			require.True(t, w.holds(plan.HoldBreaker))
			require.Len(t, w.cloud.Machines(), 3)
		})
	})
	t.Run("notices and machines that are gone are never held", func(t *testing.T) {
		play(t, 10, 5, func(t *testing.T, w *world, ids []nstance.InstanceID) {
			require.NoError(t, w.cloud.Kill(ids[0]))
			noticed := w.ready()[9]
			require.NoError(t, w.cloud.Reclaim(noticed, 5*time.Minute))
			w.passes(10 * time.Minute)
			require.NotContains(t, w.in(nstance.Booting), ids[0])
			require.NotContains(t, w.ready(), noticed)
			require.Len(t, w.cloud.Machines(), 10)
		})
	})
}

func TestBreakerSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // one after the other, hours apart, is no outage
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.lead(wanted(10))
		w.passes(5 * time.Minute)
		ids := w.ready()
		for _, id := range ids[:5] {
			w.hush(id)
			w.passes(15 * time.Minute)
			require.NotContains(t, w.ready(), id)
			require.False(t, w.holds(plan.HoldBreaker))
		}
		require.Len(t, w.ready(), 10)
	})
}
