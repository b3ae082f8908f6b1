package lease

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/validate"
	"github.com/nstance-go/nstance/storage"
)

// Lease is the Elector of a shard with any number of servers. At most one of
// them has a term that lasts, whatever becomes of requests, answers and
// processes, as long as storage keeps its promises and monotonic clocks run
// at about the same rate.
//
// Campaign and Resign are for one goroutine at a time. Holder and
// Announcements may be called at any time. End every term with Resign, also
// one that ended by itself: until then a goroutine may be running.
type Lease struct {
	store storage.Store
	key   string
	shard nstance.ShardID
	opts  Options
	clock Clock
	id    string

	// The following fields belong to Campaign, to the goroutine that renews a
	// term, and to Resign. These never run at the same time.
	current      records.Lease            // the object in storage, as last seen
	observed     bool                     // current was read, or is known to be missing
	changedAt    time.Duration            // when current was last seen to change
	highestEpoch uint64                   // ever seen in the object
	attempts     map[string]time.Duration // unanswered writes that would replace current: when sent, by write ID
	releasedAt   time.Duration            // when this process last released the lease
	backingOff   bool                     // it did, and leaves the lease to standbys for a while
	tenure       *tenure                  // nil: no term

	mu       sync.Mutex // guards what follows; never held over I/O, calls or clocks
	holder   Holder
	renewals *renewals // of the term; nil: none
}

var _ Elector = (*Lease)(nil)

// New returns an elector that takes part. Nothing happens before Campaign. Where
// storage is reached over a network, the lease has connections of its own, so
// that it waits neither for other calls nor for their dead connections.
// Fails with Invalid for a bad name or option.
func New(store storage.Store, shard nstance.ShardID, o *Options) (*Lease, error) {
	l := &Lease{key: layout.LeaseKey(shard), shard: shard, id: rand.Text(), attempts: map[string]time.Duration{}}
	if o != nil {
		l.opts = *o
	}
	if err := validate.Given("store", "give the store that the shard's servers share", store); err != nil {
		return nil, err
	}
	if err := errors.Join(validate.Shard("shard", shard), l.opts.validate()); err != nil {
		return nil, err
	}
	l.store = storage.Separate(store)
	l.clock = l.opts.Clock
	l.opts.Log = l.opts.Log.With("shard", shard)
	return l, nil
}

// Holder returns who holds the lease as last seen; the zero Holder if no
// holder is known. It is an address to name to clients, never a reason to act.
func (l *Lease) Holder() Holder {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holder
}

// Campaign implements Elector. While another holds the lease it reads it every
// Options.Poll, or listens to Options.Watch. It retries after Unavailable,
// Throttled and Ambiguous, and returns errors that a retry does not cure, such as
// Denied or an object that cannot be read. What it has observed until then counts
// when it is called again. A term granted before ends, and is not released.
func (l *Lease) Campaign(ctx context.Context) (*Term, error) {
	if err := l.endTerm(ctx, errCampaigns); err != nil {
		return nil, err
	}
	c := &campaign{Lease: l}
	c.watch.begin(ctx, l)
	defer c.watch.end()
	term, err := c.run(ctx)
	if err != nil {
		return nil, fmt.Errorf("take the lease: %w", err)
	}
	return term, nil
}

// Resign implements Elector. It ends the term first, and waits for nothing
// that the term had in flight before it releases the lease.
func (l *Lease) Resign(ctx context.Context) error {
	t := l.tenure
	if t == nil {
		return nil
	}
	if err := l.endTerm(ctx, ErrResigned); err != nil {
		return fmt.Errorf("give the lease back: %w", err)
	}
	defer t.renewals.close()
	if t.lost {
		return nil
	}
	if err := l.release(ctx, t); err != nil {
		return fmt.Errorf("give the lease back: %w", err)
	}
	l.opts.Log.Info("lease released", "epoch", t.term.epoch)
	return nil
}

// endTerm ends the term, and waits until it is not renewed any more. Afterwards
// its renewals are still open.
func (l *Lease) endTerm(ctx context.Context, why error) error {
	t := l.tenure
	if t == nil {
		return nil
	}
	t.term.end(why)
	select {
	case <-t.over:
	case <-ctx.Done():
		return stopped(ctx)
	}
	l.tenure = nil
	if !errors.Is(why, ErrResigned) {
		t.renewals.close()
	}
	return nil
}

func stopped(ctx context.Context) error {
	return nstance.Errorf(nstance.Unavailable, "gave up waiting: %w", ctx.Err())
}

// call makes one request to storage, which takes no longer than a sixth of
// the ttl. Its end then counts as that of a deadline.
func (l *Lease) call(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer l.clock.AfterFunc(l.opts.TTL/6, func() { cancel(context.DeadlineExceeded) })()
	return do(ctx)
}

// read reads the object. A missing object is a Lease without version. Invalid
// means that this program cannot read the object.
func (l *Lease) read(ctx context.Context) (s records.Lease, err error) {
	err = l.call(ctx, func(ctx context.Context) error {
		obj, err := l.store.Get(ctx, l.key)
		if errors.Is(err, nstance.NotFound) {
			return nil
		}
		if err == nil {
			s, err = records.DecodeLease(obj)
		}
		return err
	})
	return s, err
}

// write replaces l.current by next, and returns when the request was sent.
func (l *Lease) write(ctx context.Context, next *records.Lease) (sent time.Duration, err error) {
	data, err := next.Encode()
	if err != nil {
		return 0, nstance.Errorf(nstance.Internal, "encode the lease: %w", err)
	}
	sent = l.clock.Now()
	err = l.call(ctx, func(ctx context.Context) (err error) {
		if l.current.Version == "" {
			next.Version, err = l.store.PutIfAbsent(ctx, l.key, data)
		} else {
			next.Version, err = l.store.PutIfMatch(ctx, l.key, data, l.current.Version)
		}
		return err
	})
	return sent, err
}

// observe records what is in storage. It is called after the answer, and so after
// the write that it shows reached storage.
func (l *Lease) observe(s records.Lease) {
	if !l.observed || s.Version != l.current.Version {
		l.changedAt = l.clock.Now()
	}
	l.observed = true
	l.current, l.highestEpoch = s, max(l.highestEpoch, s.Epoch)
	h := Holder{ID: s.Holder, Address: s.Address, Registration: s.Registration, Peer: s.Peer, Epoch: s.Epoch, Self: s.Holder == l.id, Released: s.Released}
	l.mu.Lock()
	changed := h != l.holder
	l.holder = h
	l.mu.Unlock()
	if changed && l.opts.OnChange != nil {
		l.opts.OnChange(h)
	}
}
