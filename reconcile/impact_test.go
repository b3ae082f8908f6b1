package reconcile_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
)

func TestImpact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.lead(wanted(4))
		w.passes(3 * time.Minute)
		require.Len(t, w.ready(), 4)
		impact := func(change func(*nstance.Group)) reconcile.Impact {
			g := wanted(4)
			change(&g)
			r, _ := w.leader()
			got, err := r.Impact([]nstance.Group{g})
			require.NoError(t, err)
			return got
		}
		other := func(g *nstance.Group) { g.Definition.UserData.Content = "v2" }
		for name, c := range map[string]struct {
			change           func(*nstance.Group)
			removed, rotated int
		}{
			"nothing":                     {func(*nstance.Group) {}, 0, 0},
			"growth":                      {func(g *nstance.Group) { g.Size = 9 }, 0, 0},
			"a smaller size":              {func(g *nstance.Group) { g.Size = 1 }, 3, 0},
			"what is pushed":              {func(g *nstance.Group) { g.Definition.Vars = map[string]string{"a": "b"} }, 0, 0},
			"another definition":          {other, 0, 4},
			"nobody is counted twice":     {func(g *nstance.Group) { other(g); g.Size = 3 }, 1, 3},
			"an unknown group costs none": {func(g *nstance.Group) { other(g); g.Key.Group = "new" }, 0, 0},
			"an age that nobody has":      {func(g *nstance.Group) { g.Expiry = nstance.Expiry{EligibleAge: time.Hour, ForcedAge: time.Hour} }, 0, 0},
			"an age to go in turn":        {func(g *nstance.Group) { g.Expiry.EligibleAge = time.Minute }, 0, 4},
			"an age to go at once":        {func(g *nstance.Group) { g.Expiry.ForcedAge = time.Minute }, 0, 4},
			"an age, and a smaller size":  {func(g *nstance.Group) { g.Expiry.ForcedAge, g.Size = time.Minute, 1 }, 3, 1},
			"an age of others":            {func(g *nstance.Group) { g.Expiry.OnDemandAge = time.Minute }, 0, 0},
		} {
			require.Equal(t, reconcile.Impact{Members: 4, Removed: c.removed, Rotated: c.rotated}, impact(c.change), name)
		}
		// What goes on already is no part of it.
		r, _ := w.leader()
		now := wanted(2)
		other(&now)
		require.NoError(t, r.Freeze(t.Context(), web, "nobody leaves while it is counted"))
		r.Observe(nstance.Desired{Groups: []nstance.Group{now}})
		require.Equal(t, reconcile.Impact{Members: 4}, impact(func(g *nstance.Group) { *g = now }))
		require.Equal(t, reconcile.Impact{Members: 4, Removed: 1}, impact(func(g *nstance.Group) { *g = now; g.Size = 1 }))
		require.Equal(t, reconcile.Impact{Members: 4}, impact(func(g *nstance.Group) { g.Size = 4 }), "going back costs nothing")
		now.Expiry.EligibleAge = time.Minute
		r.Observe(nstance.Desired{Groups: []nstance.Group{now}})
		require.Equal(t, reconcile.Impact{Members: 4}, impact(func(g *nstance.Group) { *g = now }))
		require.Equal(t, reconcile.Impact{Members: 4, Rotated: 2}, impact(func(g *nstance.Group) { *g = now; g.Expiry.ForcedAge = time.Minute }),
			"at once, no longer in turn; the other two are surplus already")
	})
	t.Run("instances by request", func(t *testing.T) {
		within(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			w.ordered()
			g := wanted(1)
			i, err := w.r.Impact([]nstance.Group{g})
			require.NoError(t, err)
			require.Equal(t, reconcile.Impact{Members: 3, Removed: 1}, i, "a size is not theirs")
			g.Expiry.OnDemandAge = time.Minute
			i, err = w.r.Impact([]nstance.Group{g})
			require.NoError(t, err)
			require.Equal(t, reconcile.Impact{Members: 3, Removed: 2}, i)
			w.want(g)
			i, err = w.r.Impact([]nstance.Group{g})
			require.NoError(t, err)
			require.Zero(t, i.Removed, "it goes already")
		})
	})
}
