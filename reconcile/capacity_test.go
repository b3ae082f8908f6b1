package reconcile_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// small is the pool that wanted groups are made from.
var small = simcloud.Pool{InstanceType: "small"}

// callsAMinute lets minutes pass and returns the most create calls in one.
func (w *world) callsAMinute(minutes int) (most int) {
	w.t.Helper()
	for range minutes {
		before := w.cloud.Count(simcloud.OpCreate)
		w.passes(time.Minute)
		most = max(most, w.cloud.Count(simcloud.OpCreate)-before)
	}
	return most
}

func (w *world) holds(kind string) bool {
	for _, h := range w.group().Holds {
		if h.Kind == kind {
			return true
		}
	}
	return false
}

func TestSoldOutShardCostsAHandfulOfCalls(t *testing.T) {
	const size = 1000
	for _, c := range []struct {
		name  string
		close func(*world)
		open  func(*world)
	}{
		{"no capacity", func(w *world) { w.cloud.SetCapacity(small, 0) }, func(w *world) { w.cloud.SetCapacity(small, -1) }},
		{"no quota", func(w *world) {
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Times: -1, Code: nstance.Quota})
		}, func(w *world) { w.cloud.Heal() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, simcloud.Options{Boot: simcloud.Constant(time.Hour)})
				defer w.close()
				c.close(w)
				w.lead(wanted(size))
				require.LessOrEqual(t, w.callsAMinute(1), 10, "from the first minute on")
				require.LessOrEqual(t, w.callsAMinute(10), 3)
				require.True(t, w.holds(plan.HoldCapacity), "and it says why: %+v", w.group().Holds)
				require.Empty(t, w.cloud.Machines())
				require.Zero(t, w.count(nstance.EventRolloutHalted, ""), "it is no fault of the image")

				c.open(w)
				w.passes(70 * time.Second)
				require.Len(t, w.cloud.Machines(), size, "what returns is used within a minute")
				require.False(t, w.holds(plan.HoldCapacity))
			})
		})
	}
}

func TestGroupsShareWhatTheyKnowOfShortages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.cloud.SetCapacity(small, 0)
		var groups []nstance.Group
		for i := range 50 {
			g := wanted(20)
			g.Key.Group = nstance.GroupID(fmt.Sprintf("g%d", i))
			groups = append(groups, g)
		}
		w.lead(groups...)
		require.LessOrEqual(t, w.callsAMinute(10), 10)

		other := wanted(3)
		other.Definition.InstanceTypes = []string{"small", "medium"}
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{other}})
		w.passes(time.Minute)
		require.Len(t, w.ready(), 3, "a group that has another choice waits for none of them")
		require.Equal(t, map[string]int{"medium/spot": 3}, w.shapes())

		w.cloud.SetCapacity(small, -1)
		w.passes(3 * time.Minute)
		require.Len(t, w.ready(), 50*20+3, "each gets its share")
	})
}

func TestCapacityThatEndsInTheMiddle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{Boot: simcloud.Constant(time.Hour)})
		defer w.close()
		w.cloud.SetCapacity(small, 300)
		g := wanted(1000)
		g.Definition.LaunchTimeout, g.Definition.RegistrationTimeout = 0, 0
		w.lead(g)
		w.passes(time.Minute)
		require.Len(t, w.cloud.Machines(), 300)
		require.LessOrEqual(t, w.cloud.Count(simcloud.OpCreate), 300+128+10, "those under way are refused, the rest is not asked for")
		require.LessOrEqual(t, w.callsAMinute(10), 3)
		require.Equal(t, 300, w.group().Booting, "and nothing else counts as a member")
	})
}

func TestLossesWaitForNoAnswer(t *testing.T) {
	within(t, 20, simcloud.Options{Latency: simcloud.Constant(2 * time.Second)}, func(t *testing.T, w *world) {
		p := w.timing()
		w.succeeds(wanted(20))
		w.passes(time.Hour) // nobody remembers that there was capacity
		began := time.Now()
		for _, id := range w.ready() {
			require.NoError(t, w.cloud.Reclaim(id, 5*time.Minute))
		}
		w.passes(time.Second)
		called, _ := p.since(began)
		require.Equal(t, 20, called, "before any has been answered")
	})
}

func TestReclaimedShapeIsAskedForLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		g := wanted(3)
		g.Definition.InstanceTypes = []string{"small", "medium"}
		w.lead(g)
		w.passes(2 * time.Minute)
		require.Equal(t, map[string]int{"small/spot": 3}, w.shapes())

		require.NoError(t, w.cloud.Reclaim(w.ready()[0], 30*time.Second))
		w.passes(2 * time.Minute)
		w.agrees(3)
		require.Equal(t, map[string]int{"small/spot": 2, "medium/spot": 1}, w.shapes())

		w.cloud.SetCapacity(simcloud.Pool{InstanceType: "medium"}, 1)
		g.Size = 4
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{g}})
		w.passes(10 * time.Second)
		require.Equal(t, map[string]int{"small/spot": 3, "medium/spot": 1}, w.shapes(), "last is not never")

		w.passes(5 * time.Minute)
		w.cloud.SetCapacity(simcloud.Pool{InstanceType: "medium"}, -1)
		g.Size = 5
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{g}})
		w.passes(10 * time.Second)
		require.Equal(t, map[string]int{"small/spot": 4, "medium/spot": 1}, w.shapes(), "after a while it is first again")
	})
}

func TestFallbackIsForWhatIsSoldOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		g := wanted(2)
		g.Definition.Market = nstance.Market{Type: nstance.Spot, MaxPrice: "0.05", Fallback: nstance.OnDemand}
		w.lead(g)
		w.passes(2 * time.Minute)
		require.NoError(t, w.cloud.Reclaim(w.ready()[0], 30*time.Second))
		w.passes(2 * time.Minute)
		require.Equal(t, map[string]int{"small/spot": 2}, w.shapes(), "a reclaim alone is no shortage")

		w.cloud.SetCapacity(simcloud.Pool{Market: nstance.Spot}, 2)
		g.Size = 4
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{g}})
		w.passes(time.Minute)
		w.agrees(4)
		require.Equal(t, map[string]int{"small/spot": 2, "small/on-demand": 2}, w.shapes(), "without fallback_after it is bought at once")
		for _, m := range w.cloud.Machines() {
			s, _ := w.cloud.Spec(m.ID)
			require.Equal(t, s.Market == nstance.Spot, s.MaxPrice != "", "a price is for spot")
		}
	})
}

// perSubnet counts the machines by subnet.
func (w *world) perSubnet() map[string]int {
	out := map[string]int{}
	for _, m := range w.cloud.Machines() {
		s, _ := w.cloud.Spec(m.ID)
		out[s.Subnet]++
	}
	return out
}

func TestSubnets(t *testing.T) {
	spread := func(t *testing.T, sizes map[string]int, test func(t *testing.T, w *world, g nstance.Group)) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, simcloud.Options{Subnets: sizes, Latency: simcloud.Constant(time.Second)})
			defer w.close()
			g := wanted(6)
			g.Definition.Subnets = []string{"a", "b", "c"}
			test(t, w, g)
		})
	}
	t.Run("most free addresses first, those under way counted", func(t *testing.T) {
		spread(t, map[string]int{"a": 3, "b": 5, "c": 0}, func(t *testing.T, w *world, g nstance.Group) {
			w.lead(g)
			w.passes(2 * time.Minute)
			w.agrees(6)
			require.Equal(t, map[string]int{"a": 2, "b": 4}, w.perSubnet())
			require.Zero(t, w.count(nstance.EventCreateFailed, ""), "none was sent where there was no room")
		})
	})
	t.Run("a full one is asked after one that was just reclaimed", func(t *testing.T) {
		spread(t, map[string]int{"a": 0, "b": 0, "c": 9}, func(t *testing.T, w *world, g nstance.Group) {
			g.Size = 2
			w.lead(g)
			w.passes(2 * time.Minute)
			require.NoError(t, w.cloud.Reclaim(w.ready()[0], 30*time.Second))
			w.passes(2 * time.Minute)
			w.agrees(2)
			require.Equal(t, map[string]int{"c": 2}, w.perSubnet())
			require.Zero(t, w.count(nstance.EventCreateFailed, ""), "none was sent where there was no room")
		})
	})
	t.Run("what is freed is counted again", func(t *testing.T) {
		spread(t, map[string]int{"a": 3, "b": 5, "c": 0}, func(t *testing.T, w *world, g nstance.Group) {
			w.lead(g)
			w.passes(2 * time.Minute)
			for _, m := range w.cloud.Machines() {
				if s, _ := w.cloud.Spec(m.ID); s.Subnet == "b" {
					require.NoError(t, w.cloud.Kill(m.ID))
					w.r.Observe(nstance.Disconnected{ID: m.ID})
					w.passes(30 * time.Second) // until it is replaced: what is lost at once is replaced before it can be counted
				}
			}
			w.passes(10 * time.Minute)
			w.agrees(6)
			g.Size = 8
			w.r.Observe(nstance.Desired{Groups: []nstance.Group{g}})
			w.passes(2 * time.Minute)
			w.agrees(8)
			require.Equal(t, map[string]int{"a": 3, "b": 5}, w.perSubnet())
			require.LessOrEqual(t, w.count(nstance.EventCreateFailed, ""), 1, "a machine that begins during a count may be counted twice")
		})
	})
	t.Run("where nothing is told, in the configured order", func(t *testing.T) {
		spread(t, nil, func(t *testing.T, w *world, g nstance.Group) {
			w.lead(g)
			w.passes(2 * time.Minute)
			w.agrees(6)
			require.Equal(t, map[string]int{"a": 6}, w.perSubnet())
		})
	})
	t.Run("where the count fails, in the configured order, and on into the next when one is full", func(t *testing.T) {
		spread(t, map[string]int{"a": 4, "b": 5, "c": 9}, func(t *testing.T, w *world, g nstance.Group) {
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpFreeAddresses, Times: -1})
			w.lead(g)
			w.passes(2 * time.Minute)
			w.agrees(6)
			require.Equal(t, map[string]int{"a": 4, "b": 2}, w.perSubnet())
		})
	})
	t.Run("a count that does not come keeps nobody waiting", func(t *testing.T) {
		spread(t, map[string]int{"a": 9, "b": 9, "c": 9}, func(t *testing.T, w *world, g nstance.Group) {
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpFreeAddresses, Code: nstance.Throttled, Times: -1}) // which is repeated
			began := time.Now()
			w.lead(g)
			for len(w.cloud.Machines()) == 0 {
				w.passes(100 * time.Millisecond)
			}
			require.Less(t, time.Since(began), 10*time.Second)
		})
	})
}

// TestQuotaIsOfOneTypeInOneMarket goes on to the next instance type, and asks for
// the first no more often than for one that is sold out.
func TestQuotaIsOfOneTypeInOneMarket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.wrap = func(o *office) { o.provider = quotaOf{o.provider, "small", ""} }
		g := wanted(20)
		g.Definition.InstanceTypes, g.Definition.Subnets = []string{"small", "medium"}, []string{"a", "b", "c"}
		w.lead(g)
		w.passes(2 * time.Minute)
		w.agrees(20)
		require.Equal(t, map[string]int{"medium/spot": 20}, w.shapes())
		require.LessOrEqual(t, w.count(nstance.EventCreateFailed, ""), 4, "as many as are under way at first, whatever the subnets")
		require.Zero(t, w.blamed())
	})
}

// quotaOf is a provider whose account may have no machines of a type in a market.
type quotaOf struct {
	nstance.Provider
	instanceType string             // empty: any
	market       nstance.MarketType // likewise
}

func (q quotaOf) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	if (q.instanceType == "" || spec.InstanceType == q.instanceType) && (q.market == "" || spec.Market == q.market) {
		return nstance.Machine{}, nstance.Errorf(nstance.Quota, "no quota for %s", q.instanceType)
	}
	return q.Provider.Create(ctx, spec)
}
