package sleep_test

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/sleep"
)

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		require.True(t, sleep.For(ctx, 20*time.Second))
		require.Equal(t, 20*time.Second, time.Since(began))
		require.False(t, sleep.For(ctx, time.Hour))
		require.Equal(t, time.Minute, time.Since(began))
		require.False(t, sleep.For(ctx, 0), "the context has ended")
		require.True(t, sleep.For(t.Context(), -time.Second))
	})
}

func TestJitter(t *testing.T) {
	for range 100 {
		d := sleep.Jitter(time.Second)
		require.GreaterOrEqual(t, d, time.Second/2)
		require.LessOrEqual(t, d, time.Second)
	}
	require.Zero(t, sleep.Jitter(0))
}

func TestBackoff(t *testing.T) {
	for failures, seconds := range []float64{1, 1, 2, 4, 8, 10, 10} {
		require.InDelta(t, seconds, sleep.Backoff(failures, time.Second, 10*time.Second).Seconds(), 0, failures)
	}
	require.Equal(t, time.Hour, sleep.Backoff(1<<40, time.Minute, time.Hour), "however many")
	require.Equal(t, time.Second, sleep.Backoff(1, time.Minute, time.Second))
	require.Equal(t, 48*time.Hour, sleep.Backoff(1<<40, 48*time.Hour, 48*time.Hour), "however long")
	require.Equal(t, time.Duration(math.MaxInt64), sleep.Backoff(1<<40, time.Hour, math.MaxInt64))
	require.Zero(t, sleep.Backoff(1<<40, 0, time.Hour))
}
