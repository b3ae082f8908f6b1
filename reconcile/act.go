package reconcile

import (
	"context"
)

// perform carries out the next step of m and records its outcome, which the next
// plan sees. It runs in a lane.
func (r *Reconciler) perform(ctx context.Context, m *member) {
	r.mu.Lock()
	step, planned := m.step, m.revision
	r.mu.Unlock()
	var err error
	switch step {
	case stepCreate:
		err = r.create(ctx, m)
	case stepDrain:
		err = r.startDrain(ctx, m)
	case stepCancel:
		err = r.cancelDrain(ctx, m)
	case stepDelete:
		err = r.remove(ctx, m)
	case stepPark:
		err = r.park(ctx, m)
	case stepWake:
		err = r.wake(ctx, m)
	case stepWriteNotices:
		err = r.writeNotices(ctx, m)
	case stepNone:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	m.running = false
	r.outcome(m, step, planned, err)
	r.wakeWaiters()
	r.queue.Add(m.group.key, step != stepDelete)
}
