package reconcile_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// spreadGroup is a spot group over two types in two zones.
func spreadGroup(size int, share string) nstance.Group {
	g := webGroup(size)
	g.Definition.InstanceTypes, g.Definition.Subnets = []string{"small", "large"}, []string{"s-a", "s-b"}
	g.Spread.By = nstance.SpreadPool
	if err := g.Spread.MaxShare.UnmarshalText([]byte(share)); err != nil {
		panic(err)
	}
	return g
}

var twoZones = simcloud.Options{Zones: map[string]string{"s-a": "zone-a", "s-b": "zone-b"}}

// pools counts the machines that run or boot, by pool.
func (w *world) pools() map[simcloud.Pool]int {
	out := map[simcloud.Pool]int{}
	for _, m := range w.cloud.Machines() {
		if !m.Status.Dead() {
			out[simcloud.Pool{InstanceType: m.InstanceType, Zone: m.Zone, Market: m.Market}]++
		}
	}
	return out
}

// TestSpreadBoundsReclaims: a wave of reclaims in one pool takes no more of a group than
// its share, whichever pool it is, also after earlier waves.
func TestSpreadBoundsReclaims(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				o := twoZones
				o.Seed = seed
				w := newWorld(t, o)
				defer w.close()
				g := spreadGroup(9, "34%") // 4 of 9: the others can make up for one pool
				w.startLeader(g)
				w.advance(3 * time.Minute)
				w.requireMembers(9)
				for wave := range 6 {
					var hit simcloud.Pool
					for p, n := range w.pools() {
						require.LessOrEqual(t, n, 4+1, "wave %d: %v", wave, p)
						if n > w.pools()[hit] {
							hit = p
						}
					}
					taken, err := w.cloud.ReclaimPool(hit, 1, 2*time.Minute)
					require.NoError(t, err)
					require.NotEmpty(t, taken)
					require.LessOrEqual(t, len(taken), 4+1)
					w.advance(5 * time.Minute)
					w.requireMembers(9)
				}
			})
		})
	}
}

// TestSpreadCostsNoMember: where only one pool has capacity, all members are in it.
func TestSpreadCostsNoMember(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := twoZones
		w := newWorld(t, o)
		defer w.close()
		for _, p := range []simcloud.Pool{{InstanceType: "large", Market: nstance.Spot}, {InstanceType: "small", Zone: "zone-a", Market: nstance.Spot}} {
			w.cloud.SetCapacity(p, 0)
		}
		g := spreadGroup(4, "25%")
		w.startLeader(g)
		w.advance(10 * time.Minute)
		w.requireMembers(4)
		require.Equal(t, map[simcloud.Pool]int{{InstanceType: "small", Zone: "zone-b", Market: nstance.Spot}: 4}, w.pools())
	})
}

// TestSpreadByMarket: a wave over all of spot takes no more of a group than its share.
func TestSpreadByMarket(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, twoZones)
		defer w.close()
		g := spreadGroup(5, "60%")
		g.Spread.By = nstance.SpreadMarket
		w.startLeader(g)
		w.advance(3 * time.Minute)
		w.requireMembers(5)
		byMarket := func() (onSpot, onDemand int) {
			for pool, n := range w.pools() {
				if pool.Market == nstance.Spot {
					onSpot += n
				} else {
					onDemand += n
				}
			}
			return onSpot, onDemand
		}
		requireShare := func(spot, lasting int) {
			t.Helper()
			onSpot, onDemand := byMarket()
			require.Equal(t, []int{spot, lasting}, []int{onSpot, onDemand})
		}
		requireShare(3, 2)
		for range 3 {
			var taken int
			for pool := range w.pools() {
				if pool.Market == nstance.Spot {
					machines, err := w.cloud.ReclaimPool(pool, 1, 2*time.Minute)
					require.NoError(t, err)
					taken += len(machines)
				}
			}
			require.Equal(t, 3, taken)
			w.advance(10 * time.Minute)
			w.requireMembers(5)
			requireShare(3, 2)
		}

		g.Spread.MaxShare = nstance.Count{N: 2}
		w.setGroupAndAdvance(g, 10*time.Minute)
		w.requireMembers(5)
		requireShare(2, 3)
	})
}

// TestSpreadMovesNoMember: a new spread replaces nothing, and shrinking evens the group.
func TestSpreadMovesNoMember(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := twoZones
		w := newWorld(t, o)
		defer w.close()
		g := spreadGroup(4, "25%")
		spread := g.Spread
		w.startLeader(g)
		w.advance(3 * time.Minute)
		require.Len(t, w.pools(), 4)

		g.Spread, g.Size = nstance.Spread{}, 7
		w.setGroupAndAdvance(g, 5*time.Minute)
		w.requireMembers(7)
		first := simcloud.Pool{InstanceType: "small", Zone: "zone-a", Market: nstance.Spot}
		require.Equal(t, 4, w.pools()[first])
		before := w.ready()
		g.Spread = spread
		w.setGroupAndAdvance(g, 10*time.Minute)
		require.Equal(t, before, w.ready(), "nothing moves")

		g.Size = 4
		w.setGroupAndAdvance(g, 10*time.Minute)
		w.requireMembers(4)
		require.Len(t, w.pools(), 4)
	})
}
