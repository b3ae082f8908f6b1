package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// TestRunningPool: stand-by machines that run on are ready at once, without any call to the
// provider.
func TestRunningPool(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g := pooledGroup(1)
		g.WarmPool.Mode = nstance.ParkRunning
		w := newPooledWorld(t, g)
		defer w.close()
		bridge := w.in(nstance.Parked)[0]
		w.lose(2 * time.Minute)
		w.advance(time.Second)
		require.Contains(t, w.ready(), bridge)
		w.advance(4 * time.Minute)
		require.Equal(t, []nstance.InstanceID{bridge}, w.in(nstance.Parked))
		require.Zero(t, w.cloud.Count(simcloud.OpPark)+w.cloud.Count(simcloud.OpWake))
	})
}

// TestSilentWhileItWaits: a stand-by machine of mode running whose agent does not report is made
// anew.
func TestSilentWhileItWaits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g := pooledGroup(1)
		g.WarmPool.Mode = nstance.ParkRunning
		w := newPooledWorld(t, g)
		defer w.close()
		silent := w.in(nstance.Parked)[0]
		w.silenceAgents(silent)
		w.advance(150 * time.Second)
		require.Equal(t, []nstance.InstanceID{silent}, w.in(nstance.Parked))
		w.advance(150 * time.Second)
		require.Equal(t, 1, w.count(nstance.EventDeleted, silent))
		e := w.first(nstance.EventDeleteRequested, func(e nstance.Event) bool { return e.Instance == silent })
		require.Contains(t, e.Reason, "unhealthy: no reports past the limit")
		w.advance(3 * time.Minute)
		require.Len(t, w.in(nstance.Parked), 1)
		require.Len(t, w.cloud.Machines(), 4)
		require.Zero(t, w.group().Failures, "it is no failure of the definition")
	})
}

// TestSilentAsItIsParked: an agent that has been silent since before its machine was parked has
// the whole limit again.
func TestSilentAsItIsParked(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g := pooledGroup(1)
		g.WarmPool.Mode = nstance.ParkRunning
		w := newPooledWorld(t, g)
		defer w.close()
		bridge := w.in(nstance.Parked)[0]
		require.NoError(t, w.claimed("n1"))
		w.advance(10 * time.Second)
		w.withholdDrainAcks()
		known, err := w.r.Admin().ReleaseStandby(w.ctx, web, "n1")
		require.NoError(t, err)
		require.True(t, known)
		w.advance(10 * time.Second)
		require.Equal(t, nstance.Draining, w.instance(bridge).State)
		w.silenceAgents(bridge)
		for w.instance(bridge).State != nstance.Parked {
			w.advance(time.Second) // until its drain is over
		}
		w.advance(2 * time.Minute)
		w.resumeAgents(bridge)
		w.advance(10 * time.Minute)
		require.Equal(t, nstance.Parked, w.instance(bridge).State)
		require.Zero(t, w.count(nstance.EventDeleteRequested, bridge))
	})
}

// TestSilentOneIsWokenLast: of two stand-by machines that run, the one that reports is woken.
func TestSilentOneIsWokenLast(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g := pooledGroup(2)
		g.WarmPool.Mode = nstance.ParkRunning
		w := newPooledWorld(t, g)
		defer w.close()
		parked := w.in(nstance.Parked)
		for _, silent := range parked {
			w.silenceAgents(silent)
			w.advance(100 * time.Second)
			w.lose(2 * time.Minute)
			w.advance(time.Second)
			require.Equal(t, []nstance.InstanceID{silent}, w.in(nstance.Parked))
			w.resumeAgents(silent)
			w.advance(10 * time.Minute)
			require.Equal(t, parked, w.in(nstance.Parked))
		}
	})
}
