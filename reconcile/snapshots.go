package reconcile

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

// saveSnapshots stores the shard's snapshot now and then, if anything has
// changed: soon after the term began, since the term before may have left an old
// one or none, then every so often. There is none at the end of the term: by
// then the lease has been given back, so that the successor is reading already,
// and what it has to read by itself are the few records of the last minutes.
func (r *Reconciler) saveSnapshots(ctx context.Context) {
	for wait := r.opts.Snapshots / 10; sleep.For(ctx, wait+rand.N(wait/5+1)); wait = r.opts.Snapshots * 9 / 10 {
		began := time.Now()
		saved, err := r.records.SaveSnapshot(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			r.log.Warn("snapshot not saved", "shard", r.opts.Owner.Shard, "code", nstance.CodeOf(err), "err", err)
		case saved:
			r.log.Debug("snapshot saved", "shard", r.opts.Owner.Shard, "took", time.Since(began))
		}
	}
}
