package storage

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

// snapshotPatience bounds how long Load waits for the snapshot: what takes
// longer than this saves nothing.
const snapshotPatience = 10 * time.Second

// findSnapshot reads the shard's snapshot. One that cannot be had or used is
// reported, and empty.
func (r *Records) findSnapshot(ctx context.Context) snapshot {
	limited, cancel := context.WithTimeout(ctx, snapshotPatience)
	defer cancel()
	if r.snap.take(limited) != nil {
		return snapshot{} // somebody is writing it: then it is of no use now
	}
	defer r.snap.give()
	obj, err := r.getSnapshot(limited)
	if errors.Is(err, nstance.NotFound) {
		r.snap.saw("", snapshotHead{})
		return snapshot{}
	}
	if err == nil {
		var found snapshot
		if found, err = r.usableSnapshot(obj); err == nil {
			return found
		}
	}
	if ctx.Err() == nil {
		r.blameSnapshot(err)
	}
	return snapshot{}
}

// usableSnapshot opens what stands there, and takes down what it is, so that
// the next one can replace it.
func (r *Records) usableSnapshot(obj Object) (snapshot, error) {
	found, err := openSnapshot(r.shard, obj.Data)
	if err != nil {
		r.snap.saw(obj.Version, snapshotHead{})
		return snapshot{}, err
	}
	r.snap.saw(obj.Version, found.head)
	if own := r.fence.epoch; own != 0 && found.head.Epoch > own {
		return snapshot{}, nstance.Errorf(nstance.Conflict, "%s was written by term %d, later than this one, %d", obj.Key, found.head.Epoch, own)
	}
	return found, nil
}

// getSnapshot reads the object, again a few times if storage stumbles.
func (r *Records) getSnapshot(ctx context.Context) (Object, error) {
	for attempt := 1; ; attempt++ {
		obj, err := r.store.Get(ctx, SnapshotKey(r.shard))
		if err == nil || !passing(err) || attempt == 3 || !sleep.For(ctx, backoff(attempt)) {
			return obj, err
		}
	}
}

// restore takes from the snapshot every record that is listed with the same
// version, several at a time since that is work for the processor. What is
// damaged is left to be read like everything else that is listed.
func (r *Records) restore(ctx context.Context, s snapshot, listed map[Ref]Version) {
	var next, damaged atomic.Int64
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(s.lines)) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(s.lines)) && ctx.Err() == nil; i = next.Add(1) - 1 {
				if r.restoreOne(ctx, s.lines[i], listed) != nil {
					damaged.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n := damaged.Load(); n > 0 {
		r.blameSnapshot(unreadable(SnapshotKey(r.shard), "%d of its %d records are damaged", n, len(s.lines)))
	}
}

// restoreOne fails when the line cannot be understood.
func (r *Records) restoreOne(ctx context.Context, data []byte, listed map[Ref]Version) error {
	var line snapshotLine
	if err := json.Unmarshal(data, &line); err != nil {
		return err
	}
	ref, err := ParseInstanceKey(line.Key)
	if err != nil {
		return err
	}
	if v := listed[ref]; v == "" || v != line.Version {
		return nil // it has changed since, or is gone
	}
	h, err := parse[Instance](line.Key, line.Record)
	if err == nil {
		err = ref.matches(h.value)
	}
	if err != nil {
		return err
	}
	h.version = line.Version
	e, err := r.hold(ctx, ref.ID, &ref)
	if err != nil {
		return nil // ctx has ended, which the caller sees
	}
	defer r.drop(e)
	untouched := e.now.Load() == nil && !e.doubt.Load() && e.problem.Load() == nil
	if e.ref == ref && untouched { // else somebody in this process knows better
		e.know(h)
	}
	return nil
}
