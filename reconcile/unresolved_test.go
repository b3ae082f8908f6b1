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

// open is a group whose definition is not known yet.
func open(g nstance.Group) nstance.Unresolved {
	return nstance.Unresolved{Group: g, Known: true, Why: "image base is not known yet"}
}

// wantOpen wants nothing but open groups.
func (w *world) wantOpen(open ...nstance.Unresolved) { w.r.Observe(nstance.Desired{Open: open}) }

func TestUnresolvedGroup(t *testing.T) {
	t.Run("keeps its definition and takes its size", func(t *testing.T) {
		within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			at, hash := time.Now().UTC(), w.group().Hash
			next := redefined(5, "v2")
			next.DrainTimeout = time.Minute
			w.wantOpen(open(next))
			w.passes(10 * time.Minute)
			w.agrees(5)
			require.Equal(t, map[string]int{"v1": 5}, w.told())
			require.Equal(t, hash, w.group().Hash)
			require.Equal(t, time.Minute, w.group().DrainTimeout)
			h := w.hold(plan.HoldUnresolved)
			require.Equal(t, at, h.Since)
			require.Equal(t, "image base is not known yet", h.Reason)

			next.Size = 2
			w.wantOpen(open(next))
			w.passes(10 * time.Minute)
			w.agrees(2)
			require.Equal(t, at, w.hold(plan.HoldUnresolved).Since, "it goes on")

			w.want(next)
			w.passes(20 * time.Minute)
			w.agrees(2)
			require.Equal(t, map[string]int{"v2": 2}, w.told())
			require.False(t, w.holds(plan.HoldUnresolved))
		})
	})
	t.Run("of which nothing makes sense stays as it is", func(t *testing.T) {
		within(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			w.wantOpen(nstance.Unresolved{Group: nstance.Group{Key: web}, Why: "size: -1 is out of range"})
			w.passes(10 * time.Minute)
			w.agrees(2)
			require.True(t, w.holds(plan.HoldUnresolved))
		})
	})
	t.Run("of which no definition was ever known is there", func(t *testing.T) {
		within(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
			other := wanted(3)
			other.Key.Group = "other"
			here := nstance.Desired{Groups: []nstance.Group{wanted(1)}, Open: []nstance.Unresolved{open(other)}}
			w.r.Observe(here)
			w.passes(10 * time.Minute)
			w.agrees(1)
			v, err := w.r.Group(other.Key)
			require.NoError(t, err)
			require.Len(t, w.r.Groups(), 2)
			require.Equal(t, 3, v.Size)
			require.False(t, v.Desired)
			require.Len(t, v.Holds, 1)
			require.Equal(t, plan.HoldUnresolved, v.Holds[0].Kind)
			require.NoError(t, w.r.Pause(t.Context(), other.Key, "wait"))
			id, err := nstance.NewInstanceID("web", time.Now())
			require.NoError(t, err)
			_, err = w.r.CreateInstance(t.Context(), reconcile.OnDemandRequest{ID: id, Group: other.Key, Definition: other.Definition})
			require.ErrorIs(t, err, nstance.Unavailable)

			w.r.Observe(nstance.Desired{Groups: here.Groups})
			_, err = w.r.Group(other.Key)
			require.ErrorIs(t, err, nstance.NotFound, "nobody wants it any more")

			w.r.Observe(here)
			here.Open[0].Removing = true
			w.r.Observe(here)
			w.passes(time.Minute)
			_, err = w.r.Group(other.Key)
			require.ErrorIs(t, err, nstance.NotFound)
		})
	})
	t.Run("of which nothing makes sense stays as it is under a new leader", func(t *testing.T) {
		within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			u := nstance.Unresolved{Group: nstance.Group{Key: web}, Why: "size: -1 is out of range"}
			last := wanted(3)
			w.wantOpen(u)
			w.passes(time.Minute)
			w.succeeds()
			u.Last = &last
			w.wantOpen(u)
			w.passes(10 * time.Minute)
			w.agrees(3)
			require.True(t, w.holds(plan.HoldUnresolved))
			require.Zero(t, w.count(nstance.EventDrainStarted, ""))

			w.want(wanted(2))
			w.passes(10 * time.Minute)
			w.agrees(2)
		})
	})
	t.Run("under a new leader", func(t *testing.T) {
		within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			last := wanted(3)
			w.succeeds()
			w.wantOpen(open(redefined(1, "v2")))
			w.passes(10 * time.Minute)
			w.agrees(3) // nobody knows what it was
			require.True(t, w.holds(plan.HoldUnresolved))

			u := open(redefined(4, "v2"))
			u.Last = &last
			w.wantOpen(u)
			w.passes(10 * time.Minute)
			w.agrees(4)
			require.Equal(t, map[string]int{"v1": 4}, w.told())
			require.True(t, w.holds(plan.HoldUnresolved))

			w.succeeds()
			u.Last, u.Removing = nil, true
			w.wantOpen(u)
			w.passes(10 * time.Minute)
			w.agrees(0)
			require.Empty(t, w.r.Groups())
			require.NotZero(t, w.count(nstance.EventDrainStarted, ""), "nobody was cut off")
		})
	})
}

func TestWhatIfOfUnresolvedGroups(t *testing.T) {
	within(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		other := wanted(3)
		other.Key.Group = "other"
		plans, err := w.r.WhatIf(nstance.Desired{Open: []nstance.Unresolved{open(other), open(redefined(4, "v2"))}}, true)
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
			require.Equal(t, plan.HoldUnresolved, p.Holds[len(p.Holds)-1].Kind)
		}
		require.Len(t, w.r.Groups(), 1)
		require.False(t, w.holds(plan.HoldUnresolved))
	})
}
