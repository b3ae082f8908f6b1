package reconcile_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/attention"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// reportsAs has the test report for an agent, whose probes pass or not.
func (w *world) reportsAs(id nstance.InstanceID, well bool) {
	r, _ := w.leader()
	r.Observe(nstance.Reported{Report: nstance.Report{InstanceID: id, Timestamp: time.Now(), CanDrain: true, Probes: []nstance.ProbeResult{{Name: "serves", OK: well}}}})
	w.advance(time.Second)
}

// longAwake has a pool of one whose machine is awake for longer than its launch timeout of two
// minutes, for a node of others.
func longAwake(t *testing.T, test func(t *testing.T, w *world, g nstance.Group, bridge nstance.InstanceID)) {
	bubble(t, func(t *testing.T) {
		g := pooledGroup(1)
		g.Definition.LaunchTimeout, g.Definition.RegistrationTimeout = 2*time.Minute, 2*time.Minute
		w := newPooledWorld(t, g)
		defer w.close()
		bridge := w.in(nstance.Parked)[0]
		require.NoError(t, w.claimed("n1"))
		w.advance(5 * time.Minute)
		require.Contains(t, w.ready(), bridge)
		test(t, w, g, bridge)
	})
}

// TestAwakeUnderTheNextLeader: a machine that a former leader woke has been ready, as far as the
// next one knows: its agent may need longer than a launch timeout to come back.
func TestAwakeUnderTheNextLeader(t *testing.T) {
	longAwake(t, func(t *testing.T, w *world, g nstance.Group, bridge nstance.InstanceID) {
		w.silenceAgents(bridge)
		w.stopLeader()
		w.startLeader(g)
		w.advance(150 * time.Second)
		w.resumeAgents(bridge)
		w.advance(2 * time.Minute)
		require.Contains(t, w.ready(), bridge)
		require.Zero(t, w.count(nstance.EventDeleteRequested, ""))
	})
}

// TestNeededAgainUnderTheNextLeader: a machine that was awake and goes back to the pool was ready
// when it was woken: when it is needed again, the next leader gives it time to be well.
func TestNeededAgainUnderTheNextLeader(t *testing.T) {
	longAwake(t, func(t *testing.T, w *world, g nstance.Group, bridge nstance.InstanceID) {
		w.withholdDrainAcks()
		known, err := w.r.Admin().ReleaseStandby(w.ctx, web, "n1")
		require.NoError(t, err)
		require.True(t, known)
		w.advance(10 * time.Second)
		require.Equal(t, nstance.Draining, w.instance(bridge).State)
		w.silenceAgents(bridge) // the test stands in for it
		w.stopLeader()
		w.startLeader(g)
		w.advance(10 * time.Second)
		w.reportsAs(bridge, false)
		require.NoError(t, w.claimed("n2"))
		w.advance(time.Minute)
		require.Equal(t, 1, w.count(nstance.EventDrainCancelled, bridge))
		w.reportsAs(bridge, true)
		require.Contains(t, w.ready(), bridge)
		require.Zero(t, w.count(nstance.EventDeleteRequested, ""))
	})
}

// TestParkedOnRecordFirst: a machine that stops before it is on record that it sleeps is not
// shown as parked: the next leader would take it for lost.
func TestParkedOnRecordFirst(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newPooledWorld(t, pooledGroup(1))
		defer w.close()
		faulty := storagetest.NewFaulty(w.store)
		w.store = faulty
		w.changeLeader(pooledGroup(1))
		bridge := w.in(nstance.Parked)[0]
		w.withholdDrainAcks()
		w.lose(2 * time.Minute)
		w.advance(5 * time.Minute)
		require.Equal(t, nstance.Draining, w.instance(bridge).State)
		parked := w.count(nstance.EventParked, bridge)
		faulty.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: "instance/", Times: -1})
		w.slow(false)
		w.advance(time.Minute)
		require.NoError(t, w.cloud.Stop(bridge, nstance.StatusStopped))
		w.advance(6 * time.Minute) // until the machines were listed
		require.Equal(t, nstance.Parking, w.instance(bridge).State)
		require.Equal(t, parked, w.count(nstance.EventParked, bridge))
		faulty.ClearFaults()
		w.advance(time.Minute)
		require.Equal(t, nstance.Parked, w.instance(bridge).State)
		require.Equal(t, parked+1, w.count(nstance.EventParked, bridge))
	})
}

// TestParkedAgainBehindABalancer: each time that a machine is to sleep, its load balancers have
// their time to let it go.
func TestParkedAgainBehindABalancer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var over atomic.Bool
		w := newBalancedPool(t, &over)
		defer w.close()
		bridge := w.in(nstance.Parked)[0]
		for range 2 {
			w.lose(2 * time.Minute)
			w.advance(20 * time.Second)
			require.True(t, w.isBalanced("lb-1", bridge))
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpLeave, ID: "lb-1", Times: 4, Code: nstance.Internal})
			attached := false
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpPark, Keep: true, Do: func() { attached = w.isBalanced("lb-1", bridge) }})
			w.advance(5 * time.Minute)
			require.Equal(t, []nstance.InstanceID{bridge}, w.in(nstance.Parked))
			require.False(t, attached, "it was stopped while it was sent traffic")
		}
		require.Zero(t, w.alarms("withdrawn"))
	})
}

// TestParkedByTheNextLeader: a leader that has not seen the machine that is to sleep asks for it,
// rather than to wait until machines can be listed: then it knows what to withdraw.
func TestParkedByTheNextLeader(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var over atomic.Bool
		w := newBalancedPool(t, &over)
		defer w.close()
		bridge := w.in(nstance.Parked)[0]
		w.lose(2 * time.Minute)
		w.advance(20 * time.Second)
		for w.instance(bridge).State != nstance.Parking {
			w.advance(100 * time.Millisecond)
		}
		w.stopLeader()
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpList, Times: -1})
		w.startLeader(pooledOf(3, 1, "front"))
		w.advance(20 * time.Second)
		require.Equal(t, []nstance.InstanceID{bridge}, w.in(nstance.Parked))
		require.Empty(t, attention.Problems(w.r.Admin().Attention()))
		require.Zero(t, w.alarms("withdrawn"))
	})
}
