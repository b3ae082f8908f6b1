package reconcile

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/internal/avoid"
	"github.com/nstance-go/nstance/reconcile/internal/balance"
	"github.com/nstance-go/nstance/reconcile/internal/history"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// A snapshot is a group at one time, as plans and reads see it. A read is given a copy, which it
// uses without the lock: the copy shares only what is replaced and never changed in place.
type snapshot struct {
	*group
	now        time.Time
	view       plan.View
	freeze     *history.Freeze // that the group is under; nil: none
	allFrozen  bool            // an operator has frozen the whole shard
	clockSince time.Time       // since when the clock is as it is
	troubles   []trouble       // of a copy
}

// snapshot returns g itself. It appends to members.
func (s *shard) snapshot(g *group, now time.Time, members []plan.Member) snapshot {
	return snapshot{
		group: g, now: now, view: s.view(g, now, members),
		freeze: s.freezeOf(g), allFrozen: s.frozen != nil, clockSince: s.clock.Since(),
	}
}

// snapshotCopy returns a copy of g, for a read.
func (s *shard) snapshotCopy(g *group, now time.Time) *snapshot {
	at, alone := s.snapshot(g, now, nil), *g
	alone.members, alone.ownBalancers, alone.creates, alone.buffer, alone.published = nil, nil, nil, nil, groupPublications{}
	at.group = &alone
	for i, m := range g.members {
		at.view.Members[i].Notices = slices.Clone(m.Standing)
		if t, troubled := m.trouble(now); troubled {
			at.troubles = append(at.troubles, t)
		}
	}
	return &at
}

// read returns a copy of a group, or NotFound.
func (r *Reconciler) read(key nstance.GroupKey) (*snapshot, error) {
	now := r.opts.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if g := r.groups[key]; g != nil && !g.isGone() {
		return r.snapshotCopy(g, now), nil
	}
	return nil, errNoGroup(key)
}

// readAll returns copies of all groups, sorted by key.
func (r *Reconciler) readAll() (all []*snapshot) {
	now := r.opts.Now()
	r.eachGroup(func(g *group) {
		if !g.isGone() {
			all = append(all, r.snapshotCopy(g, now))
		}
	})
	return all
}

// eachGroup calls do with each group, sorted by key. It takes the lock for each anew: no
// decision waits for all of them.
func (r *Reconciler) eachGroup(do func(*group)) {
	var keys []nstance.GroupKey
	r.locked(func() { keys = slices.Collect(maps.Keys(r.groups)) })
	slices.SortFunc(keys, func(a, b nstance.GroupKey) int { return cmp.Compare(a.String(), b.String()) })
	for _, key := range keys {
		r.locked(func() {
			if g := r.groups[key]; g != nil {
				do(g)
			}
		})
	}
}

// A shardSnapshot is what concerns the whole shard at one time, and single records and machines
// of it.
type shardSnapshot struct {
	shardTroubles
	now        time.Time
	overtaken  *history.Freeze
	distrust   string // of the clock
	clockSince time.Time
	avoided    []avoid.Entry
	orphans    []OrphanView

	// From parts with locks of their own.
	balancers        []string // names
	balancerFailures []balance.Failure
	cannotBalance    bool  // the provider cannot change load balancers
	snapshotProblem  error // of the records
}

// readShard returns a copy of what concerns the whole shard.
func (r *Admin) readShard() *shardSnapshot {
	now := r.opts.Now()
	at := &shardSnapshot{
		now: now, balancers: r.balance.Names(), balancerFailures: r.balance.Failures(), cannotBalance: r.provider.Abilities().Balancers == nil,
		snapshotProblem: r.records.SnapshotProblem(),
	}
	r.locked(func() {
		at.shardTroubles, at.overtaken, at.distrust, at.clockSince = r.shardTroubles, r.overtaken(), r.clock.Distrust(), r.clock.Since()
		at.avoided, at.orphans = r.places.AvoidedPools.Standing(r.reachedBy(now)), r.orphanViews()
	})
	return at
}
