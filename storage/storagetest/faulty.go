package storagetest

import (
	"context"
	"iter"
	"strings"
	"sync"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// An Op names a call of a store. The empty Op matches any.
type Op string

// The calls.
const (
	Get         Op = "get"
	PutIfAbsent Op = "put_if_absent"
	PutIfMatch  Op = "put_if_match"
	Delete      Op = "delete_if_match"
	List        Op = "list"
)

// A Mode is how a call fails.
type Mode int

// The modes.
const (
	Refuse     Mode = iota // the call never reaches the store
	LoseAnswer             // it takes effect, its answer is lost; a list breaks at its end
	Late                   // it fails now, and takes effect when ApplyLate is called; for writes
	Hang                   // it has no answer before its context ends, and no effect
)

// A Fault makes calls fail, or runs a function just before them.
type Fault struct {
	Op     Op     // which call; empty: any
	Prefix string // of the key; empty: any
	Skip   int    // let that many matching calls pass first
	Times  int    // then hit that many; 0 means one, negative means all
	Mode   Mode
	Err    error  // the caller's error; nil: Unavailable
	Do     func() // runs before each call that is hit; may use the store beneath
	Pass   bool   // only call Do: the call itself succeeds
}

// Faulty is a Store that counts calls and fails on demand. It is safe for
// concurrent use.
type Faulty struct {
	next storage.Store

	mu     sync.Mutex
	faults []*Fault
	counts map[Op]int
	late   []func()
}

var _ storage.Store = (*Faulty)(nil)

// NewFaulty wraps a store, without faults at first.
func NewFaulty(next storage.Store) *Faulty {
	return &Faulty{next: next, counts: map[Op]int{}}
}

// Inject adds faults. Of several that match a call, the oldest hits.
func (f *Faulty) Inject(faults ...Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fault := range faults {
		if fault.Times == 0 {
			fault.Times = 1
		}
		if fault.Err == nil {
			fault.Err = nstance.Errorf(nstance.Unavailable, "injected fault")
		}
		f.faults = append(f.faults, &fault)
	}
}

// ClearFaults removes all faults. Writes that are late stay so.
func (f *Faulty) ClearFaults() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = nil
}

// ApplyLate carries out the late writes, in order, and ignores their errors.
func (f *Faulty) ApplyLate() {
	f.mu.Lock()
	late := f.late
	f.late = nil
	f.mu.Unlock()
	for _, write := range late {
		write()
	}
}

// Count returns how many calls of this kind were made, failed ones included.
// An empty Op counts them all.
func (f *Faulty) Count(op Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if op != "" {
		return f.counts[op]
	}
	sum := 0
	for _, n := range f.counts {
		sum += n
	}
	return sum
}

// Reset sets the counts to zero.
func (f *Faulty) Reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.counts)
}

// hit returns the fault for this call, or nil.
func (f *Faulty) hit(op Op, key string) *Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts[op]++
	for _, fault := range f.faults {
		switch {
		case fault.Op != "" && fault.Op != op, !strings.HasPrefix(key, fault.Prefix), fault.Times == 0:
		case fault.Skip > 0:
			fault.Skip--
		default:
			fault.Times--
			return fault
		}
	}
	return nil
}

// do makes one call, unless a fault applies.
func (f *Faulty) do(ctx context.Context, op Op, key string, call func(context.Context) error) error {
	fault := f.hit(op, key)
	if fault == nil {
		return call(ctx)
	}
	if fault.Do != nil {
		fault.Do()
	}
	switch {
	case fault.Pass:
		return call(ctx)
	case fault.Mode == LoseAnswer:
		_ = call(ctx) // the answer is lost
	case fault.Mode == Hang:
		<-ctx.Done()
	case fault.Mode == Late:
		f.mu.Lock()
		f.late = append(f.late, func() { _ = call(context.WithoutCancel(ctx)) })
		f.mu.Unlock()
	}
	return fault.Err
}

// Get implements storage.Store.
func (f *Faulty) Get(ctx context.Context, key string) (obj storage.Object, err error) {
	err = f.do(ctx, Get, key, func(ctx context.Context) (err error) {
		obj, err = f.next.Get(ctx, key)
		return err
	})
	if err != nil {
		return storage.Object{}, err
	}
	return obj, nil
}

// PutIfAbsent implements storage.Store.
func (f *Faulty) PutIfAbsent(ctx context.Context, key string, data []byte) (storage.Version, error) {
	return f.put(ctx, PutIfAbsent, key, func(ctx context.Context) (storage.Version, error) {
		return f.next.PutIfAbsent(ctx, key, data)
	})
}

// PutIfMatch implements storage.Store.
func (f *Faulty) PutIfMatch(ctx context.Context, key string, data []byte, v storage.Version) (storage.Version, error) {
	return f.put(ctx, PutIfMatch, key, func(ctx context.Context) (storage.Version, error) {
		return f.next.PutIfMatch(ctx, key, data, v)
	})
}

type putCall func(context.Context) (storage.Version, error)

func (f *Faulty) put(ctx context.Context, op Op, key string, call putCall) (storage.Version, error) {
	done := make(chan storage.Version, 1)
	err := f.do(ctx, op, key, func(ctx context.Context) error {
		v, err := call(ctx)
		done <- v
		return err
	})
	if err != nil {
		return "", err
	}
	return <-done, nil
}

// DeleteIfMatch implements storage.Store.
func (f *Faulty) DeleteIfMatch(ctx context.Context, key string, v storage.Version) error {
	return f.do(ctx, Delete, key, func(ctx context.Context) error { return f.next.DeleteIfMatch(ctx, key, v) })
}

// List implements storage.Store. Faults match its prefix as they match keys.
func (f *Faulty) List(ctx context.Context, prefix, after string) iter.Seq2[storage.Entry, error] {
	return func(yield func(storage.Entry, error) bool) {
		left := false
		err := f.do(ctx, List, prefix, func(ctx context.Context) error {
			for e, err := range f.next.List(ctx, prefix, after) {
				if left = !yield(e, err); left || err != nil {
					left = true
					return err
				}
			}
			return nil
		})
		if err != nil && !left {
			yield(storage.Entry{}, err)
		}
	}
}
