package nodedrain

import (
	"context"
	"sync"
	"time"
)

// A cordonGate holds evictions while a doomed node is not cordoned yet: evicted pods
// would be scheduled onto it, and move twice.
type cordonGate struct {
	mu      sync.Mutex
	pending int           // nodes to be cordoned
	opened  chan struct{} // closed when pending falls to zero
}

func newCordonGate() *cordonGate {
	opened := make(chan struct{})
	close(opened)
	return &cordonGate{opened: opened}
}

// hold closes the gate until release is called, which may be called more than once.
func (g *cordonGate) hold() (release func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pending == 0 {
		g.opened = make(chan struct{})
	}
	g.pending++
	return sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.pending--; g.pending == 0 {
			close(g.opened)
		}
	})
}

// open reports whether no cordon is pending.
func (g *cordonGate) open() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.pending == 0
}

// wait returns when the gate is open, ctx has ended, or after a limit: a node that
// cannot be cordoned must not keep others from draining.
func (g *cordonGate) wait(ctx context.Context, limit <-chan time.Time) (expired bool) {
	g.mu.Lock()
	opened := g.opened
	g.mu.Unlock()
	select {
	case <-opened:
	case <-ctx.Done():
	case <-limit:
		return true
	}
	return false
}

// await returns when the gate is open or has been closed for cordonHold.
func (g *cordonGate) await(ctx context.Context) {
	limit := time.NewTimer(cordonHold)
	defer limit.Stop()
	g.wait(ctx, limit.C)
}

// pass sends one request in a slot, which bounds its own time, while the gate is open, or
// has been closed for cordonHold.
func (g *cordonGate) pass(ctx context.Context, s *slots, deadline time.Time, send func(context.Context) error) error {
	limit := time.NewTimer(cordonHold)
	defer limit.Stop()
	for expired, sent := false, false; ; {
		expired = expired || g.wait(ctx, limit.C)
		err := s.hold(ctx, deadline, func(ctx context.Context) error {
			if sent = expired || g.open(); !sent {
				return context.Cause(ctx) // closed while it waited for the slot
			}
			return send(ctx)
		})
		if sent || err != nil {
			return err
		}
	}
}
