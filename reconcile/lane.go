package reconcile

import (
	"context"
	"sync"
)

// A lane runs steps in order of arrival, a fixed number at a time. Involuntary
// and voluntary steps have a lane each, so that a scale-up of thousands never
// stands before one replacement. Each member has at most one step in a lane,
// which bounds it.
type lane struct {
	mu    sync.Mutex
	steps []func(context.Context)
	wake  chan struct{}
	width int
}

func newLane(width int) *lane { return &lane{wake: make(chan struct{}, 1), width: width} }

func (l *lane) submit(step func(context.Context)) {
	l.mu.Lock()
	l.steps = append(l.steps, step)
	l.mu.Unlock()
	l.signal()
}

// run works until ctx ends, then drops what has not begun and waits for the rest.
func (l *lane) run(ctx context.Context) {
	var wg sync.WaitGroup
	for range l.width {
		wg.Go(func() {
			for {
				step, ok := l.take(ctx)
				if !ok {
					return
				}
				step(ctx)
			}
		})
	}
	wg.Wait()
}

func (l *lane) take(ctx context.Context) (func(context.Context), bool) {
	for ctx.Err() == nil {
		l.mu.Lock()
		if len(l.steps) > 0 {
			step := l.steps[0]
			l.steps = l.steps[1:]
			l.mu.Unlock()
			l.signal()
			return step, true
		}
		l.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-l.wake:
		}
	}
	return nil, false
}

func (l *lane) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}
