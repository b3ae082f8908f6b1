package reconcile

import (
	"context"
	"time"
)

// followPools ends what is avoided when its time is over, until ctx ends.
func (r *Reconciler) followPools(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(max(0, r.endAvoided()))
		select {
		case <-ctx.Done():
			return
		case <-r.poolWake:
		case <-timer.C:
		}
	}
}
