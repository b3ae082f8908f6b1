// Package sleep waits for time to pass while a context lasts.
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

// Jitter returns a random duration in the upper half of d, so that callers that
// failed together do not come back together.
func Jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }
