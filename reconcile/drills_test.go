package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// TestDrillsAreDue: a drill is due at its interval, under each leader, once, and waits while
// the group is not healthy.
func TestDrillsAreDue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		g := webGroup(3)
		w.startLeader(g)
		w.advance(2 * time.Minute)
		due := func() bool {
			t.Helper()
			due, err := w.r.Admin().Internals().DrillDue(t.Context(), web, 24*time.Hour, nstance.Count{})
			require.NoError(t, err)
			if due {
				require.NoError(t, w.r.Admin().Internals().BeginDrill(t.Context(), web, 24*time.Hour))
			}
			return due
		}
		require.False(t, due(), "the wait for the first one begins")
		w.advance(23 * time.Hour)
		require.False(t, due())
		w.stopLeader()
		w.startLeader(g)
		w.advance(time.Hour + time.Minute)
		require.True(t, due())
		require.False(t, due(), "once")
		w.stopLeader()
		w.startLeader(g)
		w.advance(time.Minute)
		require.False(t, due(), "under no leader")

		w.advance(24 * time.Hour)
		w.changeLeader()
		require.False(t, due(), "this leader does not know the group's configuration yet")
		require.Zero(t, w.count(eventtype.DrillSkipped, ""), "which is no reason to tell")
		w.setGroups(g)
		w.advance(time.Minute)
		require.NoError(t, w.cloud.Reclaim(w.ready()[0], 2*time.Minute))
		w.advance(time.Second)
		for range 3 {
			require.False(t, due(), "a member is being replaced")
		}
		require.Equal(t, 1, w.count(eventtype.DrillSkipped, ""))
		require.NoError(t, w.r.Admin().Pause(t.Context(), web, "test"))
		w.advance(10 * time.Minute)
		w.requireMembers(3)
		require.False(t, due(), "its rollout is paused")
		require.NoError(t, w.r.Admin().Resume(t.Context(), web, "test"))
		w.advance(time.Minute)
		require.True(t, due(), "as soon as it is healthy again")
		require.Equal(t, 2, w.count(eventtype.DrillStarted, ""))

		_, err := w.r.Admin().Internals().DrillDue(t.Context(), nstance.GroupKey{Tenant: "default", Group: "none"}, time.Hour, nstance.Count{})
		require.ErrorIs(t, err, nstance.NotFound)
	})
}

// TestDrillOfMoreThanThereAre: a drill of more members than a group has is never begun, and
// the event says why.
func TestDrillOfMoreThanThereAre(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.startLeader(webGroup(3))
		w.advance(2 * time.Minute)
		due := func(count nstance.Count) bool {
			t.Helper()
			due, err := w.r.Admin().Internals().DrillDue(t.Context(), web, time.Hour, count)
			require.NoError(t, err)
			return due
		}
		require.False(t, due(nstance.Count{N: 5}), "the wait for the first one begins")
		w.advance(time.Hour)
		require.False(t, due(nstance.Count{N: 5}))
		require.Equal(t, 1, w.count(eventtype.DrillSkipped, ""))
		for range 2 {
			require.True(t, due(nstance.Count{N: 3}), "all of them may be, until it has begun")
		}
		require.Zero(t, w.count(eventtype.DrillStarted, ""))
	})
}
