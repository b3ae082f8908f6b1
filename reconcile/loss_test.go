package reconcile_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// booting runs a group of three in whose machines something happens while they
// boot, which takes a minute.
func booting(t *testing.T, market nstance.MarketType, test func(t *testing.T, w *world, g nstance.Group)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{Boot: simcloud.Constant(time.Minute)})
		defer w.close()
		g := wanted(3)
		g.Definition.InstanceTypes = []string{"small", "medium"}
		g.Definition.Market.Type = market
		test(t, w, g)
	})
}

// blamed returns how many failures the group's definition is charged with.
func (w *world) blamed() int {
	return w.group().Failures + w.count(nstance.EventRolloutHalted, "")
}

func TestMachineTakenWhileBootingIsALoss(t *testing.T) {
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
		{"", nstance.Spot, map[string]int{"small/spot": 3}},
	} {
		t.Run(string(c.market)+" "+string(c.cause), func(t *testing.T) {
			booting(t, c.market, func(t *testing.T, w *world, g nstance.Group) {
				w.lead(g)
				w.passes(10 * time.Second)
				for _, m := range w.cloud.Machines() {
					require.NoError(t, w.cloud.Lose(m.ID, c.cause))
				}
				w.passes(time.Minute)
				require.Len(t, w.cloud.Machines(), 3, "replaced at once")
				require.Zero(t, w.blamed())
				require.False(t, w.holds(plan.HoldBackoff))
				require.Equal(t, 3, w.count(nstance.EventReplacementRequested, ""))
				w.passes(2 * time.Minute)
				w.agrees(3)
				require.Equal(t, c.then, w.shapes(), "what is known of the shape")
			})
		})
	}
}

func TestMachineThatCannotStartIsAFailure(t *testing.T) {
	for _, c := range []struct {
		cause  nstance.LossCause
		market nstance.MarketType
	}{
		{nstance.LossInvalid, nstance.Spot},
		{nstance.LossGuest, nstance.Spot},
		{nstance.LossGuest, nstance.OnDemand},
		{"", nstance.OnDemand},
	} {
		t.Run(string(c.market)+" "+string(c.cause), func(t *testing.T) {
			booting(t, c.market, func(t *testing.T, w *world, g nstance.Group) {
				w.lead(g)
				for range 30 {
					for _, m := range w.cloud.Machines() {
						_ = w.cloud.Lose(m.ID, c.cause) // it may be stopped already
					}
					w.passes(time.Minute)
				}
				require.Equal(t, 1, w.count(nstance.EventRolloutHalted, ""))
				require.LessOrEqual(t, w.cloud.Count(simcloud.OpCreate), 15, "backed off")
			})
		})
	}
}

// TestCreateOfMachineThatLived repeats a create whose answer was lost and whose
// machine is gone by then: the cloud refuses to make it again.
func TestCreateOfMachineThatLived(t *testing.T) {
	booting(t, nstance.OnDemand, func(t *testing.T, w *world, g nstance.Group) {
		g.Size = 1
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, When: simcloud.After, Code: nstance.Ambiguous})
		w.lead(g)
		w.passes(200 * time.Millisecond) // the answer is lost
		require.Len(t, w.cloud.Machines(), 1)
		lost := w.cloud.Machines()[0].ID
		require.NoError(t, w.cloud.Kill(lost))
		w.passes(20 * time.Second)
		require.Len(t, w.cloud.Machines(), 1)
		require.NotEqual(t, lost, w.cloud.Machines()[0].ID)
		require.Zero(t, w.blamed())
		require.False(t, w.holds(plan.HoldBackoff))
		w.passes(2 * time.Minute)
		w.agrees(1)
	})
}

func TestFirstCreateInConflictIsAFailure(t *testing.T) {
	booting(t, nstance.OnDemand, func(t *testing.T, w *world, g nstance.Group) {
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Times: -1, Code: nstance.Conflict})
		w.lead(g)
		w.passes(10 * time.Minute)
		require.LessOrEqual(t, w.cloud.Count(simcloud.OpCreate), 12)
		require.True(t, w.holds(plan.HoldBackoff))
	})
}

// TestLossKnownToNewLeader finds the machine dead in another term, in which
// nothing but the provider knows of it.
func TestLossKnownToNewLeader(t *testing.T) {
	booting(t, nstance.OnDemand, func(t *testing.T, w *world, g nstance.Group) {
		w.lead(g)
		w.passes(10 * time.Second)
		w.depose()
		for _, m := range w.cloud.Machines() {
			require.NoError(t, w.cloud.Lose(m.ID, nstance.LossHost))
		}
		w.lead(g)
		w.passes(20 * time.Second)
		require.Len(t, w.cloud.Machines(), 3)
		require.Zero(t, w.blamed())
		w.passes(2 * time.Minute)
		w.agrees(3)
	})
}

// TestLossSaysWhy promises that the journal and the failure on record name the
// cause.
func TestLossSaysWhy(t *testing.T) {
	booting(t, nstance.OnDemand, func(t *testing.T, w *world, g nstance.Group) {
		g.Size = 1
		w.lead(g)
		w.passes(10 * time.Second)
		id := w.cloud.Machines()[0].ID
		require.NoError(t, w.cloud.Lose(id, nstance.LossInvalid))
		w.passes(time.Minute)
		gone := w.first(nstance.EventMachineGone, func(e nstance.Event) bool { return e.Instance == id })
		require.Contains(t, gone.Reason, "invalid")
		require.Equal(t, 1, w.group().Failures)
		w.passes(10 * time.Second)
		for _, h := range w.group().Holds {
			if h.Kind == plan.HoldBackoff {
				require.Contains(t, h.Reason, "invalid")
			}
		}
	})
}
