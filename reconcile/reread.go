package reconcile

import (
	"context"
	"time"
)

// Reread brings memory up to date with the records in storage: after an operator
// has repaired one by hand, say. A record that is new becomes a member, and a
// group is held no longer once each of its records can be read. An error means
// that nothing was learned.
func (r *Reconciler) Reread(ctx context.Context) error { return r.readRecordsAgain(ctx) }

// QueueAge returns how long the group has waited that has waited longest to be
// planned, for metrics.
func (r *Reconciler) QueueAge() time.Duration { return r.queue.age() }
