package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
)

func TestImpact(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.startLeader(webGroup(4))
		w.advance(3 * time.Minute)
		require.Len(t, w.ready(), 4)
		impact := func(change func(*nstance.Group)) reconcile.Impact {
			g := webGroup(4)
			change(&g)
			r, _ := w.leader()
			got, err := r.Admin().Impact([]nstance.Group{g})
			require.NoError(t, err)
			return got
		}
		other := func(g *nstance.Group) { g.Definition.UserData.Content = "v2" }
		for name, c := range map[string]struct {
			change           func(*nstance.Group)
			removed, rotated int
		}{
			"nothing":                       {func(*nstance.Group) {}, 0, 0},
			"growth":                        {func(g *nstance.Group) { g.Size = 9 }, 0, 0},
			"a smaller size":                {func(g *nstance.Group) { g.Size = 1 }, 3, 0},
			"pushed values":                 {func(g *nstance.Group) { g.Definition.Vars = map[string]string{"a": "b"} }, 0, 0},
			"another definition":            {other, 0, 4},
			"each member is counted once":   {func(g *nstance.Group) { other(g); g.Size = 3 }, 1, 3},
			"unknown group":                 {func(g *nstance.Group) { other(g); g.Key.Group = "new" }, 0, 0},
			"age that no member has":        {func(g *nstance.Group) { g.Expiry = nstance.Expiry{EligibleAge: time.Hour, ForcedAge: time.Hour} }, 0, 0},
			"eligible age":                  {func(g *nstance.Group) { g.Expiry.EligibleAge = time.Minute }, 0, 4},
			"forced age":                    {func(g *nstance.Group) { g.Expiry.ForcedAge = time.Minute }, 0, 4},
			"forced age and a smaller size": {func(g *nstance.Group) { g.Expiry.ForcedAge, g.Size = time.Minute, 1 }, 3, 1},
			"on-demand age":                 {func(g *nstance.Group) { g.Expiry.OnDemandAge = time.Minute }, 0, 0},
		} {
			require.Equal(t, reconcile.Impact{Members: 4, Removed: c.removed, Rotated: c.rotated}, impact(c.change), name)
		}
		// Changes in progress are not counted.
		r, _ := w.leader()
		now := webGroup(2)
		other(&now)
		require.NoError(t, r.Admin().Freeze(t.Context(), web, "keep the members"))
		r.Observe(nstance.Desired{Groups: []nstance.Group{now}})
		require.Equal(t, reconcile.Impact{Members: 4}, impact(func(g *nstance.Group) { *g = now }))
		require.Equal(t, reconcile.Impact{Members: 4, Removed: 1}, impact(func(g *nstance.Group) { *g = now; g.Size = 1 }))
		require.Equal(t, reconcile.Impact{Members: 4}, impact(func(g *nstance.Group) { g.Size = 4 }), "reverting costs nothing")
		now.Expiry.EligibleAge = time.Minute
		r.Observe(nstance.Desired{Groups: []nstance.Group{now}})
		require.Equal(t, reconcile.Impact{Members: 4}, impact(func(g *nstance.Group) { *g = now }))
		require.Equal(t, reconcile.Impact{Members: 4, Rotated: 2}, impact(func(g *nstance.Group) { *g = now; g.Expiry.ForcedAge = time.Minute }),
			"forced at once; the other two are surplus already")
	})
	t.Run("instances on demand", func(t *testing.T) {
		withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			w.readyOnDemand()
			g := webGroup(1)
			i, err := w.r.Admin().Impact([]nstance.Group{g})
			require.NoError(t, err)
			require.Equal(t, reconcile.Impact{Members: 3, Removed: 1}, i, "not counted by size")
			g.Expiry.OnDemandAge = time.Minute
			i, err = w.r.Admin().Impact([]nstance.Group{g})
			require.NoError(t, err)
			require.Equal(t, reconcile.Impact{Members: 3, Removed: 2}, i)
			w.setGroups(g)
			i, err = w.r.Admin().Impact([]nstance.Group{g})
			require.NoError(t, err)
			require.Zero(t, i.Removed, "already draining")
		})
	})
}
