package reconcile_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/reconcile/plan"
)

func (w *world) tune(t reconcile.Tuning) {
	w.t.Helper()
	r, _ := w.leader()
	require.NoError(w.t, r.Tune(t))
}

func TestTuneLetsWaitingCreatesThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.wrap = func(o *office) {
			o.options = func(opts *reconcile.Options) { opts.Provider = &provider.Options{Rate: 0.001, Burst: 1} }
		}
		w.lead(wanted(5))
		w.passes(time.Minute)
		require.Len(t, w.cloud.Machines(), 1)
		require.True(t, w.holds("budget"))

		w.tune(reconcile.Tuning{Provider: provider.Tuning{Rate: 10, Burst: 10}})
		w.passes(2 * time.Second)
		require.Len(t, w.cloud.Machines(), 5)
	})
}

func TestTuneHealthInterval(t *testing.T) {
	within(t, 10, simcloud.Options{}, func(t *testing.T, w *world) {
		w.passes(2 * time.Minute)
		before := w.ready()
		require.Len(t, before, 10)
		w.tune(reconcile.Tuning{HealthInterval: 20 * time.Second})
		w.hush(before[0])
		w.passes(15 * time.Second)
		require.Equal(t, before, w.ready(), "a whole interval passes before anything bad is said")
		w.passes(75 * time.Second)
		require.Equal(t, 1, w.count(nstance.EventUnhealthy, before[0]), "three missed reports are a minute now")

		w.tune(reconcile.Tuning{HealthInterval: 10 * time.Minute})
		silent := w.ready()[0]
		w.hush(silent)
		w.passes(25 * time.Minute)
		require.Zero(t, w.count(nstance.EventUnhealthy, silent))
		w.passes(10 * time.Minute)
		require.Equal(t, 1, w.count(nstance.EventUnhealthy, silent))
	})
}

// Agents that are to report more often, and have reported as they were told
// before, have missed nothing.
func TestTuneForgivesTheOldPace(t *testing.T) {
	within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		w.passes(2 * time.Minute)
		ids := w.ready()
		w.hush(ids...)
		w.passes(55 * time.Second)
		w.tune(reconcile.Tuning{HealthInterval: 10 * time.Second})
		synctest.Wait()
		require.Equal(t, ids, w.ready())
		for _, v := range w.group().Holds {
			require.NotEqual(t, plan.HoldBreaker, v.Kind)
		}
		r, _ := w.leader()
		for _, v := range r.Instances() {
			require.False(t, v.Silent)
		}
	})
}

func TestTuneBreaker(t *testing.T) {
	within(t, 10, simcloud.Options{}, func(t *testing.T, w *world) {
		w.passes(2 * time.Minute)
		w.hush(w.ready()[:4]...)
		w.passes(10 * time.Minute)
		require.True(t, w.holds(plan.HoldBreaker))
		w.tune(reconcile.Tuning{MaxUnhealthy: nstance.Count{N: 5}})
		w.passes(10 * time.Minute)
		require.False(t, w.holds(plan.HoldBreaker))
		require.Equal(t, 4, w.count(nstance.EventUnhealthy, ""))
	})
}

func TestTuneCollection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.wrap = func(o *office) {
			o.options = func(opts *reconcile.Options) {
				opts.GC = reconcile.GC{Interval: 24 * time.Hour, RegistrationTimeout: 24 * time.Hour}
			}
		}
		w.lead(wanted(5))
		w.passes(30 * time.Minute)
		id := w.stray(10*time.Minute, nil)
		w.passes(time.Hour)
		require.True(t, w.exists(id))
		w.tune(reconcile.Tuning{GC: reconcile.GC{Interval: 5 * time.Second, RegistrationTimeout: time.Minute}})
		w.passes(15 * time.Second)
		require.False(t, w.exists(id), "the wait that was under way is the new one")
		w.agrees(5)
	})
}

func TestTuneRefuses(t *testing.T) {
	within(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		r, _ := w.leader()
		require.ErrorIs(t, r.Tune(reconcile.Tuning{Provider: provider.Tuning{Burst: -1}}), nstance.Invalid)
	})
}
