package health_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/health"
	"github.com/nstance-go/nstance/internal/test/busyprogram"
)

// TestProbeThatCannotBeStarted says that it did not run, and runs once it can be started.
func TestProbeThatCannotBeStarted(t *testing.T) {
	busy, done := busyprogram.New(t)
	c, err := health.NewCollector(&health.CollectorOptions{Probes: []health.Probe{
		{Name: "it", Command: []string{busy, "-c", "echo wrong; exit 3"}, Interval: time.Second, Timeout: time.Second},
	}})
	require.NoError(t, err)
	background(t.Context(), t, c)
	first := c.Probes(t.Context())[0]
	require.False(t, first.OK)
	require.Regexp(t, "^not started: .*text file busy", first.Message)
	done()
	ran := nstance.ProbeResult{Name: "it", Message: "exit status 3: wrong"}
	require.Eventually(t, func() bool { return c.Probes(t.Context())[0] == ran }, time.Minute, 10*time.Millisecond)
}
