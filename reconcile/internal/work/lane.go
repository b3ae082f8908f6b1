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
	mu      sync.Mutex
	members []T
	wake    chan struct{}
	width   int
}

// NewLane returns a lane that runs up to width steps at a time.
func NewLane[T any](width int) *Lane[T] {
	return &Lane[T]{wake: make(chan struct{}, 1), width: width}
}

// Submit has the next step of a member run.
func (l *Lane[T]) Submit(m T) {
	l.mu.Lock()
	l.members = append(l.members, m)
	l.mu.Unlock()
	l.signal()
}

// Run performs steps until ctx ends, then drops what has not begun and waits for the
// rest.
func (l *Lane[T]) Run(ctx context.Context, perform func(context.Context, T)) {
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
	for ctx.Err() == nil {
		l.mu.Lock()
		if len(l.members) > 0 {
			m := l.members[0]
			l.members = l.members[1:]
			l.mu.Unlock()
			l.signal()
			return m, true
		}
		l.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-l.wake:
		}
	}
	return member, false
}

func (l *Lane[T]) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}
