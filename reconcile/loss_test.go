package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// whileBooting runs a test in a group of three whose machines take a minute to boot.
func whileBooting(t *testing.T, market nstance.MarketType, test func(t *testing.T, w *world, g nstance.Group)) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{Boot: simcloud.Delay{Min: time.Minute}})
		defer w.close()
		g := webGroup(3)
		g.Definition.InstanceTypes = []string{"small", "medium"}
		g.Definition.Market.Type = market
		test(t, w, g)
	})
}

// failureCount returns the failure count of the group's definition.
func (w *world) failureCount() int {
	return w.group().Failures + w.count(nstance.EventRolloutHalted, "")
}

func TestLossWhileBooting(t *testing.T) {
	for _, c := range []struct {
		cause  nstance.LossCause
		market nstance.MarketType
		then   map[string]int
	}{
		{nstance.LossReclaimed, nstance.Spot, map[string]int{"medium/spot": 3}},
		{nstance.LossCapacity, nstance.Spot, map[string]int{"medium/spot": 3}},
		{nstance.LossCapacity, nstance.OnDemand, map[string]int{"medium/on-demand": 3}},
		{nstance.LossQuota, nstance.OnDemand, map[string]int{"medium/on-demand": 3}},
		{nstance.LossHost, nstance.OnDemand, map[string]int{"small/on-demand": 3}},
		{nstance.LossRequested, nstance.OnDemand, map[string]int{"small/on-demand": 3}},
	} {
		t.Run(string(c.market)+" "+string(c.cause), func(t *testing.T) {
			whileBooting(t, c.market, func(t *testing.T, w *world, g nstance.Group) {
				w.startLeader(g)
				w.advance(10 * time.Second)
				for _, m := range w.cloud.Machines() {
					require.NoError(t, w.cloud.Terminate(m.ID, c.cause))
				}
				w.advance(time.Minute)
				require.Len(t, w.cloud.Machines(), 3, "replaced at once")
				require.Zero(t, w.failureCount())
				require.False(t, w.hasHold(plan.HoldBackoff))
				require.Equal(t, 3, w.count(nstance.EventReplacementRequested, ""))
				w.advance(2 * time.Minute)
				w.requireMembers(3)
				require.Equal(t, c.then, w.shapes(), "the capacity cache")
			})
		})
	}
}

func TestMachineThatCannotStartIsFailure(t *testing.T) {
	for _, c := range []struct {
		cause  nstance.LossCause
		market nstance.MarketType
	}{
		{nstance.LossInvalid, nstance.Spot},
		{nstance.LossGuest, nstance.Spot},
		{nstance.LossGuest, nstance.OnDemand},
		{"", nstance.OnDemand},
		{"", nstance.Spot}, // no word says that the cloud took it back
	} {
		t.Run(string(c.market)+" "+string(c.cause), func(t *testing.T) {
			whileBooting(t, c.market, func(t *testing.T, w *world, g nstance.Group) {
				w.startLeader(g)
				for range 30 {
					for _, m := range w.cloud.Machines() {
						_ = w.cloud.Terminate(m.ID, c.cause) // it may be stopped already
					}
					w.advance(time.Minute)
				}
				require.Equal(t, 1, w.count(nstance.EventRolloutHalted, ""))
				require.LessOrEqual(t, w.cloud.Count(simcloud.OpCreate), 15, "backed off")
			})
		})
	}
}

// TestRepeatedCreateOfLostMachine repeats a create whose answer was lost and whose
// machine is gone by then: the cloud refuses the ID.
func TestRepeatedCreateOfLostMachine(t *testing.T) {
	whileBooting(t, nstance.OnDemand, func(t *testing.T, w *world, g nstance.Group) {
		g.Size = 1
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Lost: true, Code: nstance.Ambiguous})
		w.startLeader(g)
		w.advance(200 * time.Millisecond) // the answer is lost
		require.Len(t, w.cloud.Machines(), 1)
		lost := w.cloud.Machines()[0].ID
		require.NoError(t, w.cloud.Kill(lost))
		w.advance(20 * time.Second)
		require.Len(t, w.cloud.Machines(), 1)
		require.NotEqual(t, lost, w.cloud.Machines()[0].ID)
		require.Zero(t, w.failureCount())
		require.False(t, w.hasHold(plan.HoldBackoff))
		w.advance(2 * time.Minute)
		w.requireMembers(1)
	})
}

func TestFirstCreateConflictIsFailure(t *testing.T) {
	whileBooting(t, nstance.OnDemand, func(t *testing.T, w *world, g nstance.Group) {
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Times: -1, Code: nstance.Conflict})
		w.startLeader(g)
		w.advance(10 * time.Minute)
		require.LessOrEqual(t, w.cloud.Count(simcloud.OpCreate), 12)
		require.True(t, w.hasHold(plan.HoldBackoff))
	})
}

// TestLossFoundByNewLeader: the machine dies between two terms.
func TestLossFoundByNewLeader(t *testing.T) {
	whileBooting(t, nstance.OnDemand, func(t *testing.T, w *world, g nstance.Group) {
		w.startLeader(g)
		w.advance(10 * time.Second)
		w.stopLeader()
		for _, m := range w.cloud.Machines() {
			require.NoError(t, w.cloud.Terminate(m.ID, nstance.LossHost))
		}
		w.startLeader(g)
		w.advance(20 * time.Second)
		require.Len(t, w.cloud.Machines(), 3)
		require.Zero(t, w.failureCount())
		w.advance(2 * time.Minute)
		w.requireMembers(3)
	})
}

// TestLossNamesCause: the journal and the recorded failure name the cause.
func TestLossNamesCause(t *testing.T) {
	whileBooting(t, nstance.OnDemand, func(t *testing.T, w *world, g nstance.Group) {
		g.Size, g.Definition.InstanceTypes = 1, []string{"small"}
		w.startLeader(g)
		w.advance(10 * time.Second)
		id := w.cloud.Machines()[0].ID
		require.NoError(t, w.cloud.Terminate(id, nstance.LossInvalid))
		w.advance(time.Minute)
		gone := w.first(nstance.EventMachineGone, func(e nstance.Event) bool { return e.Instance == id })
		require.Contains(t, gone.Reason, "invalid")
		require.Equal(t, 1, w.group().Failures)
		w.advance(10 * time.Second)
		for _, h := range w.group().Holds {
			if h.Kind == plan.HoldBackoff {
				require.Contains(t, h.Reason, "invalid")
			}
		}
	})
}
