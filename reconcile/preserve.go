package reconcile

import (
	"context"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// Preserve keeps a machine for inspection until then: it counts no more, so it
// is replaced if it is missed, it leaves its load balancers, and nothing drains
// or deletes it. Then it is drained and deleted, as it is at once when until
// has passed. The cloud may still take it. It returns once that is durable.
// Fails with NotFound, Conflict when its deletion has begun, and as storage
// says: then nothing has changed, unless the error is Ambiguous.
func (r *Reconciler) Preserve(ctx context.Context, id nstance.InstanceID, until time.Time) error {
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
	was := m.preserve
	m.preserve = &storage.Preserve{Until: until.UTC()} // from now on nothing begins that would end it
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
		if m.preserve = was; nstance.CodeOf(err) == nstance.Ambiguous {
			m.preserve = &storage.Preserve{Until: until.UTC()}
		}
		return err
	}
	m.rec = rec
	r.say(m, nstance.Event{Type: nstance.EventPreserved, Reason: "until " + until.UTC().Format(time.RFC3339)})
	return nil
}

// preserved reports whether m is kept for inspection at now.
func (m *member) preserved(now time.Time) bool {
	return m.preserve != nil && now.Before(m.preserve.Until)
}

// outlived returns why m must go once it is preserved no more.
func (m *member) outlived(now time.Time) *nstance.Cause {
	if m.preserve == nil || m.preserved(now) {
		return m.requested
	}
	return &nstance.Cause{Kind: nstance.CauseRequest, Message: "it was preserved until " + m.preserve.Until.Format(time.RFC3339)}
}
