// Package sleep waits for time to pass while a context lasts, and decides how long
// to wait before a retry.
package sleep

import (
	"context"
	"math/rand/v2"
	"time"
)

// For waits for d and reports whether ctx still lasts.
func For(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// Backoff returns the wait after a number of failures in a row: first after one, or
// none, then doubling up to limit.
func Backoff(failures int, first, limit time.Duration) time.Duration {
	wait := min(first, limit)
	for n := 1; n < failures && 0 < wait && wait < limit; n++ {
		if wait > limit/2 {
			return limit
		}
		wait *= 2
	}
	return wait
}

// Jitter returns a random duration in the upper half of d, so that callers that
// failed together do not come back together.
func Jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }
