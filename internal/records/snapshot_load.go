package records

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/storage"
)

// snapshotTimeout bounds how long Load waits for the snapshot: a slower one saves
// no time.
const snapshotTimeout = 10 * time.Second

// findSnapshot returns the records of the shard's snapshot, and sends its marks as soon as
// they are known. What cannot be read or used is reported and left out.
func (r *Records) findSnapshot(ctx context.Context, marks chan<- []string) []snapshotRecord {
	defer close(marks)
	limited, cancel := context.WithTimeout(ctx, snapshotTimeout)
	defer cancel()
	if r.snap.acquire(limited) != nil {
		return nil // it is being written
	}
	defer r.snap.release()
	obj, err := r.getSnapshot(limited)
	if errors.Is(err, nstance.NotFound) {
		r.snap.setKnown("", snapshotHead{})
		return nil
	}
	var recs []snapshotRecord
	if err == nil {
		recs, err = r.usableSnapshot(ctx, obj, func(m []string) { marks <- m })
	}
	if err != nil && ctx.Err() == nil {
		r.recordSnapshotProblem(err)
	}
	return recs
}

// usableSnapshot opens the stored snapshot, and records its version, so that the
// next one can replace it: also one of the same contents, unless this one is usable. Beside
// damaged records it returns the others.
func (r *Records) usableSnapshot(ctx context.Context, obj storage.Object, useMarks func([]string)) ([]snapshotRecord, error) {
	var recs []snapshotRecord
	damaged := 0
	text, err := openSnapshot(r.shard, obj.Data)
	if err == nil {
		useMarks(text.head.Marks)
		recs, damaged, err = decodeSnapshot(ctx, text)
	}
	if err != nil {
		r.snap.setKnown(obj.Version, snapshotHead{})
		return nil, err
	}
	head := text.head
	r.snap.setKnown(obj.Version, snapshotHead{Header: head.Header})
	switch own := r.fence.epoch; {
	case own != 0 && head.Epoch > own:
		return nil, nstance.Errorf(nstance.Conflict, "%s was written by term %d, later than this one, %d", obj.Key, head.Epoch, own)
	case damaged > 0:
		return recs, unreadable(obj.Key, "%d of its %d records are damaged", damaged, head.Records)
	}
	r.snap.setKnown(obj.Version, head)
	return recs, nil
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

// A snapshotRecord is a decoded line.
type snapshotRecord struct {
	ref Ref
	*held[Instance]
}

// decodeSnapshot decodes the lines while they are unpacked, several at a time since
// it is CPU work, and counts those that are damaged.
func decodeSnapshot(ctx context.Context, text snapshotText) (recs []snapshotRecord, damaged int, err error) {
	lines := make(chan []byte, 64)
	var mu sync.Mutex // for recs and damaged
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for line := range lines {
				if ctx.Err() != nil {
					continue // the lines are drained
				}
				rec := decodeLine(line)
				mu.Lock()
				if rec.held == nil {
					damaged++
				} else {
					recs = append(recs, rec)
				}
				mu.Unlock()
			}
		})
	}
	err = text.each(func(line []byte) { lines <- line })
	close(lines)
	wg.Wait()
	if err == nil {
		err = ctx.Err()
	}
	return recs, damaged, err
}

// decodeLine returns nothing where the line is damaged. A takeover calls it ten
// thousand times: without unknown fields it decodes in one pass.
func decodeLine(data []byte) snapshotRecord {
	var known struct {
		Key     string          `json:"key"`
		Version storage.Version `json:"version"`
		Record  Instance        `json:"record"`
	}
	if strictly(data, &known) && checkFormat(known.Key, known.Record.Format) == nil {
		return newSnapshotRecord(known.Key, known.Version, &held[Instance]{value: known.Record})
	}
	var line snapshotLine
	if json.Unmarshal(data, &line) != nil {
		return snapshotRecord{}
	}
	h, err := parse[Instance](line.Key, line.Record)
	if err != nil {
		return snapshotRecord{}
	}
	return newSnapshotRecord(line.Key, line.Version, h)
}

func newSnapshotRecord(key string, v storage.Version, h *held[Instance]) snapshotRecord {
	ref, err := ParseInstanceKey(key)
	if err != nil || ref.matches(h.value) != nil {
		return snapshotRecord{}
	}
	h.version = v
	return snapshotRecord{ref, h}
}

// restore uses each record that is listed with the same version.
func (r *Records) restore(ctx context.Context, recs []snapshotRecord, listed map[Ref]storage.Version) {
	for _, rec := range recs {
		if v := listed[rec.ref]; v == "" || v != rec.version {
			continue // changed since, or gone
		}
		e, err := r.acquire(ctx, rec.ref.ID, &rec.ref)
		if err != nil {
			return // ctx has ended, which the caller sees
		}
		untouched := e.current.Load() == nil && !e.inDoubt.Load()
		if e.ref == rec.ref && untouched { // else this process has newer knowledge of it
			e.setCurrent(rec.held)
		}
		r.release(e)
	}
}
