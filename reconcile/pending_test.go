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

const whyPending = "image base is not known yet"

// pending is a group for which another definition was asked for than it has.
func pending(g nstance.Group) nstance.Group {
	g.Pending = whyPending
	return g
}

// undefined is a group that never had a definition.
func undefined(g nstance.Group) nstance.Group {
	g.Definition = nstance.Definition{}
	return pending(g)
}

func TestPendingDefinition(t *testing.T) {
	within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		at := time.Now().UTC()
		w.want(pending(wanted(5)))
		w.passes(10 * time.Minute)
		w.agrees(5)
		h := w.hold(plan.HoldPending)
		require.Equal(t, at, h.Since)
		require.Equal(t, whyPending, h.Reason)

		w.want(pending(wanted(2)))
		w.passes(10 * time.Minute)
		w.agrees(2)
		require.Equal(t, at, w.hold(plan.HoldPending).Since, "it goes on")

		w.want(redefined(2, "v2"))
		w.passes(20 * time.Minute)
		w.agrees(2)
		require.False(t, w.holds(plan.HoldPending))
		at = time.Now().UTC()
		w.want(pending(redefined(2, "v2")))
		w.passes(time.Minute)
		require.Equal(t, at, w.hold(plan.HoldPending).Since, "another one has another beginning")
	})
}

func TestGroupWithoutDefinition(t *testing.T) {
	other := wanted(3)
	other.Key.Group = "other"
	t.Run("is listed, creates nothing, and goes", func(t *testing.T) {
		within(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
			w.want(wanted(1), undefined(other))
			w.passes(10 * time.Minute)
			w.agrees(1)
			v, err := w.r.Group(other.Key)
			require.NoError(t, err)
			require.Len(t, w.r.Groups(), 2)
			require.Equal(t, 3, v.Size)
			require.False(t, v.Defined())
			require.Empty(t, v.Hash)
			require.Len(t, v.Holds, 1)
			require.Equal(t, plan.HoldPending, v.Holds[0].Kind)
			require.NoError(t, w.r.Pause(t.Context(), other.Key, "wait"))
			id, err := nstance.NewInstanceID("web", time.Now())
			require.NoError(t, err)
			_, err = w.r.CreateInstance(t.Context(), reconcile.OnDemandRequest{ID: id, Group: other.Key, Definition: other.Definition})
			require.ErrorIs(t, err, nstance.Unavailable)

			w.want(wanted(1))
			_, err = w.r.Group(other.Key)
			require.ErrorIs(t, err, nstance.NotFound, "it is not desired any more")

			w.want(wanted(1), undefined(other))
			leaving := undefined(other)
			leaving.Removing = true
			w.want(wanted(1), leaving)
			w.passes(time.Minute)
			_, err = w.r.Group(other.Key)
			require.ErrorIs(t, err, nstance.NotFound)
		})
	})
	t.Run("keeps its members under a new leader, and is defined", func(t *testing.T) {
		within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.succeeds()
			w.want(undefined(wanted(1)))
			w.passes(10 * time.Minute)
			w.agrees(3)
			require.True(t, w.holds(plan.HoldPending))
			require.Zero(t, w.count(nstance.EventDrainStarted, ""))

			w.want(wanted(4))
			w.passes(10 * time.Minute)
			w.agrees(4)
			require.False(t, w.holds(plan.HoldPending))
		})
	})
	t.Run("drains its members when it is removed", func(t *testing.T) {
		within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.succeeds()
			leaving := undefined(wanted(3))
			leaving.Removing = true
			w.want(leaving)
			w.passes(10 * time.Minute)
			w.agrees(0)
			require.Empty(t, w.r.Groups())
			require.NotZero(t, w.count(nstance.EventDrainStarted, ""))
		})
	})
}

func TestWhatIfOfPendingDefinitions(t *testing.T) {
	within(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		other := wanted(3)
		other.Key.Group = "other"
		plans, err := w.r.WhatIf([]nstance.Group{undefined(other), pending(wanted(4))}, true)
		require.NoError(t, err)
		require.Len(t, plans, 2)
		require.Equal(t, reconcile.ChangeAdded, plans[0].Change)
		require.Zero(t, plans[0].Creates)
		require.Equal(t, 3, plans[0].SizeAfter)
		require.Equal(t, reconcile.ChangeChanged, plans[1].Change)
		require.Equal(t, 2, plans[1].Creates, "from the definition that it has")
		require.Empty(t, plans[1].Instances)
		require.Len(t, plans[1].Fields, 1)
		for _, p := range plans {
			require.Equal(t, plan.HoldPending, p.Holds[len(p.Holds)-1].Kind)
		}
		require.Len(t, w.r.Groups(), 1)
		require.False(t, w.holds(plan.HoldPending))
	})
}
