package reconcile_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/notice"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// small is the capacity pool of webGroup.
var small = simcloud.Pool{InstanceType: "small"}

// maxCreatesPerMinute advances some minutes and returns the most create calls in one.
func (w *world) maxCreatesPerMinute(minutes int) (most int) {
	w.t.Helper()
	for range minutes {
		before := w.cloud.Count(simcloud.OpCreate)
		w.advance(time.Minute)
		most = max(most, w.cloud.Count(simcloud.OpCreate)-before)
	}
	return most
}

func (w *world) hasHold(kind plan.HoldKind) bool {
	for _, h := range w.group().Holds {
		if h.Kind == kind {
			return true
		}
	}
	return false
}

func TestSoldOutShardCostsFewCalls(t *testing.T) {
	const size = 1000
	for _, c := range []struct {
		name  string
		close func(*world)
		open  func(*world)
	}{
		{"no capacity", func(w *world) { w.cloud.SetCapacity(small, 0) }, func(w *world) { w.cloud.SetCapacity(small, -1) }},
		{"no quota", func(w *world) {
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Times: -1, Code: nstance.Quota})
		}, func(w *world) { w.cloud.ClearFaults() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, simcloud.Options{Boot: simcloud.Delay{Min: time.Hour}})
				defer w.close()
				c.close(w)
				w.startLeader(webGroup(size))
				require.LessOrEqual(t, w.maxCreatesPerMinute(1), 10, "from the first minute")
				require.LessOrEqual(t, w.maxCreatesPerMinute(10), 3)
				require.True(t, w.hasHold(plan.HoldCapacity), "the hold names the reason: %+v", w.group().Holds)
				require.Empty(t, w.cloud.Machines())
				require.Zero(t, w.count(nstance.EventRolloutHalted, ""), "not a failure of the image")

				c.open(w)
				w.advance(70 * time.Second)
				require.Len(t, w.cloud.Machines(), size, "returned capacity is used within a minute")
				require.False(t, w.hasHold(plan.HoldCapacity))
			})
		})
	}
}

func TestGroupsShareCapacityCache(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.cloud.SetCapacity(small, 0)
		var groups []nstance.Group
		for i := range 50 {
			g := webGroup(20)
			g.Key.Group = nstance.GroupID(fmt.Sprintf("g%d", i))
			groups = append(groups, g)
		}
		w.startLeader(groups...)
		require.LessOrEqual(t, w.maxCreatesPerMinute(10), 10)

		other := webGroup(3)
		other.Definition.InstanceTypes = []string{"small", "medium"}
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{other}})
		w.advance(time.Minute)
		require.Len(t, w.ready(), 3, "a group with a second type does not wait")
		require.Equal(t, map[string]int{"medium/spot": 3}, w.shapes())

		w.cloud.SetCapacity(small, -1)
		w.advance(3 * time.Minute)
		require.Len(t, w.ready(), 50*20+3, "both groups are complete")
	})
}

func TestCapacityRunsOutMidway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{Boot: simcloud.Delay{Min: time.Hour}})
		defer w.close()
		w.cloud.SetCapacity(small, 300)
		g := webGroup(1000)
		g.Definition.LaunchTimeout, g.Definition.RegistrationTimeout = 0, 0
		w.startLeader(g)
		w.advance(time.Minute)
		require.Len(t, w.cloud.Machines(), 300)
		require.LessOrEqual(t, w.cloud.Count(simcloud.OpCreate), 300+128+10, "creates in flight are refused, no others are sent")
		require.LessOrEqual(t, w.maxCreatesPerMinute(10), 3)
		require.Equal(t, 300, w.group().Booting, "refused creates are not members")
	})
}

func TestLossesSkipFirstAnswerWait(t *testing.T) {
	withGroup(t, 20, simcloud.Options{Latency: simcloud.Delay{Min: 2 * time.Second}}, func(t *testing.T, w *world) {
		p := w.timing()
		w.changeLeader(webGroup(20))
		w.advance(time.Hour) // the capacity cache has expired
		began := time.Now()
		for _, id := range w.ready() {
			require.NoError(t, w.cloud.Reclaim(id, 5*time.Minute))
		}
		w.advance(time.Second)
		called, _ := p.since(began)
		require.Equal(t, 20, called, "before any answer")
	})
}

func TestReclaimedShapeIsTriedLast(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		g := webGroup(3)
		g.Definition.InstanceTypes = []string{"small", "medium"}
		w.startLeader(g)
		w.advance(2 * time.Minute)
		require.Equal(t, map[string]int{"small/spot": 3}, w.shapes())

		require.NoError(t, w.cloud.Reclaim(w.ready()[0], 30*time.Second))
		w.advance(2 * time.Minute)
		w.requireMembers(3)
		require.Equal(t, map[string]int{"small/spot": 2, "medium/spot": 1}, w.shapes())

		w.cloud.SetCapacity(simcloud.Pool{InstanceType: "medium"}, 1)
		g.Size = 4
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{g}})
		w.advance(10 * time.Second)
		require.Equal(t, map[string]int{"small/spot": 3, "medium/spot": 1}, w.shapes(), "tried last, but tried")

		w.advance(20 * time.Minute)
		w.cloud.SetCapacity(simcloud.Pool{InstanceType: "medium"}, -1)
		g.Size = 5
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{g}})
		w.advance(10 * time.Second)
		require.Equal(t, map[string]int{"small/spot": 4, "medium/spot": 1}, w.shapes(), "first again when the reclaim is forgotten")
	})
}

func TestFallbackOnlyWhenSoldOut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		g := webGroup(2)
		g.Definition.Market = nstance.Market{Type: nstance.Spot, MaxPrice: "0.05", Fallback: nstance.OnDemand}
		w.startLeader(g)
		w.advance(2 * time.Minute)
		require.NoError(t, w.cloud.Reclaim(w.ready()[0], 30*time.Second))
		w.advance(2 * time.Minute)
		require.Equal(t, map[string]int{"small/spot": 2}, w.shapes(), "a reclaim alone is not a shortage")

		w.cloud.SetCapacity(simcloud.Pool{Market: nstance.Spot}, 2)
		g.Size = 4
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{g}})
		w.advance(time.Minute)
		w.requireMembers(4)
		require.Equal(t, map[string]int{"small/spot": 2, "small/on-demand": 2}, w.shapes(), "without fallback_after, on-demand at once")
		for _, m := range w.cloud.Machines() {
			s, _ := w.cloud.Spec(m.ID)
			require.Equal(t, s.Market == nstance.Spot, s.MaxPrice != "", "max price only for spot")
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
		bubble(t, func(t *testing.T) {
			w := newWorld(t, simcloud.Options{Subnets: sizes, Latency: simcloud.Delay{Min: time.Second}})
			defer w.close()
			g := webGroup(6)
			g.Definition.Subnets = []string{"a", "b", "c"}
			test(t, w, g)
		})
	}
	t.Run("most free addresses first, creates in flight counted", func(t *testing.T) {
		spread(t, map[string]int{"a": 3, "b": 5, "c": 0}, func(t *testing.T, w *world, g nstance.Group) {
			w.startLeader(g)
			w.advance(2 * time.Minute)
			w.requireMembers(6)
			require.Equal(t, map[string]int{"a": 2, "b": 4}, w.perSubnet())
			require.Zero(t, w.count(nstance.EventCreateFailed, ""), "no create in a full subnet")
		})
	})
	t.Run("full subnet after a recently reclaimed one", func(t *testing.T) {
		spread(t, map[string]int{"a": 0, "b": 0, "c": 9}, func(t *testing.T, w *world, g nstance.Group) {
			g.Size = 2
			w.startLeader(g)
			w.advance(2 * time.Minute)
			require.NoError(t, w.cloud.Reclaim(w.ready()[0], 30*time.Second))
			w.advance(2 * time.Minute)
			w.requireMembers(2)
			require.Equal(t, map[string]int{"c": 2}, w.perSubnet())
			require.Zero(t, w.count(nstance.EventCreateFailed, ""), "no create in a full subnet")
		})
	})
	t.Run("freed addresses are counted again", func(t *testing.T) {
		spread(t, map[string]int{"a": 3, "b": 5, "c": 0}, func(t *testing.T, w *world, g nstance.Group) {
			w.startLeader(g)
			w.advance(2 * time.Minute)
			for _, m := range w.cloud.Machines() {
				if s, _ := w.cloud.Spec(m.ID); s.Subnet == "b" {
					require.NoError(t, w.cloud.Kill(m.ID))
					w.r.Observe(nstance.Disconnected{ID: m.ID})
					w.advance(30 * time.Second) // replaced: a simultaneous loss is replaced before the count is refreshed
				}
			}
			w.advance(10 * time.Minute)
			w.requireMembers(6)
			g.Size = 8
			w.r.Observe(nstance.Desired{Groups: []nstance.Group{g}})
			w.advance(2 * time.Minute)
			w.requireMembers(8)
			require.Equal(t, map[string]int{"a": 3, "b": 5}, w.perSubnet())
			require.LessOrEqual(t, w.count(nstance.EventCreateFailed, ""), 1, "a machine created during a count may be counted twice")
		})
	})
	t.Run("without counts, in configured order", func(t *testing.T) {
		spread(t, nil, func(t *testing.T, w *world, g nstance.Group) {
			w.startLeader(g)
			w.advance(2 * time.Minute)
			w.requireMembers(6)
			require.Equal(t, map[string]int{"a": 6}, w.perSubnet())
		})
	})
	t.Run("failing count: configured order, next subnet when one is full", func(t *testing.T) {
		spread(t, map[string]int{"a": 4, "b": 5, "c": 9}, func(t *testing.T, w *world, g nstance.Group) {
			w.cloud.Inject(simcloud.Fault{Op: "free_addresses", Times: -1})
			w.startLeader(g)
			w.advance(2 * time.Minute)
			w.requireMembers(6)
			require.Equal(t, map[string]int{"a": 4, "b": 2}, w.perSubnet())
		})
	})
	t.Run("hanging count delays no create", func(t *testing.T) {
		spread(t, map[string]int{"a": 9, "b": 9, "c": 9}, func(t *testing.T, w *world, g nstance.Group) {
			w.cloud.Inject(simcloud.Fault{Op: "free_addresses", Code: nstance.Throttled, Times: -1}) // repeated by the client
			began := time.Now()
			w.startLeader(g)
			for len(w.cloud.Machines()) == 0 {
				w.advance(100 * time.Millisecond)
			}
			require.Less(t, time.Since(began), 10*time.Second)
		})
	})
}

// TestQuotaIsPerTypeAndMarket: a quota error moves on to the next instance type and
// backs off like a sold-out shape.
func TestQuotaIsPerTypeAndMarket(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.wrap = func(o *leaderEnv) { o.provider = quotaOf{o.provider, "small", ""} }
		g := webGroup(20)
		g.Definition.InstanceTypes, g.Definition.Subnets = []string{"small", "medium"}, []string{"a", "b", "c"}
		w.startLeader(g)
		w.advance(2 * time.Minute)
		w.requireMembers(20)
		require.Equal(t, map[string]int{"medium/spot": 20}, w.shapes())
		require.LessOrEqual(t, w.count(nstance.EventCreateFailed, ""), 4, "one per create in flight, not per subnet")
		require.Zero(t, w.failureCount())
	})
}

// quotaOf is a provider without quota for one type in one market.
type quotaOf struct {
	nstance.Provider
	instanceType string             // empty: any
	market       nstance.MarketType // empty: any
}

func (q quotaOf) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	if (q.instanceType == "" || spec.InstanceType == q.instanceType) && (q.market == "" || spec.Market == q.market) {
		return nstance.Machine{}, nstance.Errorf(nstance.Quota, "no quota for %s", q.instanceType)
	}
	return q.Provider.Create(ctx, spec)
}

// TestReclaimAvoidsZone: the replacement of a reclaimed machine is made in another zone,
// not in another subnet of the same one.
func TestReclaimAvoidsZone(t *testing.T) {
	for name, hide := range map[string]bool{"the provider says the zones": false, "machines show the zones": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, simcloud.Options{
					Zones: map[string]string{"a": "zone-1", "b": "zone-1", "c": "zone-2"}, Subnets: map[string]int{"a": 3, "b": 2, "c": 1},
				})
				defer w.close()
				g := webGroup(3)
				g.Definition.Subnets = []string{"a", "b", "c"}
				if hide {
					w.wrap = func(o *leaderEnv) { o.provider = struct{ nstance.Provider }{o.provider} }
					g.Size = 4 // without free addresses a fills up first: one is in b, which shows its zone
				}
				w.startLeader(g)
				w.advance(2 * time.Minute)
				before := w.perSubnet()
				require.Zero(t, before["c"], "%v", before)
				for _, m := range w.cloud.Machines() {
					if s, _ := w.cloud.Spec(m.ID); s.Subnet == "a" {
						require.NoError(t, w.cloud.Reclaim(m.ID, 30*time.Second))
						break
					}
				}
				w.advance(time.Minute)
				w.requireMembers(g.Size)
				before["a"]--
				before["c"]++
				require.Equal(t, before, w.perSubnet())
			})
		})
	}
}

// TestRehearsalLeavesCapacity: a rehearsed reclaim says nothing about capacity.
func TestRehearsalLeavesCapacity(t *testing.T) {
	withGroup(t, 0, simcloud.Options{}, func(t *testing.T, w *world) {
		g := webGroup(2)
		g.Definition.InstanceTypes = []string{"small", "medium"}
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{g}})
		w.advance(2 * time.Minute)
		require.Equal(t, map[string]int{"small/spot": 2}, w.shapes())
		w.r.Observe(nstance.Noticed{ID: w.ready()[0], Notice: nstance.Notice{
			Kind: nstance.Reclaim, Source: notice.RehearsalSource + "eve", EventID: "rehearsal-1", Deadline: time.Now().Add(time.Minute), DetectedAt: time.Now(),
		}})
		w.advance(2 * time.Minute)
		w.requireMembers(2)
		require.Equal(t, map[string]int{"small/spot": 2}, w.shapes(), "the first type still has capacity")
	})
}
