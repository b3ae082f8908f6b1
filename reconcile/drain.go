package reconcile

import (
	"context"
	"reflect"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
)

// startDrain makes the planned drain durable, then starts it.
func (r *Reconciler) startDrain(ctx context.Context, m *member) error {
	r.mu.Lock()
	planned, former, story := m.drain, m.formerExecutor, m.story()
	notices, advice := slices.Clone(m.notices), slices.Clone(m.advice)
	r.mu.Unlock()
	if planned == nil {
		return nil
	}
	story.Drifted = r.driftedFields(ctx, m, planned.Causes)
	var d nstance.Drain
	var said nstance.EventType
	known := false
	_, err := r.records.Update(ctx, m.id, func(rec *records.Instance) error {
		if rec.Deleting != nil {
			return nstance.Errorf(nstance.Conflict, "instance %s is being deleted", rec.ID)
		}
		d = within(*planned, former, rec)
		if known = reflect.DeepEqual(rec.Drain, &d); known {
			return nil // of an earlier term: only to be announced again
		}
		said = drainEvent(rec.Drain, &d)
		if rec.Drain == nil && hasNotice(d.Causes) {
			rec.Reclaims++
		}
		rec.Drain, rec.Generation, rec.Advice = &d, d.Generation, advice
		rec.StandingNotices(notices, r.opts.Now())
		rec.KeepStory(story)
		return nil
	})
	if err != nil {
		return err
	}
	r.mu.Lock()
	if m.drain == planned {
		m.drain = &d
		if !d.Deadline.Equal(planned.Deadline) {
			m.drainDeadline = time.Time{} // another leader's
		}
	}
	r.mu.Unlock()
	if !known {
		r.publishDrain(m, &d, said)
	}
	return r.opts.Drains.Start(ctx, d)
}

// within merges a planned drain with the recorded one, which may be a late write of
// a former leader: its deadline is only brought forward, and no generation that has
// been cancelled is used again. The recorded executor stays, unless it is the former
// one, which loses the drain.
func within(d nstance.Drain, former nstance.Executor, rec *records.Instance) nstance.Drain {
	old := rec.Drain
	if old == nil {
		d.Generation = max(d.Generation, rec.Generation+1)
		return d
	}
	d.Generation, d.StartedAt, d.CordonOnly = old.Generation, old.StartedAt, old.CordonOnly && d.CordonOnly
	if former == "" || old.Executor != former {
		d.Executor = old.Executor
	}
	if old.Deadline.Before(d.Deadline) {
		d.Deadline = old.Deadline
	}
	return d
}

// drainEvent names the change from a recorded drain to another.
func drainEvent(was, is *nstance.Drain) nstance.EventType {
	switch {
	case was == nil:
		return nstance.EventDrainStarted
	case was.Executor != is.Executor:
		return nstance.EventDrainReassigned
	}
	return nstance.EventDrainTightened
}

func (r *Reconciler) publishDrain(m *member, d *nstance.Drain, what nstance.EventType) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.publish(m, nstance.Event{Type: what, Drain: d})
}

func hasNotice(causes []nstance.Cause) bool {
	for _, c := range causes {
		if c.Kind == nstance.CauseNotice {
			return true
		}
	}
	return false
}

// cancelDrain makes the end of a drain durable, then cancels it. Earlier
// acknowledgements of it do not count any more.
func (r *Reconciler) cancelDrain(ctx context.Context, m *member) error {
	var ended uint64
	_, err := r.records.Update(ctx, m.id, func(rec *records.Instance) error {
		if rec.Deleting != nil {
			return nstance.Errorf(nstance.Conflict, "instance %s is being deleted", rec.ID)
		}
		ended = rec.Generation
		if rec.Drain != nil {
			rec.CancelDrain(r.opts.Now())
		}
		return nil
	})
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.publish(m, nstance.Event{Type: nstance.EventDrainCancelled})
	r.mu.Unlock()
	return r.opts.Drains.Cancel(ctx, m.id, ended)
}

// writeNotices makes the standing notices of m durable.
func (r *Reconciler) writeNotices(ctx context.Context, m *member) error {
	r.mu.Lock()
	notices, advice := slices.Clone(m.notices), slices.Clone(m.advice)
	r.mu.Unlock()
	_, err := r.records.Update(ctx, m.id, func(rec *records.Instance) error {
		if rec.Deleting != nil || rec.Drain != nil && rec.Preserve == nil { // a former leader's late write says more
			return errOutdated
		}
		rec.Advice = advice
		rec.StandingNotices(notices, r.opts.Now())
		return nil
	})
	return err
}
