package reconcile

import (
	"context"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/sleep"
)

// Preserve keeps a machine for inspection until the given time: it is not counted, so
// the group replaces it, it leaves its load balancers, and it is neither drained nor
// deleted. Afterwards it is drained and deleted; at once if that time has passed. The
// cloud may still take it. It returns once that is durable; a caller that leaves before
// does not undo it. Of overlapping requests the one that is written last counts, and until then the one that
// keeps the machine longest. The reason is for the journal. Fails with NotFound, with
// Conflict when its deletion has begun, and with the errors of storage: then nothing has
// changed, unless the error is Ambiguous.
func (r *Admin) Preserve(ctx context.Context, id nstance.InstanceID, until time.Time, reason string) error {
	asked := &records.Preserve{Until: until.UTC()}
	m, err := r.beginPreserve(id, asked)
	if err != nil {
		return err
	}
	ctx, cancel := r.underTerm(ctx)
	defer cancel()
	_, err = r.records.Update(ctx, id, func(rec *records.Instance) error {
		if rec.Deleting != nil {
			return nstance.Errorf(nstance.Conflict, "the deletion of %s has begun", id)
		}
		rec.Preserve = &records.Preserve{Until: asked.Until}
		return nil
	})
	if nstance.CodeOf(err) == nstance.Ambiguous && readUntilKnown(ctx, r.records, id) && r.opts.Check() == nil {
		if rec, ok := r.records.Get(id); ok && rec.Preserve != nil && rec.Preserve.Until.Equal(asked.Until) {
			err = nil // it has landed
		}
	}
	r.endPreserve(m, asked)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.publish(m, nstance.Event{Type: eventtype.Preserved, Reason: "until " + asked.Until.Format(time.RFC3339) + withMessage(reason)})
	return nil
}

// beginPreserve has nothing begin that would end the machine before asked is written.
func (r *Reconciler) beginPreserve(id nstance.InstanceID, asked *records.Preserve) (*member, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, err := r.lookUp(id)
	if err != nil {
		return nil, err
	}
	if m.state == nstance.Deleting || m.state == nstance.Failed {
		return nil, nstance.Errorf(nstance.Conflict, "the deletion of %s has begun", id)
	}
	m.preserving = append(m.preserving, asked)
	return m, nil
}

// endPreserve ends a request. From now on the record says what counts.
func (r *Reconciler) endPreserve(m *member, asked *records.Preserve) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m.preserving = slices.DeleteFunc(m.preserving, func(p *records.Preserve) bool { return p == asked })
	r.refreshRecord(m)
	if p := m.rec.Preserve; p != nil && p.Until.Equal(asked.Until) && !r.opts.Now().Before(asked.Until) {
		m.keptEnd = asked.Until // it was asked to end at once, whatever the clock says
	}
	r.queue.Add(m.group.key, true)
	r.rebalance(m.group)
	r.wakeWaiters()
}

// readUntilKnown reads a record of which it is not known what a write has made of it, until
// that succeeds or ctx ends.
func readUntilKnown(ctx context.Context, all *records.Records, id nstance.InstanceID) bool {
	for {
		if _, err := all.Refresh(ctx, id); err == nil {
			return true
		}
		if !sleep.For(ctx, time.Second) {
			return false
		}
	}
}

// underTerm returns the context for a write that a request asks for: it goes on when its
// caller has left, so that nothing becomes durable which this leader does not know of.
// The end of the term ends it, and writeTimeout.
func (r *Reconciler) underTerm(caller context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(caller), writeTimeout)
	go func() {
		select {
		case <-r.over:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// writeTimeout is how long a write of a request may take.
const writeTimeout = 30 * time.Second

// keptUntil returns until when m is kept for inspection: as its record says, or by a request
// under way that keeps it longer.
func (s *shard) keptUntil(m *member, now time.Time) (until time.Time, kept bool) {
	until, kept = preservedUntil(&m.rec), m.rec.Preserve != nil
	for _, p := range m.preserving {
		if !s.reached(p.Until, now) {
			until, kept = latest(until, p.Until), true
		}
	}
	return until, kept
}

// preservedUntil is until when an instance is preserved, as its record says; zero: it is not.
func preservedUntil(rec *records.Instance) (until time.Time) {
	if rec.Preserve != nil {
		until = rec.Preserve.Until
	}
	return until
}

// outOfService reports whether m is, or is about to be, kept for inspection.
func (m *member) outOfService() bool { return m.rec.Preserve != nil || len(m.preserving) > 0 }

// preserved reports whether m is kept for inspection at now. The end is found only
// while the clock can be trusted.
func (s *shard) preserved(m *member, now time.Time) bool {
	until, kept := s.keptUntil(m, now)
	return kept && !m.keptEnd.Equal(until) && !s.reached(until, now)
}

// endPreserves ends the preservation of members of g whose time is over, which is
// final, and returns when the next one ends.
func (s *shard) endPreserves(g *group, now time.Time) (next time.Time) {
	for _, m := range g.members {
		switch until, kept := s.keptUntil(m, now); {
		case !kept:
		case s.preserved(m, now):
			next = earliest(next, lookAgainAt(until, now))
		default:
			m.keptEnd = until
		}
	}
	return next
}

// removalRequest returns the request to remove m. The end of its preservation is one.
func (s *shard) removalRequest(m *member, now time.Time) *nstance.Cause {
	until, kept := s.keptUntil(m, now)
	if !kept || s.preserved(m, now) {
		return m.removalCause
	}
	return &nstance.Cause{Kind: nstance.CauseRequest, Message: "it was preserved until " + until.Format(time.RFC3339)}
}
