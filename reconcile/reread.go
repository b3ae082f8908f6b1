package reconcile

import "context"

// Reread brings memory up to date with the records in storage: after somebody
// has repaired one by hand, say. A record that is new becomes a member, and a
// group is held no longer once each of its records can be read. An error means
// that nothing was learned.
func (r *Reconciler) Reread(ctx context.Context) error { return r.absorb(ctx) }
