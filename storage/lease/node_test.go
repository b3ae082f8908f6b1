package lease_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
)

// node is one candidate: a machine and its process.
type node struct {
	*machine
	w       *history
	name    string
	ttl     time.Duration
	poll    time.Duration
	watches bool
	resign  chan struct{}
	crash   atomic.Pointer[context.CancelFunc]
	lease   atomic.Pointer[lease.Lease] // of the running process
}

// live runs one process after another.
func (n *node) live(ctx context.Context, first bool) {
	for ctx.Err() == nil {
		life, stop := context.WithCancel(ctx)
		link := &link{machine: n.machine}
		crash := context.CancelFunc(func() { link.dead.Store(true); stop() })
		n.crash.Store(&crash)
		n.process(life, link, first)
		link.dead.Store(true)
		stop()
		after(ctx, time.Second)
		first = false
	}
}

// process is the loop of a server with its elector.
func (n *node) process(ctx context.Context, store storage.Store, first bool) {
	o := &lease.Options{
		Address: n.name, Peer: n.name, TTL: n.ttl, Poll: n.poll, Clock: n,
		Standby: func() bool { return len(n.w.nodes) > 1 },
	}
	if n.watches {
		o.Watch = n.listen
	}
	l, err := lease.New(store, "z1", o)
	if err != nil {
		n.w.fail("new: %v", err)
		return
	}
	n.lease.Store(l)
	for ctx.Err() == nil {
		term, err := l.Campaign(ctx)
		n.gate()
		if err != nil {
			after(ctx, time.Second)
			continue
		}
		n.w.grant(n, term)
		select {
		case <-n.resign: // for an earlier term
		default:
		}
		select {
		case <-term.Context().Done():
		case <-n.resign:
		case <-ctx.Done():
			return // a crash: no release
		}
		release, cancel := context.WithTimeout(ctx, 5*time.Second)
		_ = l.Resign(release)
		cancel()
		n.gate()
	}
}

// listen is the watch, over a network that breaks and hangs.
func (n *node) listen(ctx context.Context, h lease.Holder) iter.Seq2[lease.Announcement, error] {
	return func(yield func(lease.Announcement, error) bool) {
		for _, o := range n.w.nodes {
			if l := o.lease.Load(); o.name == h.Peer && l != nil {
				for a := range l.Announcements(ctx) {
					f := n.nextOutcome(false)
					o.gate()
					after(ctx, f.there+f.back)
					n.gate()
					switch {
					case f.refused:
						yield(a, nstance.Unavailable)
						return
					case f.dropped:
						<-ctx.Done() // half open: silent for ever
						return
					}
					if !yield(a, nil) {
						return
					}
				}
			}
		}
	}
}

// link is one process's connection to storage. It ends with its process.
type link struct {
	*machine
	dead atomic.Bool
}

func (l *link) PutIfAbsent(ctx context.Context, key string, data []byte) (storage.Version, error) {
	if l.dead.Load() {
		return "", nstance.Unavailable
	}
	return l.machine.PutIfAbsent(ctx, key, data)
}

func (l *link) PutIfMatch(ctx context.Context, key string, data []byte, v storage.Version) (storage.Version, error) {
	if l.dead.Load() {
		return "", nstance.Unavailable
	}
	return l.machine.PutIfMatch(ctx, key, data, v)
}

func (l *link) Get(ctx context.Context, key string) (storage.Object, error) {
	if l.dead.Load() {
		return storage.Object{}, nstance.Unavailable
	}
	return l.machine.Get(ctx, key)
}

// observedStore is the storage itself. It checks every write of the lease, and keeps the
// shard's state at its epoch, as leaders do.
type observedStore struct {
	*storage.Memory
	w *history

	mu       sync.Mutex
	now      written
	top      written
	released map[uint64]bool // epochs that followed a release
}

type written struct {
	Epoch    uint64 `json:"epoch"`
	Holder   string `json:"holder"`
	WriteID  string `json:"write_id"`
	Released bool   `json:"released"`
}

func (o *observedStore) PutIfAbsent(ctx context.Context, key string, data []byte) (storage.Version, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	v, err := o.Memory.PutIfAbsent(ctx, key, data)
	if err == nil && key == leaseKey {
		o.now = written{}
		o.landed(data)
	}
	return v, err
}

func (o *observedStore) PutIfMatch(ctx context.Context, key string, data []byte, v storage.Version) (storage.Version, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	v, err := o.Memory.PutIfMatch(ctx, key, data, v)
	if err == nil {
		o.landed(data)
	}
	return v, err
}

func (o *observedStore) DeleteIfMatch(ctx context.Context, key string, v storage.Version) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	err := o.Memory.DeleteIfMatch(ctx, key, v)
	if err == nil {
		o.now = written{}
	}
	return err
}

func (o *observedStore) landed(data []byte) {
	var c written
	_ = json.Unmarshal(data, &c)
	if c.Epoch < o.top.Epoch || c.Epoch == o.top.Epoch && c.Holder != o.top.Holder {
		o.w.fail("epoch %d of %s is written after epoch %d of %s", c.Epoch, c.Holder, o.top.Epoch, o.top.Holder)
	}
	if c.Epoch > o.top.Epoch {
		if o.released == nil {
			o.released = map[uint64]bool{}
		}
		o.released[c.Epoch] = o.now.Released
		state, _ := o.Get(context.Background(), "state/z1.json")
		body := fmt.Appendf(nil, `{"format":"1.0","epoch":%d}`, c.Epoch)
		if _, err := o.Memory.PutIfMatch(context.Background(), "state/z1.json", body, state.Version); err != nil {
			_, _ = o.Memory.PutIfAbsent(context.Background(), "state/z1.json", body)
		}
	}
	o.now, o.top = c, c
}

func (o *observedStore) wasReleased(epoch uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.released[epoch]
}

// holds reports whether the stored lease has that epoch.
func (o *observedStore) holds(epoch uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.now.Epoch == epoch
}
