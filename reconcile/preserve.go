package reconcile

import (
	"context"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// Preserve keeps a machine for inspection until the given time: it is not counted, so
// the group replaces it, it leaves its load balancers, and it is neither drained nor
// deleted. Afterwards it is drained and deleted; at once if that time has passed. The
// cloud may still take it. It returns once that is durable. The reason is for the
// journal. Fails with NotFound, with Conflict when its deletion has begun, and with the
// errors of storage: then nothing has changed, unless the error is Ambiguous.
func (r *Reconciler) Preserve(ctx context.Context, id nstance.InstanceID, until time.Time, reason string) error {
	r.mu.Lock()
	m := r.members[id]
	if m == nil {
		r.mu.Unlock()
		return nstance.Errorf(nstance.NotFound, "no instance %s", id)
	}
	if m.state == nstance.Deleting || m.state == nstance.Failed {
		r.mu.Unlock()
		return nstance.Errorf(nstance.Conflict, "the deletion of %s has begun", id)
	}
	was, lapsed := m.preserve, m.preserveExpired
	m.preserve = &storage.Preserve{Until: until.UTC()} // from now on nothing begins that would end it
	m.preserveExpired = !r.opts.Now().Before(until)
	r.mu.Unlock()
	rec, err := r.records.Update(ctx, id, func(rec *storage.Instance) error {
		if rec.Deleting != nil {
			return nstance.Errorf(nstance.Conflict, "the deletion of %s has begun", id)
		}
		rec.Preserve = &storage.Preserve{Until: until.UTC()}
		return nil
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue.add(m.group.key, true)
	r.rebalance(m.group)
	if err != nil {
		if m.preserve, m.preserveExpired = was, lapsed; nstance.CodeOf(err) == nstance.Ambiguous {
			m.preserve, m.preserveExpired = &storage.Preserve{Until: until.UTC()}, !r.opts.Now().Before(until)
		}
		return err
	}
	m.rec = rec
	r.wakeWaiters()
	r.publish(m, nstance.Event{Type: nstance.EventPreserved, Reason: "until " + until.UTC().Format(time.RFC3339) + withMessage(reason)})
	return nil
}

// preserved reports whether m is kept for inspection at now. The end is found only
// while the clock can be trusted. It needs the lock.
func (r *Reconciler) preserved(m *member, now time.Time) bool {
	return m.preserve != nil && !m.preserveExpired && (now.Before(m.preserve.Until) || !r.clockRight())
}

// endPreserves ends the preservation of members of g whose time is over, which is
// final, and returns when the next one ends. It needs the lock.
func (r *Reconciler) endPreserves(g *group, now time.Time) (next time.Time) {
	for _, m := range g.members {
		switch {
		case m.preserve == nil:
		case r.preserved(m, now):
			next = earliest(next, m.preserve.Until)
		default:
			m.preserveExpired = true
		}
	}
	return next
}

// removalRequest returns the request to remove m. The end of its preservation is one. It needs the lock.
func (r *Reconciler) removalRequest(m *member, now time.Time) *nstance.Cause {
	if m.preserve == nil || r.preserved(m, now) {
		return m.removalCause
	}
	return &nstance.Cause{Kind: nstance.CauseRequest, Message: "it was preserved until " + m.preserve.Until.Format(time.RFC3339)}
}
