package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/attention"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// attentionFor returns what needs attention for one reason.
func (w *world) attentionFor(kind reconcile.AttentionKind) (out []reconcile.Attention) {
	r, _ := w.leader()
	for _, a := range r.Admin().Attention() {
		if a.Kind == kind {
			out = append(out, a)
		}
	}
	return out
}

func TestAttention(t *testing.T) {
	t.Run("idle group", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			require.Empty(t, w.r.Admin().Attention())
		})
	})
	t.Run("lists that fail for five minutes", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpList, Times: -1})
			w.advance(6 * time.Minute) // a full pass
			w.advance(5 * time.Minute)
			list := w.attentionFor("listing")
			require.Len(t, list, 1)
			require.Equal(t, "shard", list[0].Subject)
			require.Contains(t, list[0].Why, "injected fault")
			w.cloud.ClearFaults()
			w.advance(6 * time.Minute)
			require.Empty(t, w.r.Admin().Attention())
			w.requireMembers(3)
		})
	})
	t.Run("dead machine of a frozen group counts as gone", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			frozenAt := time.Now().UTC()
			require.NoError(t, w.r.Admin().Freeze(t.Context(), web, "audit"))
			dead := w.ready()[0]
			w.advance(time.Minute)
			diedAt := time.Now().UTC()
			require.NoError(t, w.cloud.Kill(dead))
			w.advance(30 * time.Minute)

			g := w.group()
			require.Equal(t, [3]int{2, 0, 1}, [3]int{g.Ready, g.Booting, g.Gone})
			require.Equal(t, []nstance.InstanceID{dead}, w.in(nstance.Gone))
			short := w.attentionFor("short")
			require.Len(t, short, 1)
			require.Equal(t, "group default/web", short[0].Subject)
			require.Equal(t, "2 of 3 members are ready, 1 gone", short[0].Why)
			require.False(t, short[0].Since.Before(diedAt))
			require.Less(t, short[0].Since.Sub(diedAt), 10*time.Minute)
			frozen := w.attentionFor(reconcile.AttentionKind(plan.HoldFrozen))
			require.Len(t, frozen, 1)
			require.Equal(t, frozenAt, frozen[0].Since)
			require.Contains(t, frozen[0].Why, "audit")
			require.Equal(t, "nstance-admin thaw group web", frozen[0].Remedy)
			require.Empty(t, attention.Problems(w.r.Admin().Attention()))

			require.NoError(t, w.r.Admin().Thaw(t.Context(), web, requester))
			w.advance(30 * time.Minute)
			require.Empty(t, w.r.Admin().Attention())
		})
	})
	t.Run("halted rollout: reason and remedy", func(t *testing.T) {
		withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			w.mu.Lock()
			w.badImage = func(spec nstance.MachineSpec) bool { return string(spec.UserData) == "bad" }
			w.mu.Unlock()
			w.setGroups(groupWithUserData(2, "bad"))
			w.advance(3 * time.Hour)
			halted := w.attentionFor(reconcile.AttentionKind(plan.HoldHalted))
			require.Len(t, halted, 1)
			require.Contains(t, halted[0].Remedy, "nstance-admin group resume web")
			require.Equal(t, nstance.GroupID("web"), halted[0].Group)
		})
	})
	t.Run("frozen shard is one entry", func(t *testing.T) {
		withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
			other := webGroup(1)
			other.Key.Group = "other"
			w.r.Observe(nstance.Desired{Groups: []nstance.Group{webGroup(1), other}})
			w.advance(5 * time.Minute)
			require.NoError(t, w.r.Admin().FreezeShard(t.Context(), "audit"))
			w.advance(10 * time.Minute)
			frozen := w.attentionFor(reconcile.AttentionKind(plan.HoldFrozen))
			require.Len(t, frozen, 1)
			require.Equal(t, "shard", frozen[0].Subject)
			require.Empty(t, frozen[0].Tenant)
		})
	})
	t.Run("machines without a record: deadline or decision", func(t *testing.T) {
		withSettledLeader(t, 3, func(t *testing.T, w *world) {
			id := w.createOrphan(10*time.Minute, nil)
			require.NoError(t, w.r.Admin().FreezeShard(t.Context(), "audit"))
			w.advance(20 * time.Minute)
			orphans := w.attentionFor("orphan")
			require.Len(t, orphans, 1)
			require.Equal(t, id, orphans[0].ID)
			require.Contains(t, orphans[0].Remedy, "nstance-admin orphan adopt "+string(id))
		})
	})
}

// TestUnknownLoadBalancer: a name that stands for no load balancer is not passed over.
func TestUnknownLoadBalancer(t *testing.T) {
	g := webGroup(1)
	g.Definition.LoadBalancers = []string{"web-prod"}
	withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		w.setGroups(g)
		w.advance(time.Minute)
		unknown := w.attentionFor("load_balancer")
		require.Len(t, unknown, 1)
		require.Equal(t, "no load balancer is named web-prod: no machine of the group joins it", unknown[0].Why)
	})
}
