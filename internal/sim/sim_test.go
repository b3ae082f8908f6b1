package sim_test

import (
	"flag"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/sim"
)

// Which seeds to play: make sim sets them, go test plays a few.
var (
	from  = flag.Uint64("sim.from", 1, "first seed")
	seeds = flag.Uint64("sim.seeds", 12, "number of seeds")
)

// TestSeeds plays seeds and expects every invariant to hold. A failing seed is
// named; play it alone with -sim.from=N -sim.seeds=1.
func TestSeeds(t *testing.T) {
	var events, violations int
	var virtual time.Duration
	for seed := *from; seed < *from+*seeds; seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			var res sim.Result
			synctest.Test(t, func(*testing.T) { res = sim.Run(sim.Config{Seed: seed}) })
			events, violations, virtual = events+res.Events, violations+len(res.Violations), virtual+res.Virtual
			if len(res.Violations) > 0 {
				for _, e := range res.Journal {
					t.Log(e)
				}
			}
			require.Empty(t, res.Violations, "seed %d", seed)
			require.Greater(t, res.Events, 50, "something happened")
		})
	}
	fmt.Printf("seeds=%d events=%d virtual=%.0fh violations=%d\n", *seeds, events, virtual.Hours(), violations)
}
