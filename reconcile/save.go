package reconcile

import (
	"context"
	"maps"
	"math/rand/v2"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/reconcile/internal/avoid"
	"github.com/nstance-go/nstance/reconcile/internal/history"
)

// shardState is the durable state of a shard and its groups: state/{shard}.json.
// Values behind its pointers are replaced, never changed.
type shardState struct {
	records.Header
	Account string                   `json:"account,omitempty"` // of the provider, in which the machines are; empty: not known
	Frozen  *history.Freeze          `json:"frozen,omitempty"`  // the whole shard
	Avoided []avoid.Entry            `json:"avoided,omitempty"` // by request
	Groups  map[string]history.Group `json:"groups"`            // by tenant/group
}

// saveStates writes what the shard and its groups remember, all of it at once.
func (r *Reconciler) saveStates(ctx context.Context) (edits uint64, err error) {
	now, edits := r.snapshotStates()
	r.records.KeepDefinitions(history.Digests(now.Groups)...)
	_, err = r.states.Update(ctx, func(s *shardState) error {
		s.Frozen, s.Avoided, s.Groups = now.Frozen, now.Avoided, now.Groups
		return nil
	})
	if err != nil && ctx.Err() == nil {
		r.log.Warn("group state not saved yet", "code", nstance.CodeOf(err), "err", err)
	}
	return edits, err
}

// snapshotStates returns what is to be saved, and the last change that it holds.
func (r *Reconciler) snapshotStates() (shardState, uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := shardState{Frozen: r.frozen, Avoided: r.places.AvoidedPools.Requested(), Groups: maps.Clone(r.absentGroups)}
	for key, g := range r.groups {
		if g.recorded = g.recorded || !g.history.Empty(); g.recorded {
			out.Groups[key.String()] = g.history
		}
	}
	return out, r.saver.Edits()
}

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
