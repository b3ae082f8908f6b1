// Package fair shares what only few calls can have at a time among those that wait for
// it: callers, such as tenants, take turns, whatever the number of their calls.
package fair

import (
	"context"
	"slices"
	"sync"

	"github.com/nstance-go/nstance"
)

// A Queue has slots that calls hold. Where none is free, the callers with waiting calls
// take turns, and the calls of one caller go in order. The methods may be called
// concurrently.
type Queue[C comparable] struct {
	slots, each, waiters int

	mu    sync.Mutex
	taken int
	of    map[C]*line // of callers that hold or wait for slots
	turns []C         // with waiting calls, the next first
}

// A line is one caller's calls.
type line struct {
	taken   int
	waiting []chan struct{} // closed when it has a slot
}

// NewQueue returns a queue of so many slots, of which one caller holds each at most, and
// has so many calls waiting at most.
func NewQueue[C comparable](slots, each, waiters int) *Queue[C] {
	return &Queue[C]{slots: slots, each: each, waiters: waiters, of: map[C]*line{}}
}

// Acquire waits for a slot, which release gives back. Fails with Throttled where too many
// calls of the caller wait already, and with Unavailable when ctx ends.
func (q *Queue[C]) Acquire(ctx context.Context, caller C) (release func(), err error) {
	q.mu.Lock()
	l := q.of[caller]
	if l == nil {
		l = &line{}
		q.of[caller] = l
	}
	if len(l.waiting) >= q.waiters {
		q.mu.Unlock()
		return nil, &nstance.Error{Code: nstance.Throttled, Msg: "too many calls of this caller are waiting", Remedy: "make fewer at once"}
	}
	turn := make(chan struct{})
	if l.waiting = append(l.waiting, turn); len(l.waiting) == 1 {
		q.turns = append(q.turns, caller)
	}
	q.grant()
	q.mu.Unlock()
	release = sync.OnceFunc(func() { q.release(caller) })
	select {
	case <-turn:
		return release, nil
	default:
	}
	select {
	case <-turn:
		return release, nil
	case <-ctx.Done():
		q.leave(caller, turn)
		return nil, nstance.Errorf(nstance.Unavailable, "other calls were being served: %w", ctx.Err())
	}
}

// grant gives free slots to waiting calls. It needs the lock.
func (q *Queue[C]) grant() {
	for i := 0; q.taken < q.slots && i < len(q.turns); {
		caller := q.turns[i]
		l := q.of[caller]
		if l.taken >= q.each {
			i++ // until it gives one back
			continue
		}
		close(l.waiting[0])
		l.waiting = l.waiting[1:]
		l.taken++
		q.taken++
		q.turns = slices.Delete(q.turns, i, i+1)
		if len(l.waiting) > 0 {
			q.turns = append(q.turns, caller)
		}
	}
}

func (q *Queue[C]) release(caller C) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.of[caller].taken--
	q.taken--
	q.forget(caller)
	q.grant()
}

// leave takes a call out of the queue, or gives its slot back.
func (q *Queue[C]) leave(caller C, turn chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.of[caller]
	i := slices.Index(l.waiting, turn)
	if i < 0 { // it was granted in the meantime
		l.taken--
		q.taken--
		q.forget(caller)
		q.grant()
		return
	}
	if l.waiting = slices.Delete(l.waiting, i, i+1); len(l.waiting) == 0 {
		q.turns = slices.DeleteFunc(q.turns, func(c C) bool { return c == caller })
	}
	q.forget(caller)
}

// forget drops a caller without calls. It needs the lock.
func (q *Queue[C]) forget(caller C) {
	if l := q.of[caller]; l.taken == 0 && len(l.waiting) == 0 {
		delete(q.of, caller)
	}
}

// Waiting returns how many calls of a caller wait.
func (q *Queue[C]) Waiting(caller C) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.of[caller]; l != nil {
		return len(l.waiting)
	}
	return 0
}
