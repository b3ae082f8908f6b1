package sim

import (
	"context"
	"iter"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// A link is what stands between one server process and everything outside it.
type link struct {
	mu     sync.Mutex
	rng    *rand.Rand
	dead   bool          // the process has crashed: nothing comes out or in any more
	cut    bool          // no call gets through
	frozen chan struct{} // closed when the process goes on; nil while it runs
	lose   float64       // share of answers lost after the deed
	slow   time.Duration // longest latency
}

func newLink(seed uint64) *link {
	return &link{rng: rand.New(rand.NewPCG(seed, 7)), slow: 40 * time.Millisecond}
}

func (l *link) set(change func(*link)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l)
}

// verdict is what becomes of one call.
type verdict struct {
	dead, cut, lost bool
	frozen          chan struct{}
	before, after   time.Duration
}

func (l *link) judge() verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	return verdict{
		dead: l.dead, cut: l.cut, frozen: l.frozen, lost: l.rng.Float64() < l.lose,
		before: time.Duration(l.rng.Int64N(int64(l.slow) + 1)), after: time.Duration(l.rng.Int64N(int64(l.slow) + 1)),
	}
}

// carry carries one call through the link. The deed is done at most once, and
// may be done although carry fails.
func (l *link) carry(ctx context.Context, deed func()) error {
	v := l.judge()
	if !wait(ctx, v.before) {
		return lost(ctx, nstance.Unavailable)
	}
	if v = l.thawed(ctx, v); v.dead || v.cut {
		wait(ctx, 2*time.Second)
		return lost(ctx, nstance.Unavailable)
	}
	deed()
	if !wait(ctx, v.after) || l.judge().dead {
		return lost(ctx, nstance.Ambiguous)
	}
	if v.lost {
		wait(ctx, time.Second)
		return lost(ctx, nstance.Ambiguous)
	}
	return nil
}

// thawed waits until the process is not frozen, however long the caller would
// have waited: a frozen process cannot give up. What it meant to do before, it
// does then.
func (l *link) thawed(ctx context.Context, v verdict) verdict {
	for v.frozen != nil {
		<-v.frozen
		v = l.judge()
	}
	return v
}

func lost(ctx context.Context, code nstance.Code) error {
	if ctx.Err() != nil {
		return nstance.Errorf(code, "no answer: %w", ctx.Err())
	}
	return nstance.Errorf(code, "no answer")
}

// wait returns false when ctx ends first.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// linkedStore is a store behind a link.
type linkedStore struct {
	storage.Store
	l *link
}

func (s linkedStore) Get(ctx context.Context, key string) (obj storage.Object, err error) {
	if lerr := s.l.carry(ctx, func() { obj, err = s.Store.Get(ctx, key) }); lerr != nil {
		return storage.Object{}, readLost(lerr)
	}
	return obj, err
}

func (s linkedStore) PutIfAbsent(ctx context.Context, key string, data []byte) (v storage.Version, err error) {
	if lerr := s.l.carry(ctx, func() { v, err = s.Store.PutIfAbsent(context.WithoutCancel(ctx), key, data) }); lerr != nil {
		return "", lerr
	}
	return v, err
}

func (s linkedStore) PutIfMatch(ctx context.Context, key string, data []byte, old storage.Version) (v storage.Version, err error) {
	if lerr := s.l.carry(ctx, func() { v, err = s.Store.PutIfMatch(context.WithoutCancel(ctx), key, data, old) }); lerr != nil {
		return "", lerr
	}
	return v, err
}

func (s linkedStore) DeleteIfMatch(ctx context.Context, key string, v storage.Version) (err error) {
	if lerr := s.l.carry(ctx, func() { err = s.Store.DeleteIfMatch(context.WithoutCancel(ctx), key, v) }); lerr != nil {
		return lerr
	}
	return err
}

func (s linkedStore) List(ctx context.Context, prefix, after string) iter.Seq2[storage.Entry, error] {
	return func(yield func(storage.Entry, error) bool) {
		var entries []storage.Entry
		var failed error
		err := s.l.carry(ctx, func() {
			for e, err := range s.Store.List(ctx, prefix, after) {
				if err != nil {
					failed = err
					return
				}
				entries = append(entries, e)
			}
		})
		if err == nil {
			err = failed
		}
		for _, e := range entries {
			if err == nil && !yield(e, nil) {
				return
			}
		}
		if err != nil {
			yield(storage.Entry{}, readLost(err))
		}
	}
}

// readLost is an error of a call that changes nothing: it is never ambiguous.
func readLost(err error) error {
	return &nstance.Error{Code: nstance.Unavailable, Msg: err.Error(), Err: err}
}

// linkedProvider is a provider behind a link, watched by the checker.
type linkedProvider struct {
	nstance.Provider
	l *link
	c *checker
}

func (p linkedProvider) Create(ctx context.Context, spec nstance.MachineSpec) (m nstance.Machine, err error) {
	lerr := p.l.carry(ctx, func() {
		p.c.creating(spec)
		m, err = p.Provider.Create(context.WithoutCancel(ctx), spec)
	})
	if lerr != nil {
		return nstance.Machine{}, lerr
	}
	return m, err
}

func (p linkedProvider) Get(ctx context.Context, id nstance.InstanceID) (m nstance.Machine, err error) {
	if lerr := p.l.carry(ctx, func() { m, err = p.Provider.Get(ctx, id) }); lerr != nil {
		return nstance.Machine{}, readLost(lerr)
	}
	return m, err
}

func (p linkedProvider) Delete(ctx context.Context, m nstance.Machine) (err error) {
	lerr := p.l.carry(ctx, func() {
		p.c.deleting(m)
		err = p.Provider.Delete(context.WithoutCancel(ctx), m)
	})
	if lerr != nil {
		return lerr
	}
	return err
}

func (p linkedProvider) List(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return func(yield func(nstance.Machine, error) bool) {
		if err := p.l.carry(ctx, func() {}); err != nil {
			yield(nstance.Machine{}, readLost(err))
			return
		}
		for m, err := range p.Provider.List(ctx, owner) {
			if !yield(m, err) {
				return
			}
		}
	}
}
