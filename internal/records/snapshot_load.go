package records

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/storage"
)

// snapshotTimeout bounds how long Load waits for the snapshot: a slower one saves
// no time.
const snapshotTimeout = 10 * time.Second

// findSnapshot reads the shard's snapshot. One that cannot be read or used is
// reported, and returned empty.
func (r *Records) findSnapshot(ctx context.Context) snapshot {
	limited, cancel := context.WithTimeout(ctx, snapshotTimeout)
	defer cancel()
	if r.snap.acquire(limited) != nil {
		return snapshot{} // it is being written
	}
	defer r.snap.release()
	obj, err := r.getSnapshot(limited)
	if errors.Is(err, nstance.NotFound) {
		r.snap.setKnown("", snapshotHead{})
		return snapshot{}
	}
	if err == nil {
		var found snapshot
		if found, err = r.usableSnapshot(obj); err == nil {
			return found
		}
	}
	if ctx.Err() == nil {
		r.recordSnapshotProblem(err)
	}
	return snapshot{}
}

// usableSnapshot opens the stored snapshot, and records its version, so that the
// next one can replace it.
func (r *Records) usableSnapshot(obj storage.Object) (snapshot, error) {
	found, err := openSnapshot(r.shard, obj.Data)
	if err != nil {
		r.snap.setKnown(obj.Version, snapshotHead{})
		return snapshot{}, err
	}
	r.snap.setKnown(obj.Version, found.head)
	if own := r.fence.epoch; own != 0 && found.head.Epoch > own {
		return snapshot{}, nstance.Errorf(nstance.Conflict, "%s was written by term %d, later than this one, %d", obj.Key, found.head.Epoch, own)
	}
	return found, nil
}

// getSnapshot reads the object, with a few retries.
func (r *Records) getSnapshot(ctx context.Context) (storage.Object, error) {
	for attempt := 1; ; attempt++ {
		obj, err := r.store.Get(ctx, layout.SnapshotKey(r.shard))
		if !transient(err) || attempt == 3 || !sleep.For(ctx, backoff(attempt)) {
			return obj, err
		}
	}
}

// restore uses every record of the snapshot that is listed with the same version,
// several at a time since decoding is CPU work. Damaged ones are read like all
// other listed records.
func (r *Records) restore(ctx context.Context, s snapshot, listed map[Ref]storage.Version) {
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
		r.recordSnapshotProblem(unreadable(layout.SnapshotKey(r.shard), "%d of its %d records are damaged", n, len(s.lines)))
	}
}

// restoreOne fails when the line cannot be decoded.
func (r *Records) restoreOne(ctx context.Context, data []byte, listed map[Ref]storage.Version) error {
	var line snapshotLine
	if err := json.Unmarshal(data, &line); err != nil {
		return err
	}
	ref, err := ParseInstanceKey(line.Key)
	if err != nil {
		return err
	}
	if v := listed[ref]; v == "" || v != line.Version {
		return nil // changed since, or gone
	}
	h, err := parse[Instance](line.Key, line.Record)
	if err == nil {
		err = ref.matches(h.value)
	}
	if err != nil {
		return err
	}
	h.version = line.Version
	e, err := r.acquire(ctx, ref.ID, &ref)
	if err != nil {
		return nil // ctx has ended, which the caller sees
	}
	defer r.release(e)
	untouched := e.current.Load() == nil && !e.inDoubt.Load()
	if e.ref == ref && untouched { // else this process has newer knowledge of it
		e.setCurrent(h)
	}
	return nil
}
