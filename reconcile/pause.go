package reconcile

import (
	"context"
	"time"
)

const (
	heartbeat = 5 * time.Second
	// longPause is the longest gap between two heartbeats that a loaded machine
	// explains.
	longPause = 3 * heartbeat
)

// watchPauses notices when this process did not run for a while. Whatever
// agents sent meanwhile is still on its way to it, so nobody is judged by that
// time: each has a whole interval again. A pause in which the lease was lost
// needs no such care, since the next term begins anew.
func (r *Reconciler) watchPauses(ctx context.Context) {
	last := r.opts.Now()
	for sleep(ctx, heartbeat) {
		now := r.opts.Now()
		if gap := now.Sub(last); gap > longPause {
			r.log.Warn("this process did not run for a while, agents get new grace", "gap", gap)
			r.regrace(now)
		}
		last = now
	}
}

func (r *Reconciler) regrace(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.members {
		m.track.Regrace(now)
	}
	for key := range r.groups {
		r.queue.add(key, false)
	}
}
