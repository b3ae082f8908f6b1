package storage

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

// Load brings memory up to date: it lists the shard's keys and reads what has
// changed, many at a time, without a limit on its duration. The first time it
// takes from the shard's snapshot what has not changed since that was written.
// It returns every record, and a Problem for each that exists and cannot be
// read. An error means that the whole is not known; nothing may be decided
// then. Load may be repeated at any time, beside all other calls.
func (r *Records) Load(ctx context.Context) ([]Instance, []Problem, error) {
	known := r.entries()
	listed, strays, snap, err := r.survey(ctx, len(known) == 0)
	if err != nil {
		return nil, nil, fmt.Errorf("load the records of shard %s: %w", r.shard, err)
	}
	for _, e := range known {
		if _, ok := listed[e.ref]; !ok {
			listed[e.ref] = "" // gone, which its own read must confirm
		}
	}
	strays = append(strays, r.twice(listed)...)
	r.mu.Lock()
	r.strays = strays
	r.mu.Unlock()
	for _, p := range strays {
		r.log.Error("object is no instance record", "key", p.Key, "err", p.Err)
	}
	r.restore(ctx, snap, listed)
	if err := r.readAll(ctx, listed); err != nil {
		return nil, nil, fmt.Errorf("load the records of shard %s: %w", r.shard, err)
	}
	return r.All(), r.Problems(), nil
}

// survey lists the shard's keys, and reads its snapshot meanwhile if asked to.
func (r *Records) survey(ctx context.Context, fresh bool) (listed map[Ref]Version, strays []Problem, snap snapshot, err error) {
	aside, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	if fresh {
		wg.Go(func() { snap = r.findSnapshot(aside) })
	}
	if listed, strays, err = r.list(ctx); err != nil {
		stop() // nobody wants the snapshot any more
	}
	wg.Wait()
	stop()
	return listed, strays, snap, err
}

func (r *Records) list(ctx context.Context) (map[Ref]Version, []Problem, error) {
	listed := map[Ref]Version{}
	var strays []Problem
	for entry, err := range r.store.List(ctx, InstancePrefix(r.shard), "") {
		if err != nil {
			return nil, nil, err
		}
		ref, err := ParseInstanceKey(entry.Key)
		if err != nil {
			strays = append(strays, Problem{Key: entry.Key, Tenant: ref.Tenant, Group: ref.Group, ID: ref.ID, Err: err})
			continue
		}
		listed[ref] = entry.Version
	}
	return listed, strays, nil
}

// twice finds IDs that stand in several groups, keeps the one that is known or
// comes first, and returns the others as problems.
func (r *Records) twice(listed map[Ref]Version) []Problem {
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

// readAll reads what is listed with another version than is held.
func (r *Records) readAll(ctx context.Context, listed map[Ref]Version) error {
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
	return stopped(ctx, "load", InstancePrefix(r.shard))
}

func (r *Records) holds(ref Ref, v Version) bool {
	e := r.lookup(ref.ID)
	if e == nil || e.doubt.Load() {
		return false
	}
	h := e.now.Load()
	return h != nil && v != "" && h.version == v
}

// loadOne reads one record, again and again if storage stumbles, and turns
// what remains into its Problem.
func (r *Records) loadOne(ctx context.Context, ref Ref) {
	for attempt := 1; ; attempt++ {
		_, err := r.refresh(ctx, ref)
		if err == nil || ctx.Err() != nil {
			return
		}
		if attempt < maxAttempts && passing(err) && sleep.For(ctx, backoff(attempt)) {
			continue
		}
		if errors.Is(err, nstance.Invalid) {
			return // which refresh has noted
		}
		if e, herr := r.hold(ctx, ref.ID, &ref); herr == nil {
			if e.doubt.Load() { // nobody has read it meanwhile
				r.blame(e, err)
			}
			r.drop(e)
		}
		return
	}
}

// passing reports whether the same read may succeed in a moment.
func passing(err error) bool {
	return errors.Is(err, nstance.Unavailable) || errors.Is(err, nstance.Throttled) || errors.Is(err, nstance.Ambiguous)
}
