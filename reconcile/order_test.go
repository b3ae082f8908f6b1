package reconcile_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/loop"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
)

func spotPoolOf(typ, zone string) simcloud.Pool {
	return simcloud.Pool{InstanceType: typ, Zone: zone, Market: nstance.Spot}
}

// orderedWorld runs a group over two types in two zones with an order of shapes.
func orderedWorld(t *testing.T, order nstance.ShapeOrder, change func(*simcloud.Options), test func(w *world, g nstance.Group)) {
	bubble(t, func(t *testing.T) {
		o := twoZones
		o.Prices = map[simcloud.Pool]float64{
			spotPoolOf("small", "zone-a"): 0.05, spotPoolOf("small", "zone-b"): 0.04, spotPoolOf("large", "zone-a"): 0.03, spotPoolOf("large", "zone-b"): 0.09,
		}
		if change != nil {
			change(&o)
		}
		w := newWorld(t, o)
		defer w.close()
		g := spreadGroup(2, "100%")
		g.Spread, g.Order = nstance.Spread{}, order
		test(w, g)
	})
}

// TestCheapestShape: members are made where they cost least by the latest prices, and the
// price is on their record.
func TestCheapestShape(t *testing.T) {
	orderedWorld(t, nstance.OrderCheapest, nil, func(w *world, g nstance.Group) {
		w.startLeader(g)
		w.advance(2 * time.Minute)
		require.Equal(w.t, map[simcloud.Pool]int{spotPoolOf("large", "zone-a"): 2}, w.pools())
		for _, v := range w.r.Instances() {
			require.Equal(w.t, "cheapest", v.ShapeChoice)
			require.InDelta(w.t, 0.03, v.PricePerHour, 0)
		}
		before := w.ready()
		w.cloud.SetPrice(spotPoolOf("large", "zone-a"), 0.08)
		w.advance(15 * time.Minute)
		require.Equal(w.t, before, w.ready(), "another price moves no machine")

		g.Size = 3
		w.setGroupAndAdvance(g, 2*time.Minute)
		require.Equal(w.t, map[simcloud.Pool]int{spotPoolOf("large", "zone-a"): 2, spotPoolOf("small", "zone-b"): 1}, w.pools())
		larger := g
		larger.Size = 4
		plans, err := w.r.Admin().WhatIf([]nstance.Group{larger}, false)
		require.NoError(w.t, err)
		require.Equal(w.t, reconcile.ShapePlan{InstanceType: "small", Subnet: "s-b", Market: nstance.Spot, Choice: "cheapest"}, *plans[0].Shape)

		w.stopLeader() // the price at launch is durable
		w.startLeader(g)
		w.advance(time.Minute)
		var prices []float64
		for _, v := range w.r.Instances() {
			prices = append(prices, v.PricePerHour)
		}
		require.ElementsMatch(w.t, []float64{0.03, 0.03, 0.04}, prices)
	})
}

// TestPricesUnreadable: creates go on as listed, with the last prices for as long as they
// mean something.
func TestPricesUnreadable(t *testing.T) {
	orderedWorld(t, nstance.OrderCheapest, nil, func(w *world, g nstance.Group) {
		w.startLeader(g)
		w.advance(2 * time.Minute)
		w.cloud.Inject(simcloud.Fault{Op: "prices", Times: -1, Code: nstance.Denied})
		w.cloud.SetPrice(spotPoolOf("large", "zone-a"), 0.08)
		w.advance(time.Hour)
		g.Size = 3
		w.setGroupAndAdvance(g, 2*time.Minute)
		require.Equal(w.t, 3, w.pools()[spotPoolOf("large", "zone-a")], "the last prices")
		w.advance(8 * time.Hour)
		g.Size = 4
		w.setGroupAndAdvance(g, 2*time.Minute)
		require.Equal(w.t, 1, w.pools()[spotPoolOf("small", "zone-a")], "as listed")
		w.requireMembers(4)
	})
}

// TestSteadiestShape: members are made in the pools that are reclaimed least often, as far
// as is known.
func TestSteadiestShape(t *testing.T) {
	orderedWorld(t, nstance.OrderSteadiest, nil, func(w *world, g nstance.Group) {
		w.startLeader(g)
		w.r.Admin().Internals().SetPoolRates([]loop.PoolRate{
			{InstanceType: "small", Zone: "zone-a", Market: nstance.Spot, MachineTime: 1000 * time.Hour, Reclaims: 100},
			{InstanceType: "small", Zone: "zone-b", Market: nstance.Spot, MachineTime: 1000 * time.Hour, Reclaims: 2},
			{InstanceType: "large", Zone: "zone-a", Market: nstance.Spot, MachineTime: 1000 * time.Hour, Reclaims: 50},
		})
		g.Size = 4
		w.setGroupAndAdvance(g, 2*time.Minute)
		require.GreaterOrEqual(w.t, w.pools()[spotPoolOf("small", "zone-b")], 2)
		require.Contains(w.t, w.first(nstance.EventCreateRequested, func(e nstance.Event) bool { return len(e.Reason) > 8 }).Reason, "its pool is reclaimed least often")
	})
}

// TestScoredZones: what the cloud expects of a zone counts while little is known of its
// pools. It is asked once an hour for each set of types.
func TestScoredZones(t *testing.T) {
	orderedWorld(t, nstance.OrderSteadiest, func(o *simcloud.Options) { o.Scores = map[string]int{"zone-a": 2, "zone-b": 9} }, func(w *world, g nstance.Group) {
		g.Size = 0
		w.startLeader(g)
		w.advance(time.Minute)
		g.Size = 2
		w.setGroupAndAdvance(g, time.Minute)
		g.Size = 4
		w.setGroupAndAdvance(g, 2*time.Minute)
		require.GreaterOrEqual(w.t, w.pools()[spotPoolOf("small", "zone-b")], 2)
		w.advance(3 * time.Hour)
		require.LessOrEqual(w.t, w.cloud.Count("zone_scores"), 4)
		require.GreaterOrEqual(w.t, w.cloud.Count("zone_scores"), 3)
	})
}

// TestSpotQuestionsArePaced: a question about prices or placement scores that fails is repeated no
// sooner than one that was answered, however often groups change in the meantime.
func TestSpotQuestionsArePaced(t *testing.T) {
	for op, c := range map[simcloud.Op]struct {
		order nstance.ShapeOrder
		every time.Duration
	}{"prices": {nstance.OrderCheapest, 10 * time.Minute}, "zone_scores": {nstance.OrderSteadiest, time.Hour}} {
		for _, code := range []nstance.Code{nstance.Throttled, nstance.Unavailable, nstance.Denied} {
			t.Run(string(op)+", "+string(code), func(t *testing.T) {
				orderedWorld(t, c.order, func(o *simcloud.Options) { o.Scores = map[string]int{"zone-a": 2} }, func(w *world, g nstance.Group) {
					w.cloud.Inject(simcloud.Fault{Op: op, Times: -1, Code: code})
					w.startLeader(g)
					w.advance(time.Minute)
					require.Equal(t, 1, w.rounds(op))
					for i := range 12 { // other groups have it asked, if it may be
						g.Size = 2 + i%2
						w.setGroupAndAdvance(g, (c.every*9/10-2*time.Minute)/12)
					}
					require.Equal(t, 1, w.rounds(op), "it is too early")
					w.advance(c.every * 4 / 10) // a question and its repetitions take a minute
					require.Equal(t, 2, w.rounds(op))
				})
			})
		}
	}
}

// rounds counts calls, those as one that follow one another: the client repeats what may pass.
func (w *world) rounds(op simcloud.Op) (n int) {
	var last time.Time
	for _, c := range w.cloud.Calls() {
		if c.Op == op {
			if c.At.Sub(last) > 30*time.Second {
				n++
			}
			last = c.At
		}
	}
	return n
}

// TestScoredSets: the cloud answers few different questions in a day. Groups beyond that, groups
// that are empty, and groups on demand are not asked for, and the larger of two groups counts.
func TestScoredSets(t *testing.T) {
	orderedWorld(t, nstance.OrderSteadiest, func(o *simcloud.Options) { o.Scores = map[string]int{"zone-a": 2} }, func(w *world, g nstance.Group) {
		asked := map[string][]int{}
		w.wrap = func(e *leaderEnv) { e.provider = scorer{w.cloud, asked} }
		var groups []nstance.Group
		add := func(size int, change func(*nstance.Group), types ...string) {
			other := g
			other.Key.Group, other.Size = nstance.GroupID(fmt.Sprintf("g%02d", len(groups))), size
			other.Definition.InstanceTypes = types
			if change != nil {
				change(&other)
			}
			groups = append(groups, other)
		}
		add(1, nil, "large", "small")
		add(3, nil, "small", "large")
		add(2, nil, "large", "small")
		add(0, nil, "empty")
		add(1, func(g *nstance.Group) { g.Order = nstance.OrderListed }, "listed")
		add(1, func(g *nstance.Group) { g.Order, g.Definition.Market.Type = "", nstance.OnDemand }, "on-demand")
		for i := range 12 {
			add(1, nil, fmt.Sprintf("t%02d", i))
		}
		w.startLeader(groups...)
		w.advance(3*time.Hour + 30*time.Minute)
		require.Len(t, asked, 10)
		require.Equal(t, []int{3, 3, 3, 3}, asked["large small"], "once an hour, for the larger group")
		for _, types := range []string{"empty", "listed", "on-demand"} {
			require.NotContains(t, asked, types)
		}
	})
}

// A scorer keeps the questions about placement scores, by types.
type scorer struct {
	*simcloud.Cloud
	asked map[string][]int
}

func (s scorer) ZoneScores(_ context.Context, types []string, n int) (map[string]int, error) {
	s.asked[strings.Join(types, " ")] = append(s.asked[strings.Join(types, " ")], n)
	return map[string]int{"zone-a": 2}, nil
}

// TestOrderRefused: an order that cannot be kept is refused where it enters.
func TestOrderRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*nstance.Group)
		want   string
	}{
		"unknown":   {func(g *nstance.Group) { g.Order = "dearest" }, "order"},
		"no choice": {func(g *nstance.Group) { g.Order = nstance.OrderCheapest }, "cheapest has one shape to choose from"},
	} {
		t.Run(name, func(t *testing.T) {
			g := webGroup(1)
			c.change(&g)
			err := g.Validate("")
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorContains(t, err, c.want)
		})
	}
}

// TestReclaimMemoryFollowsRate: a pool that is reclaimed again and again is left for hours.
func TestReclaimMemoryFollowsRate(t *testing.T) {
	for reclaims, back := range map[int]bool{1: true, 300: false} {
		t.Run(fmt.Sprint(reclaims, " reclaims"), func(t *testing.T) {
			orderedWorld(t, nstance.OrderListed, nil, func(w *world, g nstance.Group) {
				w.startLeader(g)
				w.advance(2 * time.Minute)
				w.r.Admin().Internals().SetPoolRates([]loop.PoolRate{{InstanceType: "small", Zone: "zone-a", Market: nstance.Spot, MachineTime: 100 * time.Hour, Reclaims: reclaims}})
				_, err := w.cloud.ReclaimPool(spotPoolOf("small", "zone-a"), 1, 2*time.Minute)
				require.NoError(t, err)
				w.advance(time.Hour)
				require.Zero(t, w.pools()[spotPoolOf("small", "zone-a")])
				g.Size = 4
				w.setGroupAndAdvance(g, 2*time.Minute)
				require.Equal(t, back, w.pools()[spotPoolOf("small", "zone-a")] > 0)
			})
		})
	}
}

// TestFirstPrices: a group whose prices were never asked for waits for them, but not for
// long, and a loss not at all.
func TestFirstPrices(t *testing.T) {
	t.Run("a new group has the cheapest shape", func(t *testing.T) {
		orderedWorld(t, nstance.OrderCheapest, nil, func(w *world, g nstance.Group) {
			w.startLeader()
			w.advance(time.Minute)
			w.setGroupAndAdvance(g, time.Minute)
			require.Equal(t, map[simcloud.Pool]int{spotPoolOf("large", "zone-a"): 2}, w.pools())
		})
	})
	t.Run("no answer", func(t *testing.T) {
		orderedWorld(t, nstance.OrderCheapest, nil, func(w *world, g nstance.Group) {
			w.startLeader()
			w.advance(time.Minute)
			w.cloud.Inject(simcloud.Fault{Op: "prices", Times: -1})
			w.setGroupAndAdvance(g, time.Second)
			require.Empty(t, w.pools())
			w.advance(5 * time.Second)
			require.Equal(t, map[simcloud.Pool]int{spotPoolOf("small", "zone-a"): 2}, w.pools())
			for _, v := range w.r.Instances() {
				require.Equal(t, "listed", v.ShapeChoice)
				require.Zero(t, v.PricePerHour)
			}
		})
	})
	t.Run("prices of listed shapes come later", func(t *testing.T) {
		orderedWorld(t, nstance.OrderListed, nil, func(w *world, g nstance.Group) {
			w.keepLives = true
			w.startLeader()
			w.advance(time.Minute)
			w.setGroupAndAdvance(g, time.Minute)
			require.InDelta(t, 0.05, w.r.Instances()[0].PricePerHour, 0)
			id := w.ready()[0]
			require.NoError(t, w.cloud.Reclaim(id, 2*time.Minute))
			w.advance(3 * time.Minute)
			require.InDelta(t, 0.05, w.lives()[id][0].Price, 0)
		})
	})
}
