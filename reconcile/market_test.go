package reconcile_test

import (
	"testing"
	"testing/synctest"
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

// mixed runs a spot group of some size that may fall back to on-demand.
func mixed(t *testing.T, size int, o simcloud.Options, test func(t *testing.T, w *world, g nstance.Group)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, o)
		defer w.close()
		g := wanted(size)
		g.Definition.Market = nstance.Market{Type: nstance.Spot, Fallback: nstance.OnDemand, FallbackAfter: time.Minute}
		test(t, w, g)
	})
}

// observe tells the leader what is wanted, and lets some time pass.
func (w *world) observe(g nstance.Group, d time.Duration) {
	w.t.Helper()
	w.r.Observe(nstance.Desired{Groups: []nstance.Group{g}})
	w.passes(d)
}

// never lets time pass, and checks every ten seconds that the group has at least
// so many on-demand machines that run or boot.
func (w *world) neverFewer(onDemand int, d time.Duration) {
	w.t.Helper()
	for range int(d / (10 * time.Second)) {
		w.passes(10 * time.Second)
		require.GreaterOrEqual(w.t, w.shapes()["small/on-demand"], onDemand)
	}
}

func TestOnDemandBase(t *testing.T) {
	based := func(t *testing.T, size int, base nstance.Count, test func(t *testing.T, w *world, g nstance.Group)) {
		mixed(t, size, simcloud.Options{}, func(t *testing.T, w *world, g nstance.Group) {
			g.Definition.Market.OnDemandBase = base
			test(t, w, g)
		})
	}
	t.Run("is made first", func(t *testing.T) {
		based(t, 5, nstance.Count{N: 2}, func(t *testing.T, w *world, g nstance.Group) {
			w.lead(g)
			w.passes(2 * time.Minute)
			w.agrees(5)
			require.Equal(t, map[string]int{"small/on-demand": 2, "small/spot": 3}, w.shapes())
			v := w.group()
			require.Equal(t, []int{2, 3}, []int{v.OnDemandMarket, v.SpotMarket})
			require.True(t, v.ReturnAt.IsZero())
		})
	})
	t.Run("may be a part of the group, rounded up", func(t *testing.T) {
		based(t, 5, nstance.Count{N: 30, Percent: true}, func(t *testing.T, w *world, g nstance.Group) {
			w.lead(g)
			w.passes(2 * time.Minute)
			require.Equal(t, map[string]int{"small/on-demand": 2, "small/spot": 3}, w.shapes())
		})
	})
	t.Run("a lost member of it is replaced on demand, others on spot", func(t *testing.T) {
		based(t, 4, nstance.Count{N: 2}, func(t *testing.T, w *world, g nstance.Group) {
			w.lead(g)
			w.passes(2 * time.Minute)
			for _, market := range []nstance.MarketType{nstance.OnDemand, nstance.Spot} {
				for _, m := range w.cloud.Machines() {
					if m.Market == market {
						require.NoError(t, w.cloud.Kill(m.ID))
						w.r.Observe(nstance.Disconnected{ID: m.ID})
					}
				}
				w.passes(3 * time.Minute)
				w.agrees(4)
				require.Equal(t, map[string]int{"small/on-demand": 2, "small/spot": 2}, w.shapes())
			}
		})
	})
	t.Run("is kept through scale-down, and what is beyond it goes", func(t *testing.T) {
		based(t, 6, nstance.Count{N: 2}, func(t *testing.T, w *world, g nstance.Group) {
			w.lead(g)
			w.passes(2 * time.Minute)
			g.Size = 3
			w.observe(g, 0)
			w.neverFewer(2, 3*time.Minute)
			w.agrees(3)
			require.Equal(t, map[string]int{"small/on-demand": 2, "small/spot": 1}, w.shapes())
			g.Size = 1
			w.observe(g, 3*time.Minute)
			require.Equal(t, map[string]int{"small/on-demand": 1}, w.shapes())
		})
	})
	for surge := range 3 {
		t.Run("is kept through a rollout with max_surge "+string(rune('0'+surge)), func(t *testing.T) {
			based(t, 4, nstance.Count{N: 2}, func(t *testing.T, w *world, g nstance.Group) {
				g.Rollout.MaxSurge.N = surge
				w.lead(g)
				w.passes(2 * time.Minute)
				g.Definition.UserData.Content = "v2"
				w.observe(g, 0)
				w.neverFewer(min(2, 1+surge), 10*time.Minute)
				w.agrees(4)
				require.Equal(t, map[string]int{"small/on-demand": 2, "small/spot": 2}, w.shapes())
				require.Zero(t, w.group().Stale)
				require.LessOrEqual(t, w.cloud.Count(simcloud.OpCreate), 8, "each is replaced once")
			})
		})
	}
	for surge := range 2 {
		t.Run("a change of it alone replaces no more than it must, with max_surge "+string(rune('0'+surge)), func(t *testing.T) {
			based(t, 4, nstance.Count{}, func(t *testing.T, w *world, g nstance.Group) {
				g.Rollout.MaxSurge.N = surge
				w.lead(g)
				w.passes(2 * time.Minute)
				require.Equal(t, map[string]int{"small/spot": 4}, w.shapes())
				g.Definition.Market.OnDemandBase.N = 2
				w.observe(g, 0)
				for range 30 {
					w.passes(10 * time.Second)
					require.GreaterOrEqual(t, len(w.ready()), 3+surge)
				}
				w.agrees(4)
				require.Equal(t, map[string]int{"small/spot": 2, "small/on-demand": 2}, w.shapes())
				require.Equal(t, 6, w.cloud.Count(simcloud.OpCreate))
				require.Zero(t, w.group().Stale, "no drift of what they are made from")
				w.passes(2 * time.Hour)
				require.Equal(t, 6, w.cloud.Count(simcloud.OpCreate), "it has come to rest")
			})
		})
	}
	t.Run("waits for on-demand capacity, and nothing else does", func(t *testing.T) {
		based(t, 3, nstance.Count{N: 1}, func(t *testing.T, w *world, g nstance.Group) {
			w.cloud.SetCapacity(onDemandPool, 0)
			w.lead(g)
			w.passes(3 * time.Minute)
			require.Equal(t, map[string]int{"small/spot": 2}, w.shapes())
			require.True(t, w.holds(plan.HoldCapacity))
			w.cloud.SetCapacity(onDemandPool, -1)
			w.passes(3 * time.Minute)
			require.Equal(t, map[string]int{"small/spot": 2, "small/on-demand": 1}, w.shapes())
		})
	})
}

func TestFallbackForQuota(t *testing.T) {
	mixed(t, 3, simcloud.Options{}, func(t *testing.T, w *world, g nstance.Group) {
		w.wrap = func(o *office) { o.provider = quotaOf{o.provider, "", nstance.Spot} }
		w.lead(g)
		w.passes(50 * time.Second)
		require.Empty(t, w.cloud.Machines(), "not before fallback_after")
		w.passes(3 * time.Minute)
		require.Equal(t, map[string]int{"small/on-demand": 3}, w.shapes())
	})
}

// TestFallbackForMachinesThatNeverStart counts an accepted machine without
// capacity as part of the same shortage.
func TestFallbackForMachinesThatNeverStart(t *testing.T) {
	mixed(t, 1, simcloud.Options{}, func(t *testing.T, w *world, g nstance.Group) {
		w.cloud.FailStarts(spotPool, nstance.LossCapacity, 1000)
		w.lead(g)
		w.passes(6 * time.Minute)
		require.Equal(t, map[string]int{"small/on-demand": 1}, w.shapes())
		require.Zero(t, w.blamed())
	})
}

// soldOut leads a group whose members have all fallen back to on-demand.
func (w *world) soldOut(g nstance.Group) {
	w.t.Helper()
	w.cloud.SetCapacity(spotPool, 0)
	w.lead(g)
	w.passes(4 * time.Minute)
	require.Equal(w.t, map[string]int{"small/on-demand": g.Size}, w.shapes())
}

func TestReturnToSpot(t *testing.T) {
	t.Run("one surge at a time, after return_after", func(t *testing.T) {
		mixed(t, 3, simcloud.Options{}, func(t *testing.T, w *world, g nstance.Group) {
			w.soldOut(g)
			w.cloud.SetCapacity(spotPool, -1)
			at := w.group().ReturnAt
			require.WithinDuration(t, time.Now().Add(nstance.DefaultReturnAfter), at, 4*time.Minute)
			w.passes(time.Until(at) - time.Second)
			require.Equal(t, map[string]int{"small/on-demand": 3}, w.shapes())
			for range 60 {
				w.passes(5 * time.Second)
				require.GreaterOrEqual(t, len(w.ready()), 3)
				require.LessOrEqual(t, len(w.cloud.Machines()), 4)
			}
			w.passes(5 * time.Minute)
			w.agrees(3)
			require.Equal(t, map[string]int{"small/spot": 3}, w.shapes())
			require.True(t, w.group().ReturnAt.IsZero())
		})
	})
	t.Run("keeps the base", func(t *testing.T) {
		mixed(t, 3, simcloud.Options{}, func(t *testing.T, w *world, g nstance.Group) {
			g.Definition.Market.OnDemandBase.N = 1
			w.soldOut(g)
			w.cloud.SetCapacity(spotPool, -1)
			w.neverFewer(1, time.Hour)
			w.agrees(3)
			require.Equal(t, map[string]int{"small/spot": 2, "small/on-demand": 1}, w.shapes())
		})
	})
	t.Run("a refused one doubles the pause, also over a reload and a change of leader", func(t *testing.T) {
		mixed(t, 2, simcloud.Options{}, func(t *testing.T, w *world, g nstance.Group) {
			g.Definition.Market.ReturnAfter = 10 * time.Minute
			w.soldOut(g)
			began, last, tries := time.Now(), w.cloud.Count(simcloud.OpCreate), []time.Duration{}
			for minute := range 170 {
				w.passes(time.Minute)
				if n := w.cloud.Count(simcloud.OpCreate); n != last {
					last = n
					tries = append(tries, time.Since(began).Round(10*time.Minute))
				}
				switch minute {
				case 40:
					w.observe(g, 0)
				case 90:
					w.depose()
					w.lead(g)
				}
			}
			require.Equal(t, []time.Duration{10 * time.Minute, 30 * time.Minute, 70 * time.Minute, 150 * time.Minute}, tries)
			require.Equal(t, 4, w.group().FailedReturns)
			w.agrees(2)
			require.Equal(t, map[string]int{"small/on-demand": 2}, w.shapes())
			require.Zero(t, w.blamed())
		})
	})
	t.Run("one that is taken before it was ready for min_ready is a failure", func(t *testing.T) {
		mixed(t, 2, simcloud.Options{}, func(t *testing.T, w *world, g nstance.Group) {
			g.Definition.Market.ReturnAfter, g.Rollout.MinReady = 10*time.Minute, 2*time.Minute
			w.soldOut(g)
			w.cloud.SetCapacity(spotPool, -1)
			taken := 0
			for range 60 {
				w.passes(time.Minute)
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
		mixed(t, 2, simcloud.Options{}, func(t *testing.T, w *world, g nstance.Group) {
			g.Rollout.MaxSurge.N = 0
			w.soldOut(g)
			w.cloud.SetCapacity(spotPool, -1)
			w.passes(2 * time.Hour)
			require.Equal(t, map[string]int{"small/on-demand": 2}, w.shapes())
			g.Rollout.MaxSurge.N = 1
			require.NoError(t, w.r.Pause(w.ctx, web, eve))
			w.observe(g, time.Hour)
			require.Equal(t, map[string]int{"small/on-demand": 2}, w.shapes())
			require.NoError(t, w.r.Resume(w.ctx, web, eve))
			w.passes(10 * time.Minute)
			require.Equal(t, map[string]int{"small/spot": 2}, w.shapes())
		})
	})
}

// TestActualMarket promises that what the cloud says of a machine's market counts,
// not what it was asked for.
func TestActualMarket(t *testing.T) {
	o := simcloud.Options{Substitute: map[nstance.MarketType]nstance.MarketType{nstance.Spot: nstance.OnDemand}}
	mixed(t, 2, o, func(t *testing.T, w *world, g nstance.Group) {
		g.Definition.Market.ReturnAfter = 10 * time.Minute
		w.lead(g)
		w.passes(2 * time.Minute)
		w.agrees(2)
		for _, v := range w.r.Instances() {
			require.Equal(t, nstance.OnDemand, v.Market)
			require.Equal(t, 1, w.count(nstance.EventMarketDiffers, v.Record.ID))
		}
		require.Equal(t, 2, w.group().OnDemandMarket)
		var kinds []string
		for _, a := range w.r.Attention() {
			kinds = append(kinds, a.Kind)
		}
		require.Contains(t, kinds, reconcile.AttentionMarket)
		w.passes(3 * time.Hour)
		w.agrees(2)
		require.LessOrEqual(t, w.cloud.Count(simcloud.OpCreate), 2+4, "going back fails, and is tried less and less often")
		require.GreaterOrEqual(t, w.group().FailedReturns, 3)
	})
}
