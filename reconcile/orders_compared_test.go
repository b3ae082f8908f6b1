package reconcile_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/ledger"
	"github.com/nstance-go/nstance/internal/loop"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// A spotTrace says when pools have capacity. What runs in a pool is reclaimed, all of it,
// when it has none any more.
type spotTrace struct {
	step   time.Duration
	pools  map[simcloud.Pool][]bool
	prices map[simcloud.Pool]float64
}

func (tr spotTrace) length() (d time.Duration) {
	for _, up := range tr.pools {
		d = max(d, time.Duration(len(up))*tr.step)
	}
	return d
}

// types returns the instance types in the order of the trace, and zones by subnet.
func (tr spotTrace) places() (types, subnets []string, zones map[string]string) {
	zones = map[string]string{}
	for p := range tr.pools {
		if !slices.Contains(types, p.InstanceType) {
			types = append(types, p.InstanceType)
		}
		zones["s-"+p.Zone] = p.Zone
	}
	slices.Sort(types)
	return types, slices.Sorted(maps.Keys(zones)), zones
}

// madeTrace is six pools: what is cheap is reclaimed often.
func madeTrace(seed uint64, length time.Duration) spotTrace {
	tr := spotTrace{step: 5 * time.Minute, pools: map[simcloud.Pool][]bool{}, prices: map[simcloud.Pool]float64{}}
	for _, p := range []struct {
		pool     simcloud.Pool
		price    float64
		lifetime time.Duration // mean, until the pool is reclaimed
	}{
		{spotPoolOf("a-large", "zone-a"), 0.060, 16 * time.Hour}, {spotPoolOf("a-large", "zone-b"), 0.064, 200 * time.Hour},
		{spotPoolOf("b-small", "zone-a"), 0.030, 90 * time.Minute}, {spotPoolOf("b-small", "zone-b"), 0.032, 3 * time.Hour},
		{spotPoolOf("c-medium", "zone-a"), 0.036, 20 * time.Hour}, {spotPoolOf("c-medium", "zone-b"), 0.040, 36 * time.Hour},
	} {
		dice := rand.New(rand.NewPCG(seed, uint64(len(tr.pools))))
		var up []bool
		for time.Duration(len(up))*tr.step < length {
			for range 1 + int(dice.ExpFloat64()*float64(p.lifetime)/float64(tr.step)) {
				up = append(up, true)
			}
			for range 2 + dice.IntN(6) {
				up = append(up, false)
			}
		}
		tr.pools[p.pool], tr.prices[p.pool] = up[:length/tr.step], p.price
	}
	return tr
}

// readTrace reads what github.com/skypilot-org/spot-traces has for each folder: a file for
// each pool, ZONE_TYPE_SIZE.json, with the number of machines that were available.
func readTrace(t *testing.T, dir string) spotTrace {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	require.NoError(t, err)
	require.NotEmpty(t, files, dir)
	tr := spotTrace{pools: map[simcloud.Pool][]bool{}, prices: map[simcloud.Pool]float64{}}
	for _, file := range files {
		var doc struct {
			Metadata struct {
				Gap float64 `json:"gap_seconds"`
			}
			Data []float64
		}
		raw, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(raw, &doc), file)
		zone, typ, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".json"), "_")
		tr.step = time.Duration(doc.Metadata.Gap * float64(time.Second))
		var up []bool
		for _, n := range doc.Data {
			up = append(up, n > 0)
		}
		pool := spotPoolOf(strings.ReplaceAll(typ, "_", "-"), zone)
		tr.pools[pool], tr.prices[pool] = up, 1
	}
	return tr
}

// A replayResult is what became of a group.
type replayResult struct {
	interruptions int
	worst         int     // members that one wave took
	cost          float64 // of machine hours
	short         time.Duration
}

// replayed runs a group of nine through a trace.
func replayed(t *testing.T, tr spotTrace, order nstance.ShapeOrder, spread string) (out replayResult) {
	synctest.Test(t, func(t *testing.T) {
		types, subnets, zones := tr.places()
		o := simcloud.Options{Zones: zones, Prices: tr.prices}
		w := newWorld(t, o)
		defer w.close()
		w.keepLives = true
		g := spreadGroup(9, cmp.Or(spread, "100%"))
		g.Definition.InstanceTypes, g.Definition.Subnets, g.Order = types, subnets, order
		if spread == "" {
			g.Spread = nstance.Spread{}
		}
		reader := ledger.NewReader(w.store, "s1")
		for p, up := range tr.pools {
			w.cloud.SetCapacity(p, capacityOf(up[0]))
		}
		w.startLeader(g)
		began, nextRates := time.Now(), time.Now()
		for n := 1; time.Since(began) < tr.length(); n++ {
			w.advance(tr.step)
			wave := 0
			for p, up := range tr.pools {
				switch {
				case n >= len(up) || up[n] == up[n-1]:
				case up[n]:
					w.cloud.SetCapacity(p, capacityOf(true))
				default:
					w.cloud.SetCapacity(p, capacityOf(false))
					taken, err := w.cloud.ReclaimPool(p, 1, 2*time.Minute)
					require.NoError(t, err)
					wave = max(wave, len(taken))
					out.interruptions += len(taken)
				}
			}
			out.worst = max(out.worst, wave)
			for p, machines := range w.pools() {
				out.cost += float64(machines) * tr.prices[p] * tr.step.Hours()
			}
			if len(w.ready()) < 9 {
				out.short += tr.step
			}
			if !time.Now().Before(nextRates) { // as a server does
				nextRates = time.Now().Add(15 * time.Minute)
				w.setRates(reader)
			}
		}
	})
	return out
}

func capacityOf(up bool) int {
	if up {
		return -1
	}
	return 0
}

// setRates has the leader know what the ledger says.
func (w *world) setRates(reader *ledger.Reader) {
	r, _ := w.leader()
	now := time.Now()
	rates, err := reader.Rates(w.ctx, now.Add(-ledger.RatePeriod), now, ledger.OpenAll(r.Admin().Internals().LivingRecords()), func(nstance.TenantID) bool { return true })
	require.NoError(w.t, err)
	var known []loop.PoolRate
	for _, p := range rates.Pools {
		known = append(known, loop.PoolRate{InstanceType: p.Pool.InstanceType, Zone: p.Pool.Zone, Market: p.Pool.Market, MachineTime: p.MachineTime, Reclaims: p.Reclaims})
	}
	r.Admin().Internals().SetPoolRates(known)
}

// TestOrdersCompared: the steadiest order is interrupted least, the cheapest costs least,
// counting what interruptions cost, and a spread bounds the worst wave. With
// NSTANCE_SPOT_TRACES, folders of traces separated by colons, these are replayed too; -v
// prints a table.
func TestOrdersCompared(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long under the race detector, and one goroutine does the most of it")
	}
	t.Parallel()
	results := compareOrders(t, "six pools", madeTrace(7, 48*time.Hour))
	weighed := func(r replayResult) float64 { return r.cost + float64(r.interruptions)*0.036 } // an hour of a machine each
	listed, cheapest, steadiest := results["listed"], results["cheapest"], results["steadiest"]
	require.LessOrEqual(t, steadiest.interruptions, listed.interruptions)
	require.Less(t, steadiest.interruptions, cheapest.interruptions)
	require.Less(t, results["steadiest, spread 34%"].interruptions, results["listed, spread 34%"].interruptions)
	require.Less(t, weighed(cheapest), weighed(listed))
	require.Less(t, weighed(cheapest), weighed(steadiest))
	for name, r := range results {
		if strings.Contains(name, "spread") {
			require.LessOrEqual(t, r.worst, 4+1, name)
		}
	}
	for _, dir := range filepath.SplitList(os.Getenv("NSTANCE_SPOT_TRACES")) {
		compareOrders(t, filepath.Base(dir), readTrace(t, dir))
	}
}

func compareOrders(t *testing.T, name string, tr spotTrace) map[string]replayResult {
	results := map[string]replayResult{}
	t.Logf("%s, %d pools, %s", name, len(tr.pools), tr.length().Round(time.Hour))
	for _, order := range []nstance.ShapeOrder{nstance.OrderListed, nstance.OrderCheapest, nstance.OrderSteadiest} {
		for _, spread := range []string{"", "34%"} {
			key := strings.TrimSuffix(fmt.Sprintf("%s, spread %s", order, spread), ", spread ")
			r := replayed(t, tr, order, spread)
			results[key] = r
			t.Logf("%-24s interruptions %4d  worst wave %d  cost %8.2f  below size %5.1f%%", key, r.interruptions, r.worst, r.cost,
				100*math.Min(1, r.short.Hours()/tr.length().Hours()))
		}
	}
	return results
}
