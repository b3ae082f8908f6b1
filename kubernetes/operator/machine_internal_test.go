package operator

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRecreateInterval doubles the time between two instances that fail to be created,
// from the least to the most.
func TestRecreateInterval(t *testing.T) {
	since := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	tried := since.Add(-2 * time.Second) // it took two seconds to fail
	var intervals []time.Duration
	for range 10 {
		next := recreateAt(since, tried)
		intervals = append(intervals, next.Sub(tried))
		tried = next
	}
	seconds := func(n ...int) (out []time.Duration) {
		for _, s := range n {
			out = append(out, time.Duration(s)*time.Second)
		}
		return out
	}
	require.Equal(t, seconds(10, 10, 18, 36, 72, 144, 288, 576, 600, 600), intervals)
}
