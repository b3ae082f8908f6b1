package sim_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/test/sim"
)

// TestSeeds runs two seeds and expects every invariant to hold, and every rule to be reached; make sim
// runs many. Run a failing one alone with make sim FROM=N SEEDS=1.
func TestSeeds(t *testing.T) {
	fired, seeds := map[string]int{}, uint64(2)
	if testing.Short() {
		seeds = 1
	}
	for seed := uint64(1); seed <= seeds; seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			res := play(t, sim.Config{Seed: seed})
			if len(res.Violations) > 0 {
				t.Log(strings.Join(res.Journal, "\n"))
			}
			require.Empty(t, res.Violations, "seed %d", seed)
			require.Greater(t, res.Events, 50, "the run has events")
			for name, n := range res.Fired {
				fired[name] += n
			}
		})
	}
	if testing.Short() {
		return // one seed does not reach every rule
	}
	t.Logf("%v", fired)
	for _, name := range sim.Rules() {
		require.Positive(t, fired[name], "no seed reaches %s: steer a drill there", name)
	}
}

// TestReplay: a seed decides every fault and its time, in any state of the world.
func TestReplay(t *testing.T) {
	short := sim.Config{Seed: 7, Faults: 15 * time.Minute, Settle: time.Minute, NoDrill: true}
	first, second := play(t, short), play(t, short)
	require.NotEmpty(t, first.Faults)
	require.Equal(t, first.Faults, second.Faults)
	short.Seed++
	require.NotEqual(t, first.Faults, play(t, short).Faults)
}

func play(t *testing.T, cfg sim.Config) (res sim.Result) {
	synctest.Test(t, func(*testing.T) { res = sim.Run(cfg) })
	return res
}
