package lease

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// Single grants every campaign. It is for a shard that has one server, such as
// nstance-server dev. Nothing keeps two servers apart; what protects the
// records, should that happen all the same, is that each grant has a new
// epoch, and that a record never takes a write of an older one.
type Single struct {
	store storage.Store
	shard nstance.ShardID
	opts  Options
	doc   *storage.Doc[object]
	term  *Term // nil: none
}

var _ Elector = (*Single)(nil)

// Options adjust an elector. Nil and zero mean the defaults.
type Options struct {
	Address string        // where the holder can be reached; for display
	TTL     time.Duration // written into the lease for standbys to judge by; 6s
	Log     *slog.Logger  // nil: discard
}

// object is lease/{shard}.json.
type object struct {
	storage.Header
	Holder   string `json:"holder"` // random, new with every process
	Address  string `json:"address,omitempty"`
	TTL      int64  `json:"ttl_ms"`
	Released bool   `json:"released"` // given back: it may be taken at once
}

// NewSingle returns the elector of a shard's only server.
func NewSingle(s storage.Store, shard nstance.ShardID, o *Options) *Single {
	e := &Single{store: s, shard: shard}
	if o != nil {
		e.opts = *o
	}
	if e.opts.TTL <= 0 {
		e.opts.TTL = 6 * time.Second
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
		if last, err = e.highest(ctx); err != nil {
			return nil, fmt.Errorf("take the lease: look for the last epoch: %w", err)
		}
	}
	holder := rand.Text()
	taken, err := e.doc.Update(ctx, func(o *object) error {
		o.Epoch = max(o.Epoch, last) + 1
		o.Holder, o.Address, o.TTL, o.Released = holder, e.opts.Address, e.opts.TTL.Milliseconds(), false
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

// highest returns the highest epoch that any object of the shard carries.
func (e *Single) highest(ctx context.Context) (uint64, error) {
	var top uint64
	for key, err := range e.keys(ctx) {
		if err != nil {
			return 0, err
		}
		obj, err := e.store.Get(ctx, key)
		if errors.Is(err, nstance.NotFound) {
			continue
		}
		var h storage.Header
		if err == nil {
			err = unmarshal(obj, &h)
		}
		switch {
		case errors.Is(err, nstance.Invalid): // not ours, or damaged: it has no epoch
			e.opts.Log.Warn("epoch not readable", "key", key, "err", err)
		case err != nil:
			return 0, err
		}
		top = max(top, h.Epoch)
	}
	return top, nil
}

func unmarshal(obj storage.Object, h *storage.Header) error {
	if err := json.Unmarshal(obj.Data, h); err != nil {
		return nstance.Errorf(nstance.Invalid, "%s: %w", obj.Key, err)
	}
	return nil
}

func (e *Single) keys(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for _, key := range []string{storage.StateKey(e.shard), storage.GroupsKey(e.shard)} {
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
