package reconcile_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/notice"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// spotMember returns a ready spot member.
func (w *world) spotMember() nstance.InstanceID {
	w.t.Helper()
	r, _ := w.leader()
	for _, v := range r.Instances() {
		if v.State == nstance.Ready && v.Market == nstance.Spot {
			return v.ID
		}
	}
	require.Fail(w.t, "no spot member")
	return ""
}

// reclaimOne has the cloud reclaim a spot member, and waits for its replacement.
func (w *world) reclaimOne(notice time.Duration) {
	w.t.Helper()
	require.NoError(w.t, w.cloud.Reclaim(w.spotMember(), notice))
	w.advance(3 * time.Minute)
}

// TestFallbackWhen: after so many reclaims within the window creates are on demand, until
// there were fewer.
func TestFallbackWhen(t *testing.T) {
	limited := func(t *testing.T, test func(t *testing.T, w *world, g nstance.Group)) {
		withFallback(t, 4, simcloud.Options{}, func(t *testing.T, w *world, g nstance.Group) {
			g.Definition.Market.FallbackWhen = nstance.ReclaimLimit{Reclaims: 2, Window: time.Hour}
			g.Definition.Market.ReturnAfter = 10 * time.Minute
			w.startLeader(g)
			w.advance(2 * time.Minute)
			w.requireMembers(4)
			test(t, w, g)
		})
	}
	t.Run("announced reclaims", func(t *testing.T) {
		limited(t, func(t *testing.T, w *world, g nstance.Group) {
			first := time.Now()
			w.reclaimOne(2 * time.Minute)
			require.Equal(t, map[string]int{"small/spot": 4}, w.shapes(), "one is fewer than two")
			w.reclaimOne(2 * time.Minute)
			require.Equal(t, map[string]int{"small/spot": 3, "small/on-demand": 1}, w.shapes(), "the second counts at once")
			for _, v := range w.r.Instances() {
				if v.Market == nstance.OnDemand {
					require.Equal(t, "reclaims", v.ShapeChoice)
				}
			}
			require.Contains(t, w.first(nstance.EventReplacementRequested, func(e nstance.Event) bool { return e.Reason != "replace" }).Reason, "spot was reclaimed too often")
			require.WithinDuration(t, first.Add(time.Hour), w.group().ReturnAt, 2*time.Second, "not after return_after alone")

			w.stopLeader() // the count is durable
			w.startLeader(g)
			w.advance(3 * time.Minute)
			w.reclaimOne(2 * time.Minute)
			require.Equal(t, map[string]int{"small/spot": 2, "small/on-demand": 2}, w.shapes())

			w.advance(2 * time.Hour)
			w.requireMembers(4)
			require.Equal(t, map[string]int{"small/spot": 4}, w.shapes(), "the window has passed")
			w.reclaimOne(2 * time.Minute)
			require.Equal(t, map[string]int{"small/spot": 4}, w.shapes())
		})
	})
	t.Run("spot that dies without notice does not loop", func(t *testing.T) {
		limited(t, func(t *testing.T, w *world, _ nstance.Group) {
			died := 0
			for range 30 {
				for _, m := range w.cloud.Machines() {
					if m.Market == nstance.Spot && !m.Status.Dead() {
						require.NoError(t, w.cloud.Terminate(m.ID, nstance.LossReclaimed))
						died++
					}
				}
				w.advance(time.Minute)
			}
			require.LessOrEqual(t, died, 5, "the group, and what was being made when it was counted")
			require.Equal(t, map[string]int{"small/on-demand": 4}, w.shapes())
			w.requireMembers(4)
		})
	})
	t.Run("a next leader whose clock is known to be behind", func(t *testing.T) {
		limited(t, func(t *testing.T, w *world, g nstance.Group) {
			w.reclaimOne(2 * time.Minute)
			w.reclaimOne(2 * time.Minute)
			require.Equal(t, map[string]int{"small/spot": 3, "small/on-demand": 1}, w.shapes())
			c := &clocks{}
			c.Date()
			c.stepped.Store(int64(-24 * time.Hour))
			w.wrap = func(o *leaderEnv) { o.options = c.configure }
			w.stopLeader()
			w.startLeader(g)
			w.advance(3 * time.Minute)
			require.True(t, w.hasClockHold())
			c.stepped.Store(0)
			w.advance(3 * time.Minute)
			require.False(t, w.hasClockHold())
			w.reclaimOne(2 * time.Minute)
			require.Equal(t, map[string]int{"small/spot": 2, "small/on-demand": 2}, w.shapes(), "the reclaims of the last hour count")
		})
	})
	t.Run("rehearsals do not count", func(t *testing.T) {
		limited(t, func(t *testing.T, w *world, _ nstance.Group) {
			for _, event := range []string{"r1", "r2", "r3"} {
				w.r.Observe(nstance.Noticed{ID: w.spotMember(), Notice: nstance.Notice{
					Kind: nstance.Reclaim, Source: notice.RehearsalSource + "eve", EventID: event, Deadline: time.Now().Add(time.Minute), DetectedAt: time.Now(),
				}})
				w.advance(3 * time.Minute)
			}
			require.Equal(t, map[string]int{"small/spot": 4}, w.shapes())
		})
	})
	t.Run("nor does what an operator deletes", func(t *testing.T) {
		limited(t, func(t *testing.T, w *world, _ nstance.Group) {
			for range 3 {
				require.NoError(t, w.r.Delete(t.Context(), w.spotMember(), "test", true))
				w.advance(3 * time.Minute)
			}
			require.Equal(t, map[string]int{"small/spot": 4}, w.shapes())
		})
	})
}

// TestShapeChoice: it is known of each instance why it has its shape.
func TestShapeChoice(t *testing.T) {
	withFallback(t, 1, simcloud.Options{}, func(t *testing.T, w *world, g nstance.Group) {
		g.Definition.InstanceTypes = []string{"small", "large"}
		w.startLeader(g)
		w.advance(2 * time.Minute)
		require.Equal(t, "listed", w.r.Instances()[0].ShapeChoice)
		w.reclaimOne(2 * time.Minute)
		require.Equal(t, "reclaimed", w.r.Instances()[0].ShapeChoice)
		require.Contains(t, w.first(nstance.EventReplacementRequested, func(nstance.Event) bool { return true }).Reason, "replace; large spot: others were reclaimed lately")

		w.cloud.SetCapacity(spotPool, 0)
		w.advance(30 * time.Minute)
		next := g
		next.Size = 2
		plans, err := w.r.Admin().WhatIf([]nstance.Group{next}, false)
		require.NoError(t, err)
		require.Equal(t, "listed", plans[0].Shape.Choice)
		require.Equal(t, "small", plans[0].Shape.InstanceType)
		w.setGroupAndAdvance(next, 10*time.Minute)
		choices := map[string]bool{}
		for _, v := range w.r.Instances() {
			choices[v.ShapeChoice] = true
		}
		require.Equal(t, map[string]bool{"reclaimed": true, "fallback": true}, choices)
		w.stopLeader()
		w.startLeader(next)
		w.advance(time.Minute)
		for _, v := range w.r.Instances() {
			require.True(t, choices[v.ShapeChoice], "also under the next leader: %q", v.ShapeChoice)
		}
	})
}

// TestReclaimedPoolAfterTakeover: while a machine of a pool is being taken back, the next
// leader avoids the pool too.
func TestReclaimedPoolAfterTakeover(t *testing.T) {
	withFallback(t, 1, simcloud.Options{}, func(t *testing.T, w *world, g nstance.Group) {
		g.Definition.InstanceTypes = []string{"small", "large"}
		w.startLeader(g)
		w.advance(2 * time.Minute)
		w.withholdDrainAcks()
		w.reclaimOne(10 * time.Minute)
		w.stopLeader()
		g.Size = 2
		w.startLeader(g)
		w.advance(2 * time.Minute)
		require.Equal(t, 2, w.shapes()["large/spot"])
	})
}

// TestReclaimByAClockThatWasAhead: a pool is avoided for no longer because the clock of the former
// leader was ahead when the cloud announced that it takes a machine of it.
func TestReclaimByAClockThatWasAhead(t *testing.T) {
	withFallback(t, 1, simcloud.Options{}, func(t *testing.T, w *world, g nstance.Group) {
		g.Definition.InstanceTypes = []string{"small", "large"}
		w.startLeader(g)
		w.advance(2 * time.Minute)
		w.withholdDrainAcks()
		id := w.spotMember()
		w.reclaimOne(10 * time.Minute)
		w.stopLeader()
		w.writeLate(id, func(rec *records.Instance) {
			rec.Notices = slices.Clone(rec.Notices)
			for i := range rec.Notices {
				rec.Notices[i].ReceivedAt = rec.Notices[i].ReceivedAt.Add(24 * time.Hour)
			}
		})
		w.startLeader(g)
		w.advance(8 * time.Hour)
		require.Equal(t, map[string]int{"large/spot": 1}, w.shapes())
		g.Size = 2
		w.setGroupAndAdvance(g, 2*time.Minute)
		require.Equal(t, map[string]int{"large/spot": 1, "small/spot": 1}, w.shapes())
	})
}
