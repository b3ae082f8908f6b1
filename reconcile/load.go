package reconcile

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/notice"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/sleep"
)

// queryProvider asks the provider for machines, free addresses, zones, prices and what
// its cloud avoids, which the first plans use.
func (r *Reconciler) queryProvider(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, firstLookUps)
		defer cancel()
		r.cloud.ReadFirst(ctx, r.opts.Subnets)
	})
	r.reconcileMachines(ctx)
}

// load reads the shard's state from storage. Nothing is planned before. It fails when
// ctx ends.
func (r *Reconciler) load(ctx context.Context, stop context.CancelCauseFunc) error {
	for failures := 1; ; failures++ {
		is, err := r.readShard(ctx)
		if err == nil {
			r.install(is)
			r.awaitFirstAnswers(ctx, stop, is.states, len(is.recs)+len(is.problems) > 0)
			r.begin()
			return ctx.Err()
		}
		r.locked(func() { r.loadError = err })
		r.log.Error("shard not loaded yet", "shard", r.opts.Owner.Shard, "code", nstance.CodeOf(err), "err", err)
		if !sleep.For(ctx, sleep.Backoff(failures, time.Second, maxLoadBackoff)) {
			return ctx.Err()
		}
	}
}

// maxLoadBackoff is the longest wait between attempts to read the shard, each of which
// reads and logs as much as the first.
const maxLoadBackoff = 10 * time.Second

// A stored shard is what storage has of it.
type stored struct {
	recs     []records.Instance
	problems []records.Problem
	states   shardState
	backs    map[string]desiredSpec // of groups that are rolled back
}

func (r *Reconciler) readShard(ctx context.Context) (s stored, err error) {
	var wg sync.WaitGroup
	wg.Go(func() { s.recs, s.problems, err = r.records.Load(ctx) })
	states, statesErr := r.states.Load(ctx)
	var backs map[string]desiredSpec
	if statesErr == nil {
		backs, statesErr = r.readRollbacks(ctx, states)
	}
	wg.Wait()
	s.states, s.backs = states, backs
	return s, cmp.Or(err, statesErr)
}

func (r *Reconciler) install(s stored) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.began, r.foundNoRecord = r.opts.Now(), len(s.problems) == 0
	for _, rec := range s.recs {
		r.addRecovered(r.groupOf(nstance.GroupKey{Tenant: rec.Tenant, Group: rec.Group}), rec, r.began)
		r.foundNoRecord = r.foundNoRecord && rec.Deleting != nil
	}
	for _, m := range r.members {
		r.linkReplacement(m)
	}
	r.rememberReclaims(s.recs)
	r.recordProblems(s.problems)
	r.restoreStates(s.states, s.backs)
}

// rememberReclaims has creates avoid the pools whose machines the cloud takes back at the
// moment, as they did under the former leader.
func (r *Reconciler) rememberReclaims(recs []records.Instance) {
	recs = slices.DeleteFunc(slices.Clone(recs), func(rec records.Instance) bool { return lastReclaim(&rec).IsZero() })
	slices.SortFunc(recs, func(a, b records.Instance) int { return lastReclaim(&a).Compare(lastReclaim(&b)) })
	for i := range recs {
		r.places.Reclaimed(capacityShape(recs[i].Shape), recs[i].Zone, earliest(lastReclaim(&recs[i]), r.began))
	}
}

// lastReclaim returns when the cloud last announced that it takes an instance's machine back;
// zero: never.
func lastReclaim(rec *records.Instance) (last time.Time) {
	for _, n := range rec.Notices {
		if n.Kind == nstance.Reclaim && !notice.Rehearsed(n) {
			last = latest(last, n.ReceivedAt)
		}
	}
	return last
}

func (r *Reconciler) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.balance.CompareAll(true)
	r.saver.Changed() // what a former leader was writing cannot land after that
	r.loaded, r.loadError = true, nil
	close(r.known)
	for key := range r.groups {
		r.unplanned[key] = true
		r.queue.Add(key, false)
	}
}

// readRecordsAgain reads what storage has and memory has not. A former leader's late
// write may have made a record, or changed one, after this term had read them all. An
// error means that nothing was learned.
func (r *Reconciler) readRecordsAgain(ctx context.Context) error {
	_, problems, err := r.records.Load(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recordProblems(problems)
	for _, rec := range r.records.All() {
		r.addLateRecord(rec)
		r.trustLateWrite(rec.ID)
	}
	for _, o := range r.orphans.All() {
		if r.hasRecord(o.Machine.ID) {
			r.forgetOrphan(o.Machine.ID)
		}
	}
	return nil
}

// addLateRecord makes a member of a record that has none. It needs the lock.
func (r *Reconciler) addLateRecord(rec records.Instance) {
	if _, standing := r.records.Get(rec.ID); !standing || r.members[rec.ID] != nil {
		return
	}
	g := r.groupOf(nstance.GroupKey{Tenant: rec.Tenant, Group: rec.Group})
	r.addRecovered(g, rec, r.opts.Now())
	g.restoreGoingFirst()
	for _, m := range g.members { // it may be either
		r.linkReplacement(m)
	}
	if o, ok := r.orphans.Get(rec.ID); ok {
		r.forgetOrphan(rec.ID)
		r.handleMachine(o.Machine, r.opts.Now())
	}
	r.queue.Add(g.key, true)
}

// lateRecords are the waits before records are read again in a term: what the former leader had
// sent has landed by then, unless a store held it for uncommonly long. Full passes find that.
var lateRecords = [...]time.Duration{10 * time.Second, 50 * time.Second}

// readLateWrites reads records again soon after the term began.
func (r *Reconciler) readLateWrites(ctx context.Context) {
	for _, wait := range lateRecords {
		if !sleep.For(ctx, wait) {
			return
		}
		r.rereadRecords(ctx)
	}
}

// rereadRecords is readRecordsAgain for a caller that comes again.
func (r *Reconciler) rereadRecords(ctx context.Context) {
	if err := r.readRecordsAgain(ctx); err != nil && ctx.Err() == nil {
		r.log.Warn("records not listed", "code", nstance.CodeOf(err), "err", err)
	}
}

// trustLateWrite has a member that rests be what its record says, if that was changed by
// another leader: it is in force now, not when the next leader reads it. It needs the lock.
func (r *Reconciler) trustLateWrite(id nstance.InstanceID) {
	m := r.members[id]
	if m == nil || m.step != stepNone || m.running {
		return
	}
	known := m.rec
	if r.refreshRecord(m); known.WriteID == m.rec.WriteID {
		return
	}
	if !sameDecisions(&known, &m.rec) {
		r.trustRecord(m)
	}
	r.rebalance(m.group) // it may be preserved
	r.queue.Add(m.group.key, true)
}

// sameDecisions reports whether two versions of a record say the same of deletion, drain and
// sleep.
func sameDecisions(a, b *records.Instance) bool {
	generation := func(rec *records.Instance) (n uint64) {
		if rec.Drain != nil {
			n = rec.Drain.Generation
		}
		return n
	}
	phase := func(rec *records.Instance) (p nstance.State) {
		if rec.Standby != nil {
			p = rec.Standby.Phase
		}
		return p
	}
	return (a.Deleting == nil) == (b.Deleting == nil) && generation(a) == generation(b) && phase(a) == phase(b)
}

func (r internals) Reread(ctx context.Context) error { return r.readRecordsAgain(ctx) }
