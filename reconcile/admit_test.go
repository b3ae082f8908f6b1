package reconcile_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// TestPausedGroupLossesUseLastGoodType: a sold-out desired type does not delay
// replacements of the last good type.
func TestPausedGroupLossesUseLastGoodType(t *testing.T) {
	withGroup(t, 20, simcloud.Options{}, func(t *testing.T, w *world) {
		require.NoError(t, w.r.Admin().Pause(t.Context(), web, ""))
		w.cloud.SetCapacity(simcloud.Pool{InstanceType: "large"}, 0)
		next, other := webGroup(20), groupOf("b", "other", 2)
		next.Definition.InstanceTypes = []string{"large"}
		other.Definition.InstanceTypes = []string{"large"}
		w.setAllGroups(next, other)
		w.advance(time.Second)
		for _, id := range w.ready() {
			require.NoError(t, w.cloud.Reclaim(id, time.Minute))
		}
		w.advance(time.Second)
		require.Equal(t, 20, w.createsBegun(web, plan.ReasonReplace), "replaced at once")
		w.advance(3 * time.Minute)
		require.Equal(t, map[string]int{"small/spot": 20}, w.shapes())
	})
}

// TestScarceCapacityIsShared: losses of all groups are replaced before any group grows.
func TestScarceCapacityIsShared(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		var groups []nstance.Group
		for i := range 5 {
			groups = append(groups, groupOf(nstance.TenantID(fmt.Sprintf("t%d", i)), nstance.GroupID(fmt.Sprintf("g%d", i)), 2))
		}
		w.startLeader(groups...)
		w.advance(2 * time.Minute)
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
		w.setAllGroups(groups...)
		w.advance(time.Minute)
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
			w.advance(5 * time.Minute)
			require.Len(t, w.cloud.Machines(), 6+i)
			least, most := sizes()
			require.LessOrEqual(t, most-least, 2, "growth alternates between groups: %d machines", 6+i)
			if i < 5 {
				require.LessOrEqual(t, most, 2, "losses come before growth: %d machines", 6+i)
			}
		}
	})
}

// leadInBackoff brings a group of three to a long backoff for its fourth member.
func (w *world) leadInBackoff(g nstance.Group) {
	w.t.Helper()
	g.Definition.RegistrationTimeout, g.Rollout.HaltAfter = time.Minute, 0
	w.startLeader(g)
	w.advance(2 * time.Minute)
	require.Len(w.t, w.ready(), g.Size)
	w.mu.Lock()
	w.badImage = func(nstance.MachineSpec) bool { return true }
	w.mu.Unlock()
	g.Size++
	w.setAllGroups(g)
	for !w.hasHold(plan.HoldBackoff) || time.Until(w.hold(plan.HoldBackoff).Until) < 3*time.Minute {
		w.advance(5 * time.Second)
	}
	w.mu.Lock()
	w.badImage = nil
	w.mu.Unlock()
}

// TestLossTriesNextTypeDuringBackoff: in a group that backs off, a refused replacement
// tries the second type at once.
func TestLossTriesNextTypeDuringBackoff(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		g := webGroup(3)
		g.Definition.InstanceTypes = []string{"small", "large"}
		w.leadInBackoff(g)
		w.cloud.SetCapacity(small, 3)
		w.slowDrain = true
		require.NoError(t, w.cloud.Reclaim(w.ready()[0], 2*time.Minute))
		w.advance(2 * time.Second)
		require.Equal(t, 1, w.shapes()["large/spot"])
	})
}

// TestLossDuringBackoffSurvivesHandover: the leader stops after the drain is recorded
// and before the intent of the replacement is.
func TestLossDuringBackoffSurvivesHandover(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		faulty := storagetest.NewFaulty(w.store)
		w.store = faulty
		g := webGroup(3)
		w.leadInBackoff(g)
		w.slowDrain = true
		faulty.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Prefix: "instance/", Times: -1})
		require.NoError(t, w.cloud.Reclaim(w.ready()[0], 2*time.Minute))
		w.advance(2 * time.Second)
		before := len(w.cloud.Machines())
		w.stopLeader()
		faulty.ClearFaults()
		g.Size++
		g.Definition.RegistrationTimeout, g.Rollout.HaltAfter = time.Minute, 0
		w.startLeader(g)
		w.advance(2 * time.Second)
		require.Len(t, w.cloud.Machines(), before+1)
		require.True(t, w.hasHold(plan.HoldBackoff), "the other missing member still backs off")
	})
}

// TestLossBesideUnreadableRecord: a loss whose replacement is refused until its drain
// has ended is replaced when capacity returns.
func TestLossBesideUnreadableRecord(t *testing.T) {
	withGroup(t, 4, simcloud.Options{}, func(t *testing.T, w *world) {
		ids := w.ready()
		key := records.Ref{Shard: "s1", Tenant: web.Tenant, Group: web.Group, ID: ids[0]}.Key()
		obj, err := w.store.Get(w.ctx, key)
		require.NoError(t, err)
		_, err = w.store.PutIfMatch(w.ctx, key, []byte("{torn"), obj.Version)
		require.NoError(t, err)
		w.changeLeader(webGroup(4))
		w.cloud.SetCapacity(small, 0)
		require.NoError(t, w.cloud.Reclaim(ids[1], 30*time.Second))
		w.advance(10 * time.Minute)
		require.Len(t, w.cloud.Machines(), 3)
		w.cloud.SetCapacity(small, -1)
		w.advance(5 * time.Minute)
		require.Len(t, w.cloud.Machines(), 4)
		w.advance(20 * time.Minute)
		require.Len(t, w.cloud.Machines(), 4, "one replacement, not two")
	})
}

// TestIntentForPreservedMemberSurvivesHandover: the intent that replaces a preserved
// member is not surplus under a new leader and becomes a machine.
func TestIntentForPreservedMemberSurvivesHandover(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Times: -1})
		require.NoError(t, w.r.Admin().Preserve(t.Context(), w.ready()[0], time.Now().Add(2*time.Hour), ""))
		w.advance(30 * time.Second)
		require.Len(t, w.cloud.Machines(), 3)
		w.stopLeader()
		w.cloud.ClearFaults()
		w.startLeader(webGroup(3))
		w.advance(time.Minute)
		require.Len(t, w.cloud.Machines(), 4)
		w.advance(20 * time.Minute)
		require.Equal(t, 3, w.group().Ready)
		w.requireNoFailures()
	})
}

// TestHangingDeletesDelayNoReplacement: 300 deletes hang while a member is lost.
func TestHangingDeletesDelayNoReplacement(t *testing.T) {
	withGroup(t, 310, simcloud.Options{}, func(t *testing.T, w *world) {
		p := w.timing()
		w.changeLeader(webGroup(310))
		p.slow(false, true)
		w.setGroups(webGroup(10))
		w.advance(30 * time.Second)
		require.Len(t, w.in(nstance.Deleting), 300)
		began := time.Now()
		require.NoError(t, w.cloud.Reclaim(w.ready()[0], 5*time.Minute))
		w.advance(20 * time.Millisecond)
		called, _ := p.since(began)
		require.Equal(t, 1, called)
	})
}
