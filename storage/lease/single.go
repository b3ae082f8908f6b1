package lease

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// Single grants every campaign. It is for tests, and where something else keeps a
// second server away, as the lock on its directory does for nstance-server dev.
// Its term does not end when another server takes the lease; what protects the
// records then is that each grant has a new epoch, and that a record never takes
// a write of an older one. No server uses it unless its options say so.
type Single struct {
	store storage.Store
	shard nstance.ShardID
	opts  Options
	doc   *storage.Doc[object]
	term  *Term // nil: none
}

var _ Elector = (*Single)(nil)

// NewSingle returns the elector of a shard's only server.
func NewSingle(s storage.Store, shard nstance.ShardID, o *Options) *Single {
	e := &Single{store: s, shard: shard}
	if o != nil {
		e.opts = *o
	}
	if e.opts.TTL <= 0 {
		e.opts.TTL = defaultTTL
	}
	if e.opts.Log == nil {
		e.opts.Log = slog.New(slog.DiscardHandler)
	}
	e.doc = storage.NewDoc[object](s, storage.LeaseKey(shard), nil)
	e.opts.Log = e.opts.Log.With("shard", shard)
	return e
}

// Campaign implements Elector: it takes the lease, whoever holds it. A term
// that this elector granted before ends. When the lease is missing, as in a
// restored bucket, the epoch continues after the highest one in the records.
func (e *Single) Campaign(ctx context.Context) (*Term, error) {
	e.endTerm(errors.New("campaigned again"))
	standing, err := e.doc.Load(ctx)
	if err != nil {
		return nil, fmt.Errorf("take the lease: %w", err)
	}
	last := standing.Epoch
	if standing.WriteID == "" {
		if last, err = (&epochs{store: e.store, shard: e.shard, log: e.opts.Log}).highest(ctx); err != nil {
			return nil, fmt.Errorf("take the lease: look for the last epoch: %w", err)
		}
	}
	holder := rand.Text()
	taken, err := e.doc.Update(ctx, func(o *object) error {
		o.Epoch = max(o.Epoch, last) + 1
		o.Holder, o.Address, o.Peer = holder, e.opts.Address, e.opts.Peer
		o.Registration = e.opts.Registration
		o.TTL, o.Released = e.opts.TTL.Milliseconds(), false
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("take the lease: %w", err)
	}
	e.term = newTerm(ctx, taken.Epoch)
	e.opts.Log.Info("lease taken", "epoch", taken.Epoch)
	return e.term, nil
}

// Resign implements Elector.
func (e *Single) Resign(ctx context.Context) error {
	term := e.term
	if term == nil {
		return nil
	}
	e.endTerm(ErrResigned)
	_, err := e.doc.Update(ctx, func(o *object) error {
		if o.Epoch == term.epoch {
			o.Released = true
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("give the lease back: %w", err)
	}
	e.opts.Log.Info("lease given back", "epoch", term.epoch)
	return nil
}

func (e *Single) endTerm(why error) {
	if e.term != nil {
		e.term.end(why)
		e.term = nil
	}
}
