package lease

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// Lease is the Elector of a shard with any number of servers. At most one of
// them has a term that lasts, whatever becomes of requests, answers and
// processes, as long as storage keeps its promises and monotonic clocks run
// at about the same rate.
//
// Campaign and Resign are for one goroutine at a time. Holder and
// Announcements may be called at any time. End every term with Resign, also
// one that ended by itself: until then a goroutine may be at work.
type Lease struct {
	store storage.Store
	key   string
	shard nstance.ShardID
	opts  Options
	clock Clock
	id    string

	// What follows belongs to whoever campaigns, keeps a term or resigns.
	// These never run at the same time.
	now    standing                 // in storage, as far as is known
	seen   time.Duration            // when this process last saw it change; before that, nothing
	looked bool                     // it was ever seen, or seen to be missing
	last   uint64                   // the highest epoch ever seen in it
	takes  map[string]time.Duration // own attempts at now that got no answer: write ID, when sent
	freed  time.Duration            // when the lease was last given back
	shy    bool                     // it was, and others go first
	tenure *tenure                  // nil: no term

	mu     sync.Mutex // guards what follows; never held over I/O, calls or clocks
	holder Holder
	news   *news // of the term; nil: none
}

var _ Elector = (*Lease)(nil)

// New returns an elector that takes part. Nothing happens before Campaign. Where
// storage is reached over a network, the lease has connections of its own, so
// that it waits for no other call and for no connection that others have found
// dead.
// Fails with Invalid for a bad name or option.
func New(store storage.Store, shard nstance.ShardID, o *Options) (*Lease, error) {
	l := &Lease{key: storage.LeaseKey(shard), shard: shard, id: rand.Text(), takes: map[string]time.Duration{}}
	if o != nil {
		l.opts = *o
	}
	if store == nil {
		return nil, nstance.FieldError("store", "", "there is none")
	}
	if err := errors.Join(shard.Validate("shard"), l.opts.validate()); err != nil {
		return nil, err
	}
	l.store = storage.Separate(store)
	l.clock = l.opts.Clock
	l.opts.Log = l.opts.Log.With("shard", shard)
	return l, nil
}

// Holder returns who holds the lease as last seen; the zero Holder if nobody
// is known to. It is an address to name to clients, never a reason to act.
func (l *Lease) Holder() Holder {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holder
}

// Campaign implements Elector. While another holds the lease it reads it every
// Options.Poll, or listens to Options.Watch. It goes on through Unavailable,
// Throttled and Ambiguous, and returns what repeating does not cure, such as
// Denied or an object that cannot be read; what it has seen until then counts
// when it is called again. A term granted before ends, and is not given back.
func (l *Lease) Campaign(ctx context.Context) (*Term, error) {
	if err := l.halt(ctx, errCampaigns); err != nil {
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
// that the term had under way before it gives the lease back.
func (l *Lease) Resign(ctx context.Context) error {
	t := l.tenure
	if t == nil {
		return nil
	}
	if err := l.halt(ctx, ErrResigned); err != nil {
		return fmt.Errorf("give the lease back: %w", err)
	}
	defer t.news.close()
	if t.lost {
		return nil
	}
	if err := l.release(ctx, t); err != nil {
		return fmt.Errorf("give the lease back: %w", err)
	}
	l.opts.Log.Info("lease given back", "epoch", t.term.epoch)
	return nil
}

// halt ends the term, and waits until nobody renews it any more. Afterwards
// its news are still open.
func (l *Lease) halt(ctx context.Context, why error) error {
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
		t.news.close()
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

// read looks at the object. NotFound means that there is none, Invalid that
// what stands there is beyond this program.
func (l *Lease) read(ctx context.Context) (s standing, err error) {
	err = l.call(ctx, func(ctx context.Context) error {
		obj, err := l.store.Get(ctx, l.key)
		if errors.Is(err, nstance.NotFound) {
			return nil
		}
		switch {
		case err != nil:
		case obj.Version == l.now.version:
			s = l.now
		default:
			s, err = decode(obj)
		}
		return err
	})
	return s, err
}

// write puts next where l.now stands, and returns when it was sent.
func (l *Lease) write(ctx context.Context, next *standing) (sent time.Duration, err error) {
	data, err := next.encode()
	if err != nil {
		return 0, nstance.Errorf(nstance.Internal, "encode the lease: %w", err)
	}
	sent = l.clock.Now()
	err = l.call(ctx, func(ctx context.Context) (err error) {
		if l.now.version == "" {
			next.version, err = l.store.PutIfAbsent(ctx, l.key, data)
		} else {
			next.version, err = l.store.PutIfMatch(ctx, l.key, data, l.now.version)
		}
		return err
	})
	return sent, err
}

// observe takes note of what stands in storage now. It is called after the
// answer: whatever it says reached storage before.
func (l *Lease) observe(s standing) {
	if !l.looked || s.version != l.now.version {
		l.seen = l.clock.Now()
	}
	l.looked = true
	l.now, l.last = s, max(l.last, s.Epoch)
	h := Holder{ID: s.Holder, Address: s.Address, Registration: s.Registration, Peer: s.Peer, Epoch: s.Epoch, Self: s.Holder == l.id, Released: s.Released}
	if s.version == "" {
		h = Holder{}
	}
	l.mu.Lock()
	changed := h != l.holder
	l.holder = h
	l.mu.Unlock()
	if changed && l.opts.OnChange != nil {
		l.opts.OnChange(h)
	}
}
