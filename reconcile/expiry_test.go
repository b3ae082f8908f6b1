package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// drainAges returns each instance's age when its drain for a cause began.
func (w *world) drainAges(kind nstance.CauseKind) map[nstance.InstanceID]time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[nstance.InstanceID]time.Duration{}
	for _, e := range w.events {
		if e.Type == nstance.EventDrainStarted && e.Drain.Causes[0].Kind == kind {
			out[e.Instance] = e.Time.Sub(e.Instance.Time())
		}
	}
	return out
}

// requireSpread requires that ages are within the last tenth before a limit, with slack for the
// planning interval, and not all equal.
func requireSpread(t *testing.T, ages map[nstance.InstanceID]time.Duration, limit, slack time.Duration) {
	t.Helper()
	least, most := limit, time.Duration(0)
	for id, age := range ages {
		require.GreaterOrEqual(t, age, limit*9/10-time.Minute, id)
		require.LessOrEqual(t, age, limit+slack, id)
		least, most = min(least, age), max(most, age)
	}
	require.Greater(t, most-least, limit/100, "jitter separates members of equal age")
}

func TestExpiry(t *testing.T) {
	const age = 10 * time.Hour
	t.Run("eligible: one at a time, the replacement first", func(t *testing.T) {
		withGroup(t, 6, simcloud.Options{}, func(t *testing.T, w *world) {
			g := webGroup(6)
			g.Expiry.EligibleAge = age
			w.setGroups(g)
			for range 12 * 6 {
				w.advance(10 * time.Minute)
				require.GreaterOrEqual(t, len(w.ready()), 6)
				require.LessOrEqual(t, len(w.cloud.Machines()), 8)
			}
			ages := w.drainAges(nstance.CauseRollout)
			require.Len(t, ages, 6)
			requireSpread(t, ages, age, 30*time.Minute) // each waits for those before it
		})
	})
	t.Run("eligible, paused: no drain", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			g := webGroup(3)
			g.Expiry.EligibleAge = age
			w.setGroups(g)
			require.NoError(t, w.r.Admin().Pause(t.Context(), web, ""))
			w.advance(3 * age)
			require.Empty(t, w.drainAges(nstance.CauseRollout))
		})
	})
	t.Run("forced: at once, each with its own jitter", func(t *testing.T) {
		withGroup(t, 6, simcloud.Options{}, func(t *testing.T, w *world) {
			g := webGroup(6)
			g.Expiry.ForcedAge = age
			w.setGroups(g)
			require.NoError(t, w.r.Admin().Pause(t.Context(), web, "does not hold forced expiry"))
			w.advance(age + time.Hour)
			ages := w.drainAges(nstance.CauseExpired)
			require.Len(t, ages, 6)
			requireSpread(t, ages, age, 0)
			w.requireMembers(6)
		})
	})
	t.Run("forced after eligible: rarely reached", func(t *testing.T) {
		withGroup(t, 6, simcloud.Options{}, func(t *testing.T, w *world) {
			g := webGroup(6)
			g.Expiry = nstance.Expiry{EligibleAge: age, ForcedAge: age * 3 / 2}
			w.setGroups(g)
			w.advance(2 * age)
			require.Empty(t, w.drainAges(nstance.CauseExpired))
			require.NotEmpty(t, w.drainAges(nstance.CauseRollout))
		})
	})
	t.Run("on demand: drained, not replaced", func(t *testing.T) {
		withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			g := webGroup(2)
			g.Expiry = nstance.Expiry{OnDemandAge: age}
			const onDemand = 12 // so many that they never get nearly the same jitter
			ids := map[nstance.InstanceID]bool{}
			w.stopLeader()
			for range onDemand {
				ids[w.onDemand()] = true
			}
			w.startLeader(g)
			w.advance(2 * age)
			ages := w.drainAges(nstance.CauseExpired)
			require.Len(t, ages, onDemand)
			for id := range ages {
				require.True(t, ids[id], "members by size stay")
			}
			requireSpread(t, ages, age, 0)
			require.Zero(t, w.count(nstance.EventReplacementRequested, ""))
			w.requireMembers(2)
		})
	})
	t.Run("same ages across a handover", func(t *testing.T) {
		withGroup(t, 6, simcloud.Options{}, func(t *testing.T, w *world) {
			g := webGroup(6)
			g.Expiry.ForcedAge = age
			w.setGroups(g)
			for range 11 {
				w.advance(58 * time.Minute)
				w.changeLeader(g)
			}
			ages := w.drainAges(nstance.CauseExpired)
			require.Len(t, ages, 6)
			requireSpread(t, ages, age, 3*time.Minute) // no drain without a leader
		})
	})
}

// onDemand creates a ready instance on demand.
func (w *world) onDemand() nstance.InstanceID {
	w.t.Helper()
	id := w.createOrphan(0, nil)
	recs := records.New(w.store, "s1", &records.Options{Epoch: w.epoch})
	_, err := recs.Create(w.ctx, records.Instance{
		ID: id, Tenant: web.Tenant, Group: web.Group, OnDemand: true, Reason: "on_demand", CreatedAt: id.Time(), CreatedEpoch: w.epoch,
		RegisteredAt: id.Time(),
	})
	require.NoError(w.t, err)
	return id
}
