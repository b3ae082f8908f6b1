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

var (
	spotPool     = simcloud.Pool{Market: nstance.Spot}
	onDemandPool = simcloud.Pool{Market: nstance.OnDemand}
)

// withFallback runs a test in a spot group with on-demand fallback.
func withFallback(t *testing.T, size int, o simcloud.Options, test func(t *testing.T, w *world, g nstance.Group)) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, o)
		defer w.close()
		g := webGroup(size)
		g.Definition.Market = nstance.Market{Type: nstance.Spot, Fallback: nstance.OnDemand, FallbackAfter: time.Minute}
		test(t, w, g)
	})
}

// setGroupAndAdvance sets the group and advances the clock.
func (w *world) setGroupAndAdvance(g nstance.Group, d time.Duration) {
	w.t.Helper()
	w.r.Observe(nstance.Desired{Groups: []nstance.Group{g}})
	w.advance(d)
}

// requireOnDemandFor advances the clock and requires every ten seconds that at least so many
// on-demand machines run or boot.
func (w *world) requireOnDemandFor(onDemand int, d time.Duration) {
	w.t.Helper()
	for range int(d / (10 * time.Second)) {
		w.advance(10 * time.Second)
		require.GreaterOrEqual(w.t, w.shapes()["small/on-demand"], onDemand)
	}
}

func TestOnDemandBase(t *testing.T) {
	based := func(t *testing.T, size int, base nstance.Count, test func(t *testing.T, w *world, g nstance.Group)) {
		withFallback(t, size, simcloud.Options{}, func(t *testing.T, w *world, g nstance.Group) {
			g.Definition.Market.OnDemandBase = base
			test(t, w, g)
		})
	}
	t.Run("is created first", func(t *testing.T) {
		based(t, 5, nstance.Count{N: 2}, func(t *testing.T, w *world, g nstance.Group) {
			w.startLeader(g)
			w.advance(2 * time.Minute)
			w.requireMembers(5)
			require.Equal(t, map[string]int{"small/on-demand": 2, "small/spot": 3}, w.shapes())
			v := w.group()
			require.Equal(t, []int{2, 3}, []int{v.OnDemandMarket, v.SpotMarket})
			require.True(t, v.ReturnAt.IsZero())
		})
	})
	t.Run("may be a part of the group, rounded up", func(t *testing.T) {
		based(t, 5, nstance.Count{N: 30, Percent: true}, func(t *testing.T, w *world, g nstance.Group) {
			w.startLeader(g)
			w.advance(2 * time.Minute)
			require.Equal(t, map[string]int{"small/on-demand": 2, "small/spot": 3}, w.shapes())
		})
	})
	t.Run("a lost base member is replaced on demand, others on spot", func(t *testing.T) {
		based(t, 4, nstance.Count{N: 2}, func(t *testing.T, w *world, g nstance.Group) {
			w.startLeader(g)
			w.advance(2 * time.Minute)
			for _, market := range []nstance.MarketType{nstance.OnDemand, nstance.Spot} {
				for _, m := range w.cloud.Machines() {
					if m.Market == market {
						require.NoError(t, w.cloud.Kill(m.ID))
						w.r.Observe(nstance.Disconnected{ID: m.ID})
					}
				}
				w.advance(3 * time.Minute)
				w.requireMembers(4)
				require.Equal(t, map[string]int{"small/on-demand": 2, "small/spot": 2}, w.shapes())
			}
		})
	})
	t.Run("is kept through scale-down; members beyond it are removed", func(t *testing.T) {
		based(t, 6, nstance.Count{N: 2}, func(t *testing.T, w *world, g nstance.Group) {
			w.startLeader(g)
			w.advance(2 * time.Minute)
			g.Size = 3
			w.setGroupAndAdvance(g, 0)
			w.requireOnDemandFor(2, 3*time.Minute)
			w.requireMembers(3)
			require.Equal(t, map[string]int{"small/on-demand": 2, "small/spot": 1}, w.shapes())
			g.Size = 1
			w.setGroupAndAdvance(g, 3*time.Minute)
			require.Equal(t, map[string]int{"small/on-demand": 1}, w.shapes())
		})
	})
	for surge := range 3 {
		t.Run("is kept through a rollout with max_surge "+string(rune('0'+surge)), func(t *testing.T) {
			based(t, 4, nstance.Count{N: 2}, func(t *testing.T, w *world, g nstance.Group) {
				g.Rollout.MaxSurge.N = surge
				w.startLeader(g)
				w.advance(2 * time.Minute)
				g.Definition.UserData.Content = "v2"
				w.setGroupAndAdvance(g, 0)
				w.requireOnDemandFor(min(2, 1+surge), 10*time.Minute)
				w.requireMembers(4)
				require.Equal(t, map[string]int{"small/on-demand": 2, "small/spot": 2}, w.shapes())
				require.Zero(t, w.group().Stale)
				require.LessOrEqual(t, w.cloud.Count(simcloud.OpCreate), 8, "each is replaced once")
			})
		})
	}
	for surge := range 2 {
		t.Run("a change of it replaces only the difference, with max_surge "+string(rune('0'+surge)), func(t *testing.T) {
			based(t, 4, nstance.Count{}, func(t *testing.T, w *world, g nstance.Group) {
				g.Rollout.MaxSurge.N = surge
				w.startLeader(g)
				w.advance(2 * time.Minute)
				require.Equal(t, map[string]int{"small/spot": 4}, w.shapes())
				g.Definition.Market.OnDemandBase.N = 2
				w.setGroupAndAdvance(g, 0)
				for range 30 {
					w.advance(10 * time.Second)
					require.GreaterOrEqual(t, len(w.ready()), 3+surge)
				}
				w.requireMembers(4)
				require.Equal(t, map[string]int{"small/spot": 2, "small/on-demand": 2}, w.shapes())
				require.Equal(t, 6, w.cloud.Count(simcloud.OpCreate))
				require.Zero(t, w.group().Stale, "market is not drift")
				w.advance(2 * time.Hour)
				require.Equal(t, 6, w.cloud.Count(simcloud.OpCreate), "no further creates")
			})
		})
	}
	t.Run("waits for on-demand capacity alone", func(t *testing.T) {
		based(t, 3, nstance.Count{N: 1}, func(t *testing.T, w *world, g nstance.Group) {
			w.cloud.SetCapacity(onDemandPool, 0)
			w.startLeader(g)
			w.advance(3 * time.Minute)
			require.Equal(t, map[string]int{"small/spot": 2}, w.shapes())
			require.True(t, w.hasHold(plan.HoldCapacity))
			w.cloud.SetCapacity(onDemandPool, -1)
			w.advance(3 * time.Minute)
			require.Equal(t, map[string]int{"small/spot": 2, "small/on-demand": 1}, w.shapes())
		})
	})
}

func TestFallbackForQuota(t *testing.T) {
	withFallback(t, 3, simcloud.Options{}, func(t *testing.T, w *world, g nstance.Group) {
		w.wrap = func(o *leaderEnv) { o.provider = quotaOf{o.provider, "", nstance.Spot} }
		w.startLeader(g)
		w.advance(50 * time.Second)
		require.Empty(t, w.cloud.Machines(), "not before fallback_after")
		w.advance(3 * time.Minute)
		require.Equal(t, map[string]int{"small/on-demand": 3}, w.shapes())
	})
}

// TestFallbackForMachinesThatNeverStart counts a machine that was accepted and lost for
// capacity as the same shortage.
func TestFallbackForMachinesThatNeverStart(t *testing.T) {
	withFallback(t, 1, simcloud.Options{}, func(t *testing.T, w *world, g nstance.Group) {
		w.cloud.FailStarts(spotPool, nstance.LossCapacity, 1000)
		w.startLeader(g)
		w.advance(6 * time.Minute)
		require.Equal(t, map[string]int{"small/on-demand": 1}, w.shapes())
		require.Zero(t, w.failureCount())
	})
}

// leadOnFallback starts a group whose members have all fallen back to on-demand.
func (w *world) leadOnFallback(g nstance.Group) {
	w.t.Helper()
	w.cloud.SetCapacity(spotPool, 0)
	w.startLeader(g)
	w.advance(4 * time.Minute)
	require.Equal(w.t, map[string]int{"small/on-demand": g.Size}, w.shapes())
}

func TestReturnToSpot(t *testing.T) {
	t.Run("one surge at a time, after return_after", func(t *testing.T) {
		withFallback(t, 3, simcloud.Options{}, func(t *testing.T, w *world, g nstance.Group) {
			w.leadOnFallback(g)
			w.cloud.SetCapacity(spotPool, -1)
			at := w.group().ReturnAt
			require.WithinDuration(t, time.Now().Add(30*time.Minute), at, 4*time.Minute)
			w.advance(time.Until(at) - time.Second)
			require.Equal(t, map[string]int{"small/on-demand": 3}, w.shapes())
			for range 60 {
				w.advance(5 * time.Second)
				require.GreaterOrEqual(t, len(w.ready()), 3)
				require.LessOrEqual(t, len(w.cloud.Machines()), 4)
			}
			w.advance(5 * time.Minute)
			w.requireMembers(3)
			require.Equal(t, map[string]int{"small/spot": 3}, w.shapes())
			require.True(t, w.group().ReturnAt.IsZero())
		})
	})
	t.Run("keeps the base", func(t *testing.T) {
		withFallback(t, 3, simcloud.Options{}, func(t *testing.T, w *world, g nstance.Group) {
			g.Definition.Market.OnDemandBase.N = 1
			w.leadOnFallback(g)
			w.cloud.SetCapacity(spotPool, -1)
			w.requireOnDemandFor(1, time.Hour)
			w.requireMembers(3)
			require.Equal(t, map[string]int{"small/spot": 2, "small/on-demand": 1}, w.shapes())
		})
	})
	t.Run("a refusal doubles the delay, also across reload and handover", func(t *testing.T) {
		withFallback(t, 2, simcloud.Options{}, func(t *testing.T, w *world, g nstance.Group) {
			g.Definition.Market.ReturnAfter = 10 * time.Minute
			w.leadOnFallback(g)
			began, last, tries := time.Now(), w.cloud.Count(simcloud.OpCreate), []time.Duration{}
			for minute := range 170 {
				w.advance(time.Minute)
				if n := w.cloud.Count(simcloud.OpCreate); n != last {
					last = n
					tries = append(tries, time.Since(began).Round(10*time.Minute))
				}
				switch minute {
				case 40:
					w.setGroupAndAdvance(g, 0)
				case 90:
					w.stopLeader()
					w.startLeader(g)
				}
			}
			require.Equal(t, []time.Duration{10 * time.Minute, 30 * time.Minute, 70 * time.Minute, 150 * time.Minute}, tries)
			require.Equal(t, 4, w.group().FailedReturns)
			w.requireMembers(2)
			require.Equal(t, map[string]int{"small/on-demand": 2}, w.shapes())
			require.Zero(t, w.failureCount())
		})
	})
	t.Run("lost before min_ready counts as failure", func(t *testing.T) {
		withFallback(t, 2, simcloud.Options{}, func(t *testing.T, w *world, g nstance.Group) {
			g.Definition.Market.ReturnAfter, g.Rollout.MinReady = 10*time.Minute, 2*time.Minute
			w.leadOnFallback(g)
			w.cloud.SetCapacity(spotPool, -1)
			taken := 0
			for range 60 {
				w.advance(time.Minute)
				for _, m := range w.cloud.Machines() {
					if m.Market == nstance.Spot && m.Status == nstance.StatusRunning && w.cloud.Reclaim(m.ID, 20*time.Second) == nil {
						taken++
					}
				}
			}
			require.Equal(t, w.group().FailedReturns, taken)
			require.LessOrEqual(t, taken, 2)
			require.GreaterOrEqual(t, taken, 1)
			require.Equal(t, 2, w.shapes()["small/on-demand"])
		})
	})
	t.Run("waits while the rollout is paused, and needs a surge", func(t *testing.T) {
		withFallback(t, 2, simcloud.Options{}, func(t *testing.T, w *world, g nstance.Group) {
			g.Rollout.MaxSurge.N = 0
			w.leadOnFallback(g)
			w.cloud.SetCapacity(spotPool, -1)
			w.advance(2 * time.Hour)
			require.Equal(t, map[string]int{"small/on-demand": 2}, w.shapes())
			g.Rollout.MaxSurge.N = 1
			require.NoError(t, w.r.Admin().Pause(w.ctx, web, requester))
			w.setGroupAndAdvance(g, time.Hour)
			require.Equal(t, map[string]int{"small/on-demand": 2}, w.shapes())
			require.NoError(t, w.r.Admin().Resume(w.ctx, web, requester))
			w.advance(10 * time.Minute)
			require.Equal(t, map[string]int{"small/spot": 2}, w.shapes())
		})
	})
}

// TestActualMarket: the market that the cloud reports counts, not the requested one.
func TestActualMarket(t *testing.T) {
	o := simcloud.Options{Substitute: map[nstance.MarketType]nstance.MarketType{nstance.Spot: nstance.OnDemand}}
	withFallback(t, 2, o, func(t *testing.T, w *world, g nstance.Group) {
		g.Definition.Market.ReturnAfter = 10 * time.Minute
		w.startLeader(g)
		w.advance(2 * time.Minute)
		w.requireMembers(2)
		for _, v := range w.r.Instances() {
			require.Equal(t, nstance.OnDemand, v.Market)
			require.Equal(t, 1, w.count(nstance.EventMarketDiffers, v.ID))
		}
		require.Equal(t, 2, w.group().OnDemandMarket)
		var kinds []reconcile.AttentionKind
		for _, a := range w.r.Admin().Attention() {
			kinds = append(kinds, a.Kind)
		}
		require.Contains(t, kinds, reconcile.AttentionKind("market"))
		w.advance(3 * time.Hour)
		w.requireMembers(2)
		require.LessOrEqual(t, w.cloud.Count(simcloud.OpCreate), 2+4, "return to spot fails and backs off")
		require.GreaterOrEqual(t, w.group().FailedReturns, 3)
	})
}

// TestReturnWaits: each fallback, and each attempt to return that came to nothing, has the group wait
// anew before it tries spot again.
func TestReturnWaits(t *testing.T) {
	t.Run("another fallback", func(t *testing.T) {
		withFallback(t, 3, simcloud.Options{}, func(t *testing.T, w *world, g nstance.Group) {
			w.leadOnFallback(g)
			first := w.group().ReturnAt
			w.advance(20 * time.Minute)
			require.Equal(t, first, w.group().ReturnAt)
			require.NoError(t, w.cloud.Kill(w.ready()[0]))
			w.advance(4 * time.Minute)
			w.requireMembers(3)
			require.Greater(t, w.group().ReturnAt.Sub(first), 15*time.Minute)
			again := w.group().ReturnAt
			w.changeLeader(g)
			w.advance(time.Minute)
			require.Equal(t, again, w.group().ReturnAt, "as the next leader knows")
		})
	})
	t.Run("an attempt that is called off", func(t *testing.T) {
		withFallback(t, 2, simcloud.Options{Boot: simcloud.Delay{Min: time.Minute}}, func(t *testing.T, w *world, g nstance.Group) {
			g.Definition.Market.ReturnAfter = 10 * time.Minute
			w.leadOnFallback(g)
			w.cloud.SetCapacity(spotPool, -1)
			w.advance(time.Until(w.group().ReturnAt) + 30*time.Second)
			require.Equal(t, map[string]int{"small/on-demand": 2, "small/spot": 1}, w.shapes())
			g.Size = 1 // before it is ready
			w.setGroupAndAdvance(g, time.Minute)
			require.Equal(t, map[string]int{"small/on-demand": 1}, w.shapes())
			require.Zero(t, w.group().FailedReturns, "it is no failure")
			w.advance(7 * time.Minute)
			require.Equal(t, map[string]int{"small/on-demand": 1}, w.shapes(), "and the next one waits as long")
			w.advance(10 * time.Minute)
			require.Equal(t, map[string]int{"small/spot": 1}, w.shapes())
		})
	})
	t.Run("an attempt that is refused", func(t *testing.T) {
		withFallback(t, 3, simcloud.Options{}, func(t *testing.T, w *world, g nstance.Group) {
			w.leadOnFallback(g)
			w.advance(time.Until(w.group().ReturnAt) - time.Minute)
			before := w.cloud.Count(simcloud.OpCreate)
			w.advance(4 * time.Hour) // spot is sold out for good, which nobody knows before each attempt
			attempts := w.cloud.Count(simcloud.OpCreate) - before
			require.Positive(t, attempts)
			require.LessOrEqual(t, attempts, 9)
			require.Equal(t, map[string]int{"small/on-demand": 3}, w.shapes())
		})
	})
}
