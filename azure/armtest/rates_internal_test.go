package armtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/provider/testcloud"
)

// TestPrune: only buckets of machines that nothing has called for three minutes
// are forgotten.
func TestPrune(t *testing.T) {
	now := time.Now()
	r := rates{machine: map[string]*testcloud.Bucket{}}
	bucket := func(name string, at time.Time) {
		r.machine[name] = &testcloud.Bucket{Burst: 12, PerSecond: 4.0 / 60}
		for range 12 {
			require.True(t, r.machine[name].Take(at))
		}
	}
	bucket("old", now.Add(-181*time.Second))
	bucket("young", now.Add(-179*time.Second))
	r.prune(now)
	require.NotContains(t, r.machine, "old")
	require.Contains(t, r.machine, "young")
	r.prune(now.Add(30 * time.Second))
	require.Contains(t, r.machine, "young", "once a minute is enough")
	r.prune(now.Add(time.Minute))
	require.Empty(t, r.machine)
}
