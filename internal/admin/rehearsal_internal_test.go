package admin

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRehearsedStage: of ten latencies nine are no longer than the P90.
func TestRehearsedStage(t *testing.T) {
	t.Parallel()
	var latencies []time.Duration
	for n := range 10 {
		latencies = append(latencies, time.Duration(10-n)*time.Second)
	}
	s := rehearsedStage("x", latencies)
	require.Equal(t, []float64{5, 9, 10}, []float64{s.Median, s.P90, s.Max})
	require.Zero(t, rehearsedStage("x", nil).Count)
}
