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

func (w *world) setTuning(t reconcile.Tuning) {
	w.t.Helper()
	r, _ := w.leader()
	require.NoError(w.t, r.Admin().Tune(t))
}

func TestTuneAdmitsWaitingCreates(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.wrap = func(o *leaderEnv) {
			o.options = func(opts *reconcile.Options) { opts.Provider = &provider.Options{Rate: 0.001, Burst: 1} }
		}
		w.startLeader(webGroup(5))
		w.advance(time.Minute)
		require.Len(t, w.cloud.Machines(), 1)
		require.True(t, w.hasHold("budget"))

		w.setTuning(reconcile.Tuning{Provider: provider.Tuning{Rate: 10, Burst: 10}})
		w.advance(2 * time.Second)
		require.Len(t, w.cloud.Machines(), 5)
	})
}

func TestTuneHealthInterval(t *testing.T) {
	withGroup(t, 10, simcloud.Options{}, func(t *testing.T, w *world) {
		w.advance(2 * time.Minute)
		before := w.ready()
		require.Len(t, before, 10)
		w.setTuning(reconcile.Tuning{HealthInterval: 20 * time.Second})
		w.silenceAgents(before[0])
		w.advance(15 * time.Second)
		require.Equal(t, before, w.ready(), "unhealthy only after a whole interval")
		w.advance(75 * time.Second)
		require.Equal(t, 1, w.count(nstance.EventUnhealthy, before[0]), "three missed reports are a minute now")

		w.setTuning(reconcile.Tuning{HealthInterval: 10 * time.Minute})
		silent := w.ready()[0]
		w.silenceAgents(silent)
		w.advance(25 * time.Minute)
		require.Zero(t, w.count(nstance.EventUnhealthy, silent))
		w.advance(10 * time.Minute)
		require.Equal(t, 1, w.count(nstance.EventUnhealthy, silent))
	})
}

// TestTuneShorterInterval: agents that reported at the old interval have missed nothing.
func TestTuneShorterInterval(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		w.advance(2 * time.Minute)
		ids := w.ready()
		w.silenceAgents(ids...)
		w.advance(55 * time.Second)
		w.setTuning(reconcile.Tuning{HealthInterval: 10 * time.Second})
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
	withGroup(t, 10, simcloud.Options{}, func(t *testing.T, w *world) {
		w.advance(2 * time.Minute)
		w.silenceAgents(w.ready()[:4]...)
		w.advance(10 * time.Minute)
		require.True(t, w.hasHold(plan.HoldBreaker))
		w.setTuning(reconcile.Tuning{MaxUnhealthy: nstance.Count{N: 5}})
		w.advance(10 * time.Minute)
		require.False(t, w.hasHold(plan.HoldBreaker))
		require.Equal(t, 4, w.count(nstance.EventUnhealthy, ""))
	})
}

func TestTuneGarbageCollection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.wrap = func(o *leaderEnv) {
			o.options = func(opts *reconcile.Options) {
				opts.GC = reconcile.GC{Interval: 24 * time.Hour, RegistrationTimeout: 24 * time.Hour}
			}
		}
		w.startLeader(webGroup(5))
		w.advance(30 * time.Minute)
		id := w.createOrphan(10*time.Minute, nil)
		w.advance(time.Hour)
		require.True(t, w.exists(id))
		w.setTuning(reconcile.Tuning{GC: reconcile.GC{Interval: 5 * time.Second, RegistrationTimeout: time.Minute}})
		w.advance(15 * time.Second)
		require.False(t, w.exists(id), "the new interval applies to the current wait")
		w.requireMembers(5)
	})
}

func TestTuneRefusesInvalid(t *testing.T) {
	withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		r, _ := w.leader()
		require.ErrorIs(t, r.Admin().Tune(reconcile.Tuning{Provider: provider.Tuning{Burst: -1}}), nstance.Invalid)
	})
}
