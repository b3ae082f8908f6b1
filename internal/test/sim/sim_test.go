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

// TestSeeds runs two seeds and expects every invariant to hold; make sim runs many.
// Run a failing one alone with make sim FROM=N SEEDS=1.
func TestSeeds(t *testing.T) {
	for seed := uint64(1); seed <= 2; seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			res := play(t, sim.Config{Seed: seed})
			if len(res.Violations) > 0 {
				t.Log(strings.Join(res.Journal, "\n"))
			}
			require.Empty(t, res.Violations, "seed %d", seed)
			require.Greater(t, res.Events, 50, "the run has events")
		})
	}
}

// TestReplay: a seed decides every fault and its time, in any state of the world.
func TestReplay(t *testing.T) {
	short := sim.Config{Seed: 7, Faults: 15 * time.Minute, Settle: time.Minute}
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
