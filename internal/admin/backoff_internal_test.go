package admin

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

func TestBackoff(t *testing.T) {
	t.Parallel()
	lost := nstance.Errorf(nstance.Unavailable, "lost")
	start := time.Unix(1e9, 0)
	t.Run("the first connection must succeed", func(t *testing.T) {
		_, again := (&backoff{}).next(lost, start)
		require.False(t, again)
	})
	t.Run("a refusal is not waited for", func(t *testing.T) {
		_, again := (&backoff{connected: true}).next(nstance.Errorf(nstance.Denied, "no"), start)
		require.False(t, again)
	})
	t.Run("a busy server is waited for", func(t *testing.T) {
		_, again := (&backoff{connected: true}).next(nstance.Errorf(nstance.Throttled, "too many streams"), start)
		require.True(t, again)
	})
	t.Run("waits grow to a bound, and end with the outage's limit", func(t *testing.T) {
		b, now, n := &backoff{connected: true}, start, 0
		for last := firstWait; ; n++ {
			wait, again := b.next(lost, now)
			if !again {
				break
			}
			require.GreaterOrEqual(t, wait, last/2)
			require.Less(t, wait, last)
			last, now = min(2*last, maxWait), now.Add(wait)
			b.recordAttempt(false, wait)
		}
		require.Greater(t, now.Sub(start), maxOutage)
		require.Greater(t, n, 50)
	})
	t.Run("a stream that lived begins anew", func(t *testing.T) {
		b := &backoff{}
		b.recordAttempt(true, 0)
		for range 20 {
			b.next(lost, start)
		}
		b.recordAttempt(true, time.Minute)
		wait, again := b.next(lost, start.Add(time.Hour))
		require.True(t, again)
		require.Less(t, wait, firstWait)
	})
	t.Run("one that did not live does not", func(t *testing.T) {
		b := &backoff{}
		for range 20 {
			b.recordAttempt(true, time.Millisecond)
			b.next(lost, start)
		}
		wait, _ := b.next(lost, start)
		require.GreaterOrEqual(t, wait, maxWait/2)
	})
}
