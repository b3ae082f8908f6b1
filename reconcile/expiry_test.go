package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/storage"
)

// ends returns when each instance's drain for a cause began, as its age then.
func (w *world) ends(kind nstance.CauseKind) map[nstance.InstanceID]time.Duration {
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

// spread checks that ages are within the last tenth before a limit, give or take
// what one look more may cost, and that they are not all the same.
func spread(t *testing.T, ages map[nstance.InstanceID]time.Duration, limit, slack time.Duration) {
	t.Helper()
	least, most := limit, time.Duration(0)
	for id, age := range ages {
		require.GreaterOrEqual(t, age, limit*9/10-time.Minute, id)
		require.LessOrEqual(t, age, limit+slack, id)
		least, most = min(least, age), max(most, age)
	}
	require.Greater(t, most-least, limit/100, "born together, they do not die together")
}

func TestExpiry(t *testing.T) {
	const age = 10 * time.Hour
	t.Run("eligible: one at a time, the replacement first", func(t *testing.T) {
		within(t, 6, simcloud.Options{}, func(t *testing.T, w *world) {
			g := wanted(6)
			g.Expiry.EligibleAge = age
			w.want(g)
			for range 12 * 6 {
				w.passes(10 * time.Minute)
				require.GreaterOrEqual(t, len(w.ready()), 6)
				require.LessOrEqual(t, len(w.cloud.Machines()), 8)
			}
			ages := w.ends(nstance.CauseRollout)
			require.Len(t, ages, 6)
			spread(t, ages, age, 30*time.Minute) // each waits for those before it
		})
	})
	t.Run("eligible, paused: nobody goes", func(t *testing.T) {
		within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			g := wanted(3)
			g.Expiry.EligibleAge = age
			w.want(g)
			require.NoError(t, w.r.Pause(t.Context(), web, ""))
			w.passes(3 * age)
			require.Empty(t, w.ends(nstance.CauseRollout))
		})
	})
	t.Run("forced: at once, each earlier by its own jitter", func(t *testing.T) {
		within(t, 6, simcloud.Options{}, func(t *testing.T, w *world) {
			g := wanted(6)
			g.Expiry.ForcedAge = age
			w.want(g)
			require.NoError(t, w.r.Pause(t.Context(), web, "which holds nothing that is forced"))
			w.passes(age + time.Hour)
			ages := w.ends(nstance.CauseExpired)
			require.Len(t, ages, 6)
			spread(t, ages, age, 0)
			w.agrees(6)
		})
	})
	t.Run("forced, after eligible: few ever reach it", func(t *testing.T) {
		within(t, 6, simcloud.Options{}, func(t *testing.T, w *world) {
			g := wanted(6)
			g.Expiry = nstance.Expiry{EligibleAge: age, ForcedAge: age * 3 / 2}
			w.want(g)
			w.passes(2 * age)
			require.Empty(t, w.ends(nstance.CauseExpired))
			require.NotEmpty(t, w.ends(nstance.CauseRollout))
		})
	})
	t.Run("on demand: drained, not replaced", func(t *testing.T) {
		within(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			g := wanted(2)
			g.Expiry = nstance.Expiry{OnDemandAge: age}
			ids := map[nstance.InstanceID]bool{}
			w.depose()
			for range 4 {
				ids[w.onDemand()] = true
			}
			w.lead(g)
			w.passes(2 * age)
			ages := w.ends(nstance.CauseExpired)
			require.Len(t, ages, 4)
			for id := range ages {
				require.True(t, ids[id], "members by size stay")
			}
			spread(t, ages, age, 0)
			require.Zero(t, w.count(nstance.EventReplacementRequested, ""))
			w.agrees(2)
		})
	})
	t.Run("under the next leader the same", func(t *testing.T) {
		within(t, 6, simcloud.Options{}, func(t *testing.T, w *world) {
			g := wanted(6)
			g.Expiry.ForcedAge = age
			w.want(g)
			for range 11 {
				w.passes(58 * time.Minute)
				w.succeeds(g)
			}
			ages := w.ends(nstance.CauseExpired)
			require.Len(t, ages, 6)
			spread(t, ages, age, 3*time.Minute) // nobody is drained while nobody leads
		})
	})
}

// onDemand makes an instance that somebody asked for, in storage and cloud.
func (w *world) onDemand() nstance.InstanceID {
	w.t.Helper()
	id := w.stray(0, nil)
	recs := storage.NewRecords(w.store, "s1", &storage.RecordsOptions{Epoch: w.epoch})
	_, err := recs.Create(w.ctx, storage.Instance{
		ID: id, Tenant: web.Tenant, Group: web.Group, OnDemand: true, Reason: "on_demand", CreatedAt: id.Time(), CreatedEpoch: w.epoch,
		RegisteredAt: id.Time(),
	})
	require.NoError(w.t, err)
	return id
}
