package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/groupspec"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/reconcile/plan"
)

const whyPending = "image base is not known yet"

// pendingGroup is a group with another definition desired than in effect.
func pendingGroup(g nstance.Group) nstance.Group {
	g.Pending = whyPending
	return g
}

// undefinedGroup is a group without a definition.
func undefinedGroup(g nstance.Group) nstance.Group {
	g.Definition = nstance.Definition{}
	return pendingGroup(g)
}

func TestPendingDefinition(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		at := time.Now().UTC()
		w.setGroups(pendingGroup(webGroup(5)))
		w.advance(10 * time.Minute)
		w.requireMembers(5)
		h := w.hold(plan.HoldPending)
		require.Equal(t, at, h.Since)
		require.Equal(t, whyPending, h.Reason)

		w.setGroups(pendingGroup(webGroup(2)))
		w.advance(10 * time.Minute)
		w.requireMembers(2)
		require.Equal(t, at, w.hold(plan.HoldPending).Since, "the same hold continues")

		w.setGroups(groupWithUserData(2, "v2"))
		w.advance(20 * time.Minute)
		w.requireMembers(2)
		require.False(t, w.hasHold(plan.HoldPending))
		at = time.Now().UTC()
		w.setGroups(pendingGroup(groupWithUserData(2, "v2")))
		w.advance(time.Minute)
		require.Equal(t, at, w.hold(plan.HoldPending).Since, "a new hold has its own start")
	})
}

func TestGroupWithoutDefinition(t *testing.T) {
	other := webGroup(3)
	other.Key.Group = "other"
	t.Run("is listed, creates nothing, and can be removed", func(t *testing.T) {
		withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
			w.setGroups(webGroup(1), undefinedGroup(other))
			w.advance(10 * time.Minute)
			w.requireMembers(1)
			v, err := w.r.Group(other.Key)
			require.NoError(t, err)
			require.Len(t, w.r.Groups(), 2)
			require.Equal(t, 3, v.Size)
			require.False(t, groupspec.Defined(&v.Group))
			require.Empty(t, v.Hash)
			require.Len(t, v.Holds, 1)
			require.Equal(t, plan.HoldPending, v.Holds[0].Kind)
			require.NoError(t, w.r.Admin().Pause(t.Context(), other.Key, "wait"))
			id, err := nstance.NewInstanceID("web", time.Now())
			require.NoError(t, err)
			_, err = w.r.CreateInstance(t.Context(), reconcile.OnDemandRequest{ID: id, Group: other.Key, Definition: other.Definition})
			require.ErrorIs(t, err, nstance.Unavailable)

			w.setGroups(webGroup(1))
			_, err = w.r.Group(other.Key)
			require.ErrorIs(t, err, nstance.NotFound, "no longer desired")

			w.setGroups(webGroup(1), undefinedGroup(other))
			leaving := undefinedGroup(other)
			leaving.Removing = true
			w.setGroups(webGroup(1), leaving)
			w.advance(time.Minute)
			_, err = w.r.Group(other.Key)
			require.ErrorIs(t, err, nstance.NotFound)
		})
	})
	t.Run("keeps its members across a handover, until it is defined", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.changeLeader()
			w.setGroups(undefinedGroup(webGroup(1)))
			w.advance(10 * time.Minute)
			w.requireMembers(3)
			require.True(t, w.hasHold(plan.HoldPending))
			require.Zero(t, w.count(nstance.EventDrainStarted, ""))

			w.setGroups(webGroup(4))
			w.advance(10 * time.Minute)
			w.requireMembers(4)
			require.False(t, w.hasHold(plan.HoldPending))
		})
	})
	t.Run("drains its members when it is removed", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.changeLeader()
			leaving := undefinedGroup(webGroup(3))
			leaving.Removing = true
			w.setGroups(leaving)
			w.advance(10 * time.Minute)
			w.requireMembers(0)
			require.Empty(t, w.r.Groups())
			require.NotZero(t, w.count(nstance.EventDrainStarted, ""))
		})
	})
}

func TestWhatIfOfPendingDefinitions(t *testing.T) {
	withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		other := webGroup(3)
		other.Key.Group = "other"
		plans, err := w.r.Admin().WhatIf([]nstance.Group{undefinedGroup(other), pendingGroup(webGroup(4))}, true)
		require.NoError(t, err)
		require.Len(t, plans, 2)
		require.Equal(t, reconcile.ChangeAdded, plans[0].Change)
		require.Zero(t, plans[0].Creates)
		require.Equal(t, 3, plans[0].SizeAfter)
		require.Equal(t, reconcile.ChangeChanged, plans[1].Change)
		require.Equal(t, 2, plans[1].Creates, "from the definition in effect")
		require.Empty(t, plans[1].Instances)
		require.Len(t, plans[1].Fields, 1)
		for _, p := range plans {
			require.Equal(t, plan.HoldPending, p.Holds[len(p.Holds)-1].Kind)
		}
		require.Len(t, w.r.Groups(), 1)
		require.False(t, w.hasHold(plan.HoldPending))
	})
}
