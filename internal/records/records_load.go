package records

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/storage"
)

// Load brings memory up to date: it lists the shard's keys and reads the records
// that have changed, many at a time, without a limit on its duration. The first
// Load uses the shard's snapshot for records that have not changed since. It
// returns every record, and a Problem for each that exists and cannot be read.
// An error means that the records are not completely known; nothing may be
// decided then. Load may be repeated at any time, beside all other calls.
func (r *Records) Load(ctx context.Context) ([]Instance, []Problem, error) {
	known := r.entries()
	listed, foreign, snap, err := r.listWithSnapshot(ctx, len(known) == 0)
	if err != nil {
		return nil, nil, fmt.Errorf("load the records of shard %s: %w", r.shard, err)
	}
	for _, e := range known {
		if _, ok := listed[e.ref]; !ok {
			listed[e.ref] = "" // gone: a read must confirm that
		}
	}
	foreign = append(foreign, r.rejectDuplicates(listed)...)
	r.mu.Lock()
	r.foreign = foreign
	r.mu.Unlock()
	for _, p := range foreign {
		r.log.Error("object is no instance record", "key", p.Key, "err", p.Err)
	}
	r.restore(ctx, snap, listed)
	if err := r.readAll(ctx, listed); err != nil {
		return nil, nil, fmt.Errorf("load the records of shard %s: %w", r.shard, err)
	}
	return r.All(), r.Problems(), nil
}

// listWithSnapshot lists the shard's keys, and reads and decodes its snapshot at the
// same time if fresh.
func (r *Records) listWithSnapshot(ctx context.Context, fresh bool) (listed map[Ref]storage.Version, foreign []Problem, snap []snapshotRecord, err error) {
	if !fresh {
		listed, foreign, err = r.list(ctx, nil)
		return listed, foreign, nil, err
	}
	aside, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	found := make(chan []string, 1)
	wg.Go(func() { snap = r.findSnapshot(aside, found) })
	var marks []string
	select {
	case marks = <-found:
	case <-time.After(marksTimeout):
	case <-ctx.Done():
	}
	if listed, foreign, err = r.list(ctx, marks); err != nil {
		stop() // the snapshot is not needed any more
	}
	wg.Wait()
	return listed, foreign, snap, err
}

// marksTimeout is how long the listing waits for the snapshot to say how it can be divided.
const marksTimeout = time.Second

// list lists the shard's keys: what lies between marks at the same time, for a store answers
// with a thousand keys, and says only then where the next begin. Marks may be any keys, also
// those that are gone.
func (r *Records) list(ctx context.Context, marks []string) (map[Ref]storage.Version, []Problem, error) {
	if len(marks) > maxMarks || !slices.IsSorted(marks) || slices.Contains(marks, "") {
		marks = nil
	}
	parts := make([][]storage.Entry, len(marks)+1)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(r.width)
	for i := range parts {
		after, last := "", ""
		if i > 0 {
			after = marks[i-1]
		}
		if i < len(marks) {
			last = marks[i]
		}
		g.Go(func() (err error) {
			parts[i], err = r.listPart(ctx, after, last)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, nil, err
	}
	listed := map[Ref]storage.Version{}
	var foreign []Problem
	for _, entry := range slices.Concat(parts...) {
		ref, err := ParseInstanceKey(entry.Key)
		if err != nil {
			foreign = append(foreign, Problem{Key: entry.Key, Tenant: ref.Tenant, Group: ref.Group, ID: ref.ID, Err: err})
			continue
		}
		listed[ref] = entry.Version
	}
	return listed, foreign, nil
}

// listPart returns the entries whose key sorts after one and not after the last; empty: all.
func (r *Records) listPart(ctx context.Context, after, last string) (part []storage.Entry, err error) {
	for entry, err := range r.store.List(ctx, layout.InstancePrefix(r.shard), after) {
		switch {
		case err != nil:
			return nil, err
		case last != "" && entry.Key > last:
			return part, nil
		}
		part = append(part, entry)
		if entry.Key == last { // do not ask for the next page
			return part, nil
		}
	}
	return part, nil
}

// rejectDuplicates finds IDs with records in several groups, keeps the one that is
// known or comes first, and returns the others as problems.
func (r *Records) rejectDuplicates(listed map[Ref]storage.Version) []Problem {
	home := map[nstance.InstanceID]Ref{}
	for ref := range listed {
		if other, ok := home[ref.ID]; !ok || ref.Key() < other.Key() {
			home[ref.ID] = ref
		}
	}
	for id := range home {
		if e := r.lookup(id); e != nil {
			home[id] = e.ref
		}
	}
	var problems []Problem
	for ref := range listed {
		if home[ref.ID] == ref {
			continue
		}
		delete(listed, ref)
		err := nstance.Errorf(nstance.Conflict, "%s: the ID belongs to %s already", ref.Key(), home[ref.ID].Key())
		problems = append(problems, Problem{Key: ref.Key(), Tenant: ref.Tenant, Group: ref.Group, ID: ref.ID, Err: err})
	}
	return problems
}

// readAll reads the records whose listed version is not the one in memory.
func (r *Records) readAll(ctx context.Context, listed map[Ref]storage.Version) error {
	work := make(chan Ref)
	var wg sync.WaitGroup
	for range min(r.width, len(listed)) {
		wg.Go(func() {
			for ref := range work {
				r.loadOne(ctx, ref)
			}
		})
	}
	for ref, v := range listed {
		if !r.holds(ref, v) {
			work <- ref
		}
	}
	close(work)
	wg.Wait()
	return stopped(ctx, "load", layout.InstancePrefix(r.shard))
}

func (r *Records) holds(ref Ref, v storage.Version) bool {
	e := r.lookup(ref.ID)
	if e == nil || e.inDoubt.Load() {
		return false
	}
	h := e.current.Load()
	return h != nil && h.version == v // no object has an empty version
}

// loadOne reads one record, with retries, and turns the last error into its Problem.
func (r *Records) loadOne(ctx context.Context, ref Ref) {
	for attempt := 1; ; attempt++ {
		_, err := r.refresh(ctx, ref)
		if err == nil || ctx.Err() != nil {
			return
		}
		if attempt < maxAttempts && transient(err) {
			if !sleep.For(ctx, backoff(attempt)) {
				return // ctx has ended, which the caller sees
			}
			continue
		}
		if errors.Is(err, nstance.Invalid) {
			return // refresh has recorded it
		}
		if e, herr := r.acquire(ctx, ref.ID, &ref); herr == nil {
			if e.inDoubt.Load() { // it was not read in the meantime
				r.recordProblem(e, err)
			}
			r.release(e)
		}
		return
	}
}

// transient reports whether a retry of a read may succeed.
func transient(err error) bool {
	return errors.Is(err, nstance.Unavailable) || errors.Is(err, nstance.Throttled) || errors.Is(err, nstance.Ambiguous)
}
