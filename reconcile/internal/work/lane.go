package work

import (
	"context"
	"sync"
)

// A Lane runs the steps of members in order of arrival, a fixed number at a time.
// Involuntary and voluntary steps have a lane each, so that a scale-up of thousands
// never stands before one replacement. Each member has at most one step in a lane,
// which bounds it.
type Lane[T any] struct {
	mu        sync.Mutex
	members   []T
	submitted *sync.Cond // also when Run ends
	width     int
}

// NewLane returns a lane that runs up to width steps at a time.
func NewLane[T any](width int) *Lane[T] {
	l := &Lane[T]{width: width}
	l.submitted = sync.NewCond(&l.mu)
	return l
}

// Submit has the next step of a member run.
func (l *Lane[T]) Submit(m T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.members = append(l.members, m)
	l.submitted.Signal()
}

// Run performs steps until ctx ends, then drops what has not begun and waits for the
// rest.
func (l *Lane[T]) Run(ctx context.Context, perform func(context.Context, T)) {
	stop := context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.submitted.Broadcast()
	})
	defer stop()
	var wg sync.WaitGroup
	for range l.width {
		wg.Go(func() {
			for {
				m, ok := l.take(ctx)
				if !ok {
					return
				}
				perform(ctx, m)
			}
		})
	}
	wg.Wait()
}

func (l *Lane[T]) take(ctx context.Context) (member T, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for ctx.Err() == nil {
		if len(l.members) > 0 {
			m := l.members[0]
			l.members = l.members[1:]
			return m, true
		}
		l.submitted.Wait()
	}
	return member, false
}
