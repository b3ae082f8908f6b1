package reconcile_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// plan previews one group, and requires that the preview changes nothing.
func (w *world) plan(g nstance.Group) (reconcile.GroupPlan, bool) {
	w.t.Helper()
	synctest.Wait() // earlier requests are planned
	before, events := w.r.Groups(), len(w.events)
	plans, err := w.r.Admin().WhatIf([]nstance.Group{g}, false)
	require.NoError(w.t, err)
	again, err := w.r.Admin().WhatIf([]nstance.Group{g}, false)
	require.NoError(w.t, err)
	require.Equal(w.t, plans, again)
	require.Equal(w.t, before, w.r.Groups())
	require.Len(w.t, w.events, events)
	if len(plans) == 0 {
		return reconcile.GroupPlan{}, false
	}
	require.Len(w.t, plans, 1)
	return plans[0], true
}

// countActions counts instances by their planned action.
func countActions(p reconcile.GroupPlan) map[string]int {
	out := map[string]int{}
	for _, i := range p.Instances {
		out[string(i.Action)]++
	}
	return out
}

func field(t *testing.T, p reconcile.GroupPlan, path string) reconcile.FieldChange {
	t.Helper()
	i := slices.IndexFunc(p.Fields, func(f reconcile.FieldChange) bool { return f.Path == path })
	require.GreaterOrEqual(t, i, 0, "%s in %v", path, p.Fields)
	return p.Fields[i]
}

func TestWhatIf(t *testing.T) {
	t.Run("nothing", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			_, something := w.plan(webGroup(3))
			require.False(t, something)
		})
	})
	t.Run("a definition", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			next := groupWithUserData(3, "v2")
			next.Rollout.MinReady = time.Minute
			p, _ := w.plan(next)
			require.Equal(t, reconcile.ChangeChanged, p.Change)
			require.Equal(t, map[string]int{"replace": 3}, countActions(p))
			require.Equal(t, "its definition changes: userdata.content", p.Instances[0].Reason)
			require.Equal(t, 3, p.Creates)
			f := field(t, p, "userdata.content")
			require.Equal(t, reconcile.EffectReplace, f.Effect)
			require.Equal(t, "2 bytes, sha256 3bfc269594ef", f.Before, "shows a hash, not the template")
			require.Equal(t, "2 bytes, sha256 fb04dcb6970e", f.After)
			require.Equal(t, reconcile.EffectNone, field(t, p, "rollout.min_ready").Effect)
			require.Contains(t, p.EstimateBasis, "the slowest of the last 3 launches took 22s")
			require.Contains(t, p.EstimateBasis, "drain_timeout 5m0s is the upper bound")
			require.InDelta(t, (3 * (22*time.Second + time.Minute + 5*time.Minute)).Seconds(), p.Estimate.Seconds(), 3)

			next.Rollout.MaxSurge = nstance.Count{N: 100, Percent: true}
			all, _ := w.plan(next)
			require.InDelta(t, p.Estimate.Seconds()/3, all.Estimate.Seconds(), 3, "all at once")
		})
	})
	t.Run("drains as long as the former ones", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			_, err := w.r.Drain(t.Context(), w.ready()[0], requester)
			require.NoError(t, err)
			w.advance(3 * time.Minute)
			p, _ := w.plan(groupWithUserData(3, "v2"))
			require.Contains(t, p.EstimateBasis, "the slowest of the last 1 drains took")
		})
	})
	t.Run("the preview matches the outcome", func(t *testing.T) {
		withGroup(t, 4, simcloud.Options{}, func(t *testing.T, w *world) {
			next := groupWithUserData(3, "v2")
			p, _ := w.plan(next)
			require.Equal(t, map[string]int{"replace": 3, "drain": 1}, countActions(p))
			creates := w.count(nstance.EventCreateRequested, "")
			old := w.ready()
			w.setGroups(next)
			w.advance(p.Estimate)
			w.requireMembers(3)
			require.Equal(t, map[string]int{"v2": 3}, w.userDataVersions())
			require.Equal(t, p.Creates, w.count(nstance.EventCreateRequested, "")-creates)
			for _, i := range p.Instances {
				require.Contains(t, old, i.ID)
				require.Equal(t, 1, w.count(nstance.EventDeleted, i.ID))
			}
		})
	})
	t.Run("a size", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			p, _ := w.plan(webGroup(5))
			require.Empty(t, p.Instances)
			require.Equal(t, 2, p.Creates)
			require.Equal(t, "3", field(t, p, "size").Before)
			require.Equal(t, [2]int{3, 5}, [2]int{p.SizeBefore, p.SizeAfter})
			require.Less(t, p.Estimate, time.Minute)
			p, _ = w.plan(webGroup(0))
			require.Equal(t, map[string]int{"drain": 3}, countActions(p))
			require.Zero(t, p.Creates)
			require.Equal(t, 5*time.Minute, p.Estimate, "in parallel")
			next := webGroup(0)
			next.DrainTimeout = 0
			p, _ = w.plan(next)
			require.Equal(t, map[string]int{"delete": 3}, countActions(p))
		})
	})
	t.Run("pushed values", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			next := webGroup(3)
			next.Definition.Vars = map[string]string{"colour": "red"}
			p, _ := w.plan(next)
			require.Equal(t, map[string]int{"push": 3}, countActions(p))
			require.Equal(t, reconcile.EffectPush, field(t, p, "vars.colour").Effect)
			require.Zero(t, p.Creates)
			require.Zero(t, p.Estimate)
		})
	})
	t.Run("expiry", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.advance(2 * time.Hour)
			next := webGroup(3)
			next.Expiry.EligibleAge = time.Hour
			p, _ := w.plan(next)
			require.Equal(t, map[string]int{"replace": 3}, countActions(p))
			require.Contains(t, p.Instances[0].Reason, "eligible_age")
			require.Equal(t, 3, p.Creates)
			next.Expiry = nstance.Expiry{ForcedAge: time.Hour}
			p, _ = w.plan(next)
			require.Equal(t, map[string]int{"replace": 3}, countActions(p))
			require.Contains(t, p.Instances[0].Reason, "forced_age")
			require.Equal(t, 3, p.Creates)
			id := w.readyOnDemand()
			next.Expiry = nstance.Expiry{OnDemandAge: time.Minute}
			p, _ = w.plan(next)
			require.Len(t, p.Instances, 1)
			require.Equal(t, reconcile.InstancePlan{ID: id, Action: "drain", Reason: "older than expiry.on_demand_age"}, p.Instances[0])
			require.Zero(t, p.Creates, "not replaced")
		})
	})
	t.Run("new group, removed group", func(t *testing.T) {
		withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			other := webGroup(3)
			other.Key.Group = "other"
			other.Definition.LaunchTimeout = 7 * time.Minute
			plans, err := w.r.Admin().WhatIf([]nstance.Group{other}, true)
			require.NoError(t, err)
			require.Len(t, plans, 2)
			require.Equal(t, reconcile.ChangeAdded, plans[0].Change)
			require.Equal(t, 3, plans[0].Creates)
			require.Equal(t, 7*time.Minute, plans[0].Estimate)
			require.Contains(t, plans[0].EstimateBasis, "launch_timeout 7m0s is the upper bound")
			require.Equal(t, reconcile.ChangeReleased, plans[1].Change)
			require.Equal(t, web, plans[1].Key)
			require.Empty(t, plans[1].Instances, "its members stay")
			require.Len(t, w.r.Groups(), 1)
			w.advance(10 * time.Minute)
			w.requireMembers(2)
		})
	})
	t.Run("holds", func(t *testing.T) {
		withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			require.NoError(t, w.r.Admin().Pause(t.Context(), web, "busy"))
			p, _ := w.plan(groupWithUserData(2, "v2"))
			require.Equal(t, map[string]int{"replace": 2}, countActions(p))
			require.Equal(t, plan.HoldPaused, p.Holds[0].Kind)
			require.Contains(t, p.Holds[0].Reason, "busy")
			require.NoError(t, w.r.Admin().FreezeShard(t.Context(), "audit"))
			p, _ = w.plan(groupWithUserData(2, "v2"))
			require.Equal(t, map[string]int{"replace": 2}, countActions(p))
			require.Equal(t, plan.HoldFrozen, p.Holds[0].Kind)
		})
	})
	t.Run("during a rollout", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.setGroups(groupWithUserData(3, "v2"))
			w.advance(40 * time.Second)
			_, something := w.plan(groupWithUserData(3, "v2"))
			require.False(t, something, "changes in progress are not repeated")
			p, _ := w.plan(groupWithUserData(3, "v3"))
			require.Contains(t, p.Instances[0].Reason, "replaced already")
			p, _ = w.plan(groupWithUserData(3, "v1"))
			require.NotEmpty(t, p.Instances)
			for _, i := range p.Instances {
				spec, _ := w.cloud.Spec(i.ID)
				require.Equal(t, "v2", string(spec.UserData), "the old members may stay")
			}
		})
	})
	t.Run("rolled-back group", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.failUserData("v2")
			w.setGroups(groupWithUserData(3, "v2"))
			w.requireReadyFor(3, time.Hour)
			require.NoError(t, w.r.Admin().Rollback(t.Context(), web, requester, false))
			w.advance(time.Minute)
			_, something := w.plan(groupWithUserData(3, "v2"))
			require.False(t, something, "an unchanged configuration does not end the rollback")
			i, err := w.r.Admin().Impact([]nstance.Group{groupWithUserData(3, "v2")})
			require.NoError(t, err)
			require.Zero(t, i.Rotated)
			p, _ := w.plan(groupWithUserData(3, "v3"))
			require.Equal(t, map[string]int{"replace": 3}, countActions(p))
			require.True(t, w.group().RolledBack)
		})
	})
	t.Run("definition without hash is refused", func(t *testing.T) {
		withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
			bad := webGroup(1)
			bad.Definition.Args = []byte(`[`)
			_, err := w.r.Admin().WhatIf([]nstance.Group{bad}, false)
			require.ErrorIs(t, err, nstance.Invalid)
		})
	})
}

func TestDrift(t *testing.T) {
	withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		id := w.ready()[0]
		fields, err := w.r.Admin().Drift(t.Context(), id)
		require.NoError(t, err)
		require.Empty(t, fields)
		require.NoError(t, w.r.Admin().Pause(t.Context(), web, ""))
		next := groupWithUserData(2, "v2")
		next.Definition.Vars = map[string]string{"colour": "red"}
		w.setGroups(next)
		w.advance(time.Minute)
		fields, err = w.r.Admin().Drift(t.Context(), id)
		require.NoError(t, err)
		require.Len(t, fields, 2)
		require.Equal(t, "userdata.content", fields[0].Path)
		require.Equal(t, reconcile.EffectReplace, fields[0].Effect)
		require.Equal(t, "vars.colour", fields[1].Path)
		require.Equal(t, reconcile.EffectPush, fields[1].Effect)

		g, err := w.r.Group(web)
		require.NoError(t, err)
		w.r.Observe(nstance.FilesReported{ID: id, ConfigHash: g.RuntimeHash})
		fields, err = w.r.Admin().Drift(t.Context(), id)
		require.NoError(t, err)
		require.Len(t, fields, 1, "the pushed value is reported")
		v, err := w.r.Instance(id)
		require.NoError(t, err)
		require.Equal(t, g.RuntimeHash, v.Report.ConfigHash)
		w.r.Observe(nstance.FilesReported{ID: id, Error: "no"})
		v, err = w.r.Instance(id)
		require.NoError(t, err)
		require.Equal(t, g.RuntimeHash, v.Report.ConfigHash, "an error keeps the reported hash")
		require.Equal(t, "no", v.Report.FilesError)
		_, err = w.r.Admin().Drift(t.Context(), "web06bgm7733st2576nx5jht4ecjw")
		require.ErrorIs(t, err, nstance.NotFound)
	})
}
