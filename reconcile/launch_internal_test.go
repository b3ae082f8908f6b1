package reconcile

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

func TestLaunchWindow(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	b := launches{}.of(nstance.Definition{}, now)
	// succeed lets as many creates go as may, has some of them succeed, and
	// returns how many may be under way then.
	succeed := func(n int) int {
		for range n {
			require.True(t, b.admit(true, false, now).ok)
			b.succeeded(now)
		}
		return b.window
	}
	require.Equal(t, firstLaunches<<3, succeed(3), "it doubles")
	for range 6 {
		require.True(t, b.admit(true, false, now).ok)
	}
	for range 6 {
		b.failed(false, now)
	}
	require.Equal(t, 1, b.window)
	require.Equal(t, 1+5, succeed(5), "what comes back may be a little")
	now = now.Add(rememberFor)
	require.Equal(t, 6<<2, succeed(2), "it comes back for good")
}
