package lease

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// epochs looks for the highest epoch that any object of a shard carries. It is
// needed once, when the lease is missing: a restored bucket.
type epochs struct {
	store storage.Store
	shard nstance.ShardID
	log   *slog.Logger
	top   atomic.Uint64
	found atomic.Bool // there is any object
}

// width is how many objects are read at a time.
const width = 64

func (e *epochs) highest(ctx context.Context) (uint64, error) {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(width)
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
		for _, key := range storage.ShardKeys(e.shard) {
			if !yield(key, nil) {
				return
			}
		}
		for entry, err := range e.store.List(ctx, storage.InstancePrefix(e.shard), "") {
			if !yield(entry.Key, err) || err != nil {
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
	var h storage.Header
	if err == nil {
		e.found.Store(true)
		h, err = storage.ReadHeader(obj)
	}
	if errors.Is(err, nstance.Invalid) { // not ours, or damaged: it has no epoch
		e.log.Warn("epoch not readable", "key", key, "err", err)
		return nil
	}
	for top := e.top.Load(); err == nil && h.Epoch > top; top = e.top.Load() {
		e.top.CompareAndSwap(top, h.Epoch)
	}
	return err
}
