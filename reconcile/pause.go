package reconcile

import (
	"context"
	"time"

	"github.com/nstance-go/nstance/internal/sleep"
)

const (
	heartbeat = 5 * time.Second
	// longPause is the longest gap between two heartbeats that a loaded machine
	// explains.
	longPause = 3 * heartbeat
)

// heartbeat records regularly that this process runs, and checks the clock.
func (r *Reconciler) heartbeat(ctx context.Context) {
	for sleep.For(ctx, heartbeat) {
		r.mu.Lock()
		r.detectPause(r.opts.Now())
		r.updateClock()
		r.mu.Unlock()
	}
}

// detectPause detects that this process did not run for a while. What agents sent
// meanwhile is still in its buffers, so no member is silent for that time: each has a
// whole interval again. A pause in which the lease was lost needs no such care: the
// next term begins anew. It runs before health is evaluated, and needs the lock.
func (r *Reconciler) detectPause(now time.Time) {
	gap := now.Sub(r.heartbeatAt)
	began := r.heartbeatAt.IsZero()
	r.heartbeatAt = now
	if began || gap <= longPause {
		return
	}
	r.log.Warn("this process did not run for a while, agents get new grace", "gap", gap)
	for _, m := range r.members {
		m.healthTrack.RestartGrace(now)
	}
	for key := range r.groups {
		r.queue.add(key, false)
	}
}
