package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// attention returns what needs attention for one reason.
func (w *world) attention(kind string) (out []reconcile.Attention) {
	r, _ := w.leader()
	for _, a := range r.Attention() {
		if a.Kind == kind {
			out = append(out, a)
		}
	}
	return out
}

func TestAttention(t *testing.T) {
	t.Run("a group at rest needs none", func(t *testing.T) {
		within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			require.Empty(t, w.r.Attention())
		})
	})
	t.Run("a dead machine of a frozen group is gone, not booting", func(t *testing.T) {
		within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			frozenAt := time.Now().UTC()
			require.NoError(t, w.r.Freeze(t.Context(), web, "audit"))
			dead := w.ready()[0]
			w.passes(time.Minute)
			diedAt := time.Now().UTC()
			require.NoError(t, w.cloud.Kill(dead))
			w.passes(30 * time.Minute)

			g := w.group()
			require.Equal(t, [3]int{2, 0, 1}, [3]int{g.Ready, g.Booting, g.Gone})
			require.Equal(t, []nstance.InstanceID{dead}, w.in(nstance.Gone))
			short := w.attention(reconcile.AttentionShort)
			require.Len(t, short, 1)
			require.Equal(t, "group default/web", short[0].Subject)
			require.Equal(t, "2 of 3 members are ready, 1 gone", short[0].Why)
			require.False(t, short[0].Since.Before(diedAt))
			require.Less(t, short[0].Since.Sub(diedAt), 10*time.Minute)
			frozen := w.attention(plan.HoldFrozen)
			require.Len(t, frozen, 1)
			require.Equal(t, frozenAt, frozen[0].Since)
			require.Contains(t, frozen[0].Why, "audit")
			require.Equal(t, "nstance-admin thaw group web", frozen[0].Remedy)
			require.Empty(t, reconcile.Problems(w.r.Attention()))

			require.NoError(t, w.r.Thaw(t.Context(), web, eve))
			w.passes(30 * time.Minute)
			require.Empty(t, w.r.Attention())
		})
	})
	t.Run("a halted rollout says so, and what ends it", func(t *testing.T) {
		within(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			w.mu.Lock()
			w.badImage = func(spec nstance.MachineSpec) bool { return string(spec.UserData) == "bad" }
			w.mu.Unlock()
			w.want(redefined(2, "bad"))
			w.passes(3 * time.Hour)
			halted := w.attention(plan.HoldHalted)
			require.Len(t, halted, 1)
			require.Contains(t, halted[0].Remedy, "nstance-admin group resume web")
			require.Equal(t, nstance.GroupID("web"), halted[0].Group)
		})
	})
	t.Run("a freeze of the shard is one entry, whatever the number of groups", func(t *testing.T) {
		within(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
			other := wanted(1)
			other.Key.Group = "other"
			w.r.Observe(nstance.Desired{Groups: []nstance.Group{wanted(1), other}})
			w.passes(5 * time.Minute)
			require.NoError(t, w.r.FreezeShard(t.Context(), "audit"))
			w.passes(10 * time.Minute)
			frozen := w.attention(plan.HoldFrozen)
			require.Len(t, frozen, 1)
			require.Equal(t, "shard", frozen[0].Subject)
			require.Empty(t, frozen[0].Tenant)
		})
	})
	t.Run("machines without a record say until when they are spared or who decides", func(t *testing.T) {
		settled(t, 3, func(t *testing.T, w *world) {
			id := w.stray(10*time.Minute, nil)
			require.NoError(t, w.r.FreezeShard(t.Context(), "audit"))
			w.passes(20 * time.Minute)
			orphans := w.attention(reconcile.AttentionOrphan)
			require.Len(t, orphans, 1)
			require.Equal(t, id, orphans[0].ID)
			require.Contains(t, orphans[0].Remedy, "nstance-admin orphan adopt "+string(id))
		})
	})
}
