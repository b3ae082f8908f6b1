package reconcile

import (
	"context"
	"sync"
)

// A lane runs the steps of members in order of arrival, a fixed number at a time.
// Involuntary and voluntary steps have a lane each, so that a scale-up of thousands
// never stands before one replacement. Each member has at most one step in a lane,
// which bounds it.
type lane struct {
	mu      sync.Mutex
	members []*member
	wake    chan struct{}
	width   int
}

func newLane(width int) *lane { return &lane{wake: make(chan struct{}, 1), width: width} }

func (l *lane) submit(m *member) {
	l.mu.Lock()
	l.members = append(l.members, m)
	l.mu.Unlock()
	l.signal()
}

// run performs steps until ctx ends, then drops what has not begun and waits for the
// rest.
func (l *lane) run(ctx context.Context, perform func(context.Context, *member)) {
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

func (l *lane) take(ctx context.Context) (*member, bool) {
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
	return nil, false
}

func (l *lane) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}
