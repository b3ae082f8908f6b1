package buckets

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSweep: full buckets are forgotten and others are not, however many keys there are.
func TestSweep(t *testing.T) {
	b, now := New(1, 1), time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	const keys = 3 * minSweep
	for range 3 { // all come back an hour later
		for i := range keys {
			require.True(t, b.Allow(strconv.Itoa(i), now), "no other key took its token")
			require.False(t, b.Allow(strconv.Itoa(i), now), "its bucket is empty, and not forgotten")
		}
		now = now.Add(time.Hour)
	}
	for i := range 5 * keys { // others come, each long after the last
		now = now.Add(time.Hour)
		require.True(t, b.Allow("other "+strconv.Itoa(i), now))
	}
	require.LessOrEqual(t, len(b.of), minSweep)
}
