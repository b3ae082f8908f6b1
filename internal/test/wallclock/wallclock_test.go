package wallclock_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/test/wallclock"
)

// TestAhead promises that a wall clock that is set leaves the monotonic one
// alone, as the layout of [time.Time] has it.
func TestAhead(t *testing.T) {
	const pause = time.Minute + time.Nanosecond
	synctest.Test(t, func(t *testing.T) {
		for _, by := range []time.Duration{0, time.Nanosecond, -time.Second, 5 * time.Hour, -5*time.Hour + 1} {
			now, set := time.Now(), wallclock.Ahead(by)
			require.True(t, set.Round(0).Equal(now.Add(by)), "%s", set)
			require.Equal(t, now.Add(by).UnixNano(), set.UnixNano())
			<-time.After(pause)
			require.Equal(t, pause, wallclock.Ahead(-by).Sub(set), "by the monotonic clock")
			require.Equal(t, pause-by, time.Since(set.UTC()), "by the wall clock")
			require.Equal(t, pause-2*by, wallclock.Ahead(-by).Sub(set.UTC()))
		}
	})
}
