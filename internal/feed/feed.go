// Package feed is a numbered broadcast: one publisher's events for any number
// of subscribers, none of whom can hold it up.
//
// Events live once, in a ring of bounded length, and a subscriber is no more
// than a position in it. So a slow subscriber costs nothing until the ring has
// overtaken it; then it ends with nstance.Unavailable and may come back with
// the last number it saw. If the events after that number are still in the ring
// it goes on where it stopped, else it begins again with a snapshot.
package feed

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
)

// DefaultBacklog is how many events a Feed keeps when told nothing else.
const DefaultBacklog = 4096

// A Feed numbers events of type T and keeps the latest of them. It is safe for
// concurrent use. Create it with New.
type Feed[T any] struct {
	backlog int
	base    nstance.Seq // the number before the first event

	mu   sync.Mutex
	last nstance.Seq
	ring []T           // the event numbered n is at (n-base-1) % backlog
	wake chan struct{} // closed by the next Publish; nil while no watcher waits
}

// New returns an empty feed that keeps the given number of events; zero or less
// means DefaultBacklog.
//
// Numbers start at the wall clock in microseconds, not at one: a subscriber may
// come with a number that another process gave out, a former leader say, and
// must then get a snapshot. Numbers of different feeds do not meet unless one
// publishes more than a million events a second from its start.
func New[T any](backlog int) *Feed[T] {
	if backlog <= 0 {
		backlog = DefaultBacklog
	}
	base := nstance.Seq(max(1, time.Now().UnixMicro()))
	return &Feed[T]{backlog: backlog, base: base, last: base}
}

// Publish appends v and returns its number. It never waits for a subscriber.
// The owner calls it under the same lock under which it changes the state that
// snapshots show; otherwise a snapshot and the events after it can disagree.
func (f *Feed[T]) Publish(v T) nstance.Seq {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.ring) < f.backlog {
		f.ring = append(f.ring, v)
	} else {
		f.ring[f.slot(f.last+1)] = v
	}
	f.last++
	if f.wake != nil {
		close(f.wake)
		f.wake = nil
	}
	return f.last
}

// Last returns the number of the latest event. Before the first one it is the
// number from which a resuming subscriber misses nothing.
func (f *Feed[T]) Last() nstance.Seq {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

// First returns the number after which every event is still kept.
func (f *Feed[T]) First() nstance.Seq {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.before()
}

// knows reports whether every event after the given number is in the ring.
func (f *Feed[T]) knows(after nstance.Seq) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return after != 0 && after <= f.last && after >= f.before()
}

// next returns the event that follows after, or a channel that is closed once
// there is one. It fails with Unavailable when the ring has moved past it.
func (f *Feed[T]) next(after nstance.Seq) (item Item[T], wait <-chan struct{}, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case after < f.before():
		return item, nil, nstance.Errorf(nstance.Unavailable,
			"subscriber fell more than %d events behind: resume after the last number seen", f.backlog)
	case after < f.last:
		return Item[T]{Kind: Event, Seq: after + 1, Value: f.ring[f.slot(after+1)]}, nil, nil
	}
	if f.wake == nil {
		f.wake = make(chan struct{})
	}
	return item, f.wake, nil
}

// before returns the number just before the oldest event still kept.
func (f *Feed[T]) before() nstance.Seq { return f.last - nstance.Seq(len(f.ring)) }

func (f *Feed[T]) slot(n nstance.Seq) int { return int((n - f.base - 1) % nstance.Seq(f.backlog)) }

// An Item is one thing that a subscriber is told.
type Item[T any] struct {
	Kind  Kind
	Seq   nstance.Seq // what to resume after; zero within a snapshot, which cannot be resumed
	Value T           // zero for Synced
}

// A Kind says what an Item is.
type Kind uint8

// The kinds.
const (
	Event    Kind = iota // something that happened
	Snapshot             // a part of the state at the beginning
	Synced               // the snapshot is complete; events follow
)

// A View is what one subscriber wants to see.
type View[T any] struct {
	// Snapshot returns the present state and the number of the last event that
	// is surely part of it: Feed.Last, taken before the state is looked at. The
	// state may be looked at while it is ranged over, so that a subscriber that
	// is slow holds no copy of it; what happens meanwhile may then be both in
	// the snapshot and among the events. Nil means that there is no state.
	Snapshot func() (iter.Seq[T], nstance.Seq)

	// Turn, if it is not nil, is held while there is something to yield, and
	// given back while the subscription waits for events.
	Turn Turn

	// Keep selects from snapshot and events; nil keeps everything. It is
	// called without a lock.
	Keep func(T) bool
}

// A Turn bounds how many subscriptions work at the same time.
type Turn interface {
	Take(ctx context.Context) error // fails only when ctx has ended
	Give()
}

// Subscribe yields the events after the given number or, if they are no longer
// all known or the number is zero, a snapshot, Synced, and the events since:
// no gap, nothing twice. It ends without an error when ctx does, and with
// Unavailable when the subscriber was too slow. Nothing is held for a
// subscription that is not being ranged over.
func (f *Feed[T]) Subscribe(ctx context.Context, after nstance.Seq, v View[T]) iter.Seq2[Item[T], error] {
	return func(yield func(Item[T], error) bool) {
		if v.Turn == nil {
			v.Turn = always{}
		}
		if v.Turn.Take(ctx) != nil {
			return
		}
		at, ok := after, true
		if !f.knows(after) {
			at, ok = f.replay(ctx, v, yield)
		}
		if !ok {
			v.Turn.Give()
			return
		}
		f.follow(ctx, at, v, yield)
	}
}

// replay yields the snapshot and returns the number it stands for.
func (f *Feed[T]) replay(ctx context.Context, v View[T], yield func(Item[T], error) bool) (nstance.Seq, bool) {
	var state iter.Seq[T] = func(func(T) bool) {}
	at := f.Last()
	if v.Snapshot != nil {
		var seq iter.Seq[T]
		if seq, at = v.Snapshot(); seq != nil {
			state = seq
		}
	}
	for value := range state {
		if ctx.Err() != nil {
			return 0, false
		}
		if v.keeps(value) && !yield(Item[T]{Kind: Snapshot, Value: value}, nil) {
			return 0, false
		}
	}
	return at, ctx.Err() == nil && yield(Item[T]{Kind: Synced, Seq: at}, nil)
}

// follow yields events. It begins with the turn and gives it back.
func (f *Feed[T]) follow(ctx context.Context, at nstance.Seq, v View[T], yield func(Item[T], error) bool) {
	taken := true
	defer func() {
		if taken {
			v.Turn.Give()
		}
	}()
	for ctx.Err() == nil {
		item, wait, err := f.next(at)
		if err != nil {
			yield(Item[T]{}, err)
			return
		}
		if wait != nil {
			if taken {
				v.Turn.Give()
				taken = false
			}
			select {
			case <-wait:
			case <-ctx.Done():
			}
			continue
		}
		if !taken {
			if v.Turn.Take(ctx) != nil {
				return
			}
			taken = true
		}
		at = item.Seq
		if v.keeps(item.Value) && !yield(item, nil) {
			return
		}
	}
}

// always is the Turn of subscriptions that nothing bounds.
type always struct{}

func (always) Take(context.Context) error { return nil }
func (always) Give()                      {}

func (v View[T]) keeps(value T) bool { return v.Keep == nil || v.Keep(value) }
