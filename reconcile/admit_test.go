package reconcile_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// TestLossesOfAPausedGroupAreOfItsLastGoodType: that the desired type is sold out
// delays no replacement of another.
func TestLossesOfAPausedGroupAreOfItsLastGoodType(t *testing.T) {
	within(t, 20, simcloud.Options{}, func(t *testing.T, w *world) {
		require.NoError(t, w.r.Pause(t.Context(), web, ""))
		w.cloud.SetCapacity(simcloud.Pool{InstanceType: "large"}, 0)
		next, other := wanted(20), of("b", "other", 2)
		next.Definition.InstanceTypes = []string{"large"}
		other.Definition.InstanceTypes = []string{"large"}
		w.wants(next, other)
		w.passes(time.Second)
		for _, id := range w.ready() {
			require.NoError(t, w.cloud.Reclaim(id, time.Minute))
		}
		w.passes(time.Second)
		require.Equal(t, 20, w.made(web, plan.ReasonReplace), "all at once")
		w.passes(3 * time.Minute)
		require.Equal(t, map[string]int{"small/spot": 20}, w.shapes())
	})
}

// TestRoomForOneMachineAtATime serves the losses of all groups before any growth.
func TestRoomForOneMachineAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		var groups []nstance.Group
		for i := range 5 {
			groups = append(groups, of(nstance.TenantID(fmt.Sprintf("t%d", i)), nstance.GroupID(fmt.Sprintf("g%d", i)), 2))
		}
		w.lead(groups...)
		w.passes(2 * time.Minute)
		require.Len(t, w.ready(), 10)
		w.cloud.SetCapacity(small, 5)
		lost := map[nstance.GroupID]bool{}
		for _, m := range w.cloud.Machines() {
			spec, _ := w.cloud.Spec(m.ID)
			if !lost[spec.Group] {
				lost[spec.Group] = true
				require.NoError(t, w.cloud.Reclaim(m.ID, time.Second))
			}
		}
		for i := range groups {
			groups[i].Size = 4
		}
		w.wants(groups...)
		w.passes(time.Minute)
		sizes := func() (least, most int) {
			count := map[nstance.GroupID]int{}
			for _, m := range w.cloud.Machines() {
				spec, _ := w.cloud.Spec(m.ID)
				count[spec.Group]++
			}
			least = 100
			for _, g := range groups {
				least, most = min(least, count[g.Key.Group]), max(most, count[g.Key.Group])
			}
			return least, most
		}
		for i := range 15 {
			w.cloud.SetCapacity(small, 6+i)
			w.passes(5 * time.Minute)
			require.Len(t, w.cloud.Machines(), 6+i)
			least, most := sizes()
			require.LessOrEqual(t, most-least, 2, "growth takes turns: %d machines", 6+i)
			if i < 5 {
				require.LessOrEqual(t, most, 2, "losses come before growth: %d machines", 6+i)
			}
		}
	})
}

// backingOff brings a group of three whose fourth member fails to a long backoff.
func (w *world) backingOff(g nstance.Group) {
	w.t.Helper()
	g.Definition.RegistrationTimeout, g.Rollout.HaltAfter = time.Minute, 0
	w.lead(g)
	w.passes(2 * time.Minute)
	require.Len(w.t, w.ready(), g.Size)
	w.mu.Lock()
	w.badImage = func(nstance.MachineSpec) bool { return true }
	w.mu.Unlock()
	g.Size++
	w.wants(g)
	for !w.holds(plan.HoldBackoff) || time.Until(w.hold(plan.HoldBackoff).Until) < 3*time.Minute {
		w.passes(5 * time.Second)
	}
	w.mu.Lock()
	w.badImage = nil
	w.mu.Unlock()
}

// TestRefusedReplacementWaitsForNoBackoff: a loss in a group that backs off is
// answered by the second type where the first is refused.
func TestRefusedReplacementWaitsForNoBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		g := wanted(3)
		g.Definition.InstanceTypes = []string{"small", "large"}
		w.backingOff(g)
		w.cloud.SetCapacity(small, 3)
		w.slowDrain = true
		require.NoError(t, w.cloud.Reclaim(w.ready()[0], 2*time.Minute))
		w.passes(2 * time.Second)
		require.Equal(t, 1, w.shapes()["large/spot"])
	})
}

// TestLossDuringABackoffOutlivesItsLeader dies after the drain is on record and
// before the intent of the replacement is.
func TestLossDuringABackoffOutlivesItsLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		faulty := storagetest.NewFaulty(w.store)
		w.store = faulty
		g := wanted(3)
		w.backingOff(g)
		w.slowDrain = true
		faulty.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Prefix: "instance/", Times: -1})
		require.NoError(t, w.cloud.Reclaim(w.ready()[0], 2*time.Minute))
		w.passes(2 * time.Second)
		before := len(w.cloud.Machines())
		w.depose()
		faulty.Heal()
		g.Size++
		g.Definition.RegistrationTimeout, g.Rollout.HaltAfter = time.Minute, 0
		w.lead(g)
		w.passes(2 * time.Second)
		require.Len(t, w.cloud.Machines(), before+1)
		require.True(t, w.holds(plan.HoldBackoff), "which the other missing member waits for")
	})
}

// TestLossBesideAnUnreadableRecord: a loss whose replacement is refused until its
// drain is long over is made good when there is capacity again.
func TestLossBesideAnUnreadableRecord(t *testing.T) {
	within(t, 4, simcloud.Options{}, func(t *testing.T, w *world) {
		ids := w.ready()
		key := storage.Ref{Shard: "s1", Tenant: web.Tenant, Group: web.Group, ID: ids[0]}.Key()
		obj, err := w.store.Get(w.ctx, key)
		require.NoError(t, err)
		_, err = w.store.PutIfMatch(w.ctx, key, []byte("{torn"), obj.Version)
		require.NoError(t, err)
		w.succeeds(wanted(4))
		w.cloud.SetCapacity(small, 0)
		require.NoError(t, w.cloud.Reclaim(ids[1], 30*time.Second))
		w.passes(10 * time.Minute)
		require.Len(t, w.cloud.Machines(), 3)
		w.cloud.SetCapacity(small, -1)
		w.passes(5 * time.Minute)
		require.Len(t, w.cloud.Machines(), 4)
		w.passes(20 * time.Minute)
		require.Len(t, w.cloud.Machines(), 4, "and no more than that")
	})
}

// TestIntentBesideAPreservedMember: the intent that replaces a preserved member is
// no surplus under a new leader, and becomes a machine.
func TestIntentBesideAPreservedMember(t *testing.T) {
	within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Times: -1})
		require.NoError(t, w.r.Preserve(t.Context(), w.ready()[0], time.Now().Add(2*time.Hour), ""))
		w.passes(30 * time.Second)
		require.Len(t, w.cloud.Machines(), 3)
		w.depose()
		w.cloud.Heal()
		w.lead(wanted(3))
		w.passes(time.Minute)
		require.Len(t, w.cloud.Machines(), 4)
		w.passes(20 * time.Minute)
		require.Equal(t, 3, w.group().Ready)
		w.blameless()
	})
}

// TestDeletesHoldUpNoReplacement: 300 of them hang.
func TestDeletesHoldUpNoReplacement(t *testing.T) {
	within(t, 310, simcloud.Options{}, func(t *testing.T, w *world) {
		p := w.timing()
		w.succeeds(wanted(310))
		p.slow(false, true)
		w.want(wanted(10))
		w.passes(30 * time.Second)
		require.Len(t, w.in(nstance.Deleting), 300)
		began := time.Now()
		require.NoError(t, w.cloud.Reclaim(w.ready()[0], 5*time.Minute))
		w.passes(20 * time.Millisecond)
		called, _ := p.since(began)
		require.Equal(t, 1, called)
	})
}
