package lease

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"log/slog"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage"
)

// Prepare writes a released lease for a shard that has never been led, so that
// its first leader takes it at once: a missing lease is taken only after a minute.
// It reports whether it did. Where a lease or any document of a leader exists, it
// changes nothing. Call it before any server of the shard runs: it cannot detect a
// leader whose lease was removed and that has written nothing.
func Prepare(ctx context.Context, s storage.Store, shard nstance.ShardID) (prepared bool, err error) {
	if free, err := records.Preparable(ctx, s, shard); err != nil || !free {
		return false, err
	}
	data, err := (&records.Lease{Header: records.NewHeader(0), Released: true}).Encode()
	if err != nil {
		return false, nstance.Errorf(nstance.Internal, "encode the lease: %w", err)
	}
	standing, err := records.PutOnce(ctx, s, layout.LeaseKey(shard), data)
	return bytes.Equal(standing, data), err
}

// epochs finds the highest epoch in any document of a shard. It is needed once,
// when the lease is missing, as in a restored bucket.
type epochs struct {
	store storage.Store
	shard nstance.ShardID
	log   *slog.Logger
	top   atomic.Uint64
}

// maxReads is how many objects are read at a time.
const maxReads = 64

func (e *epochs) highest(ctx context.Context) (uint64, error) {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(maxReads)
	for key, err := range e.keys(ctx) {
		if err != nil {
			if cause := g.Wait(); cause != nil { // which cut the listing short
				err = cause
			}
			return 0, err
		}
		g.Go(func() error { return e.read(ctx, key) })
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	return e.top.Load(), nil
}

func (e *epochs) keys(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for _, key := range layout.ShardKeys(e.shard) {
			if !yield(key, nil) {
				return
			}
		}
		for entry, err := range e.store.List(ctx, layout.InstancePrefix(e.shard), "") {
			if !yield(entry.Key, err) {
				return
			}
		}
	}
}

func (e *epochs) read(ctx context.Context, key string) error {
	obj, err := e.store.Get(ctx, key)
	if errors.Is(err, nstance.NotFound) {
		return nil
	}
	var h records.Header
	if err == nil {
		h, err = records.ReadHeader(obj)
	}
	if errors.Is(err, nstance.Invalid) { // foreign or damaged: it has no epoch
		e.log.Warn("epoch not readable", "key", key, "err", err)
		return nil
	}
	for top := e.top.Load(); err == nil && h.Epoch > top; top = e.top.Load() {
		e.top.CompareAndSwap(top, h.Epoch)
	}
	return err
}
