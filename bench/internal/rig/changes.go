package rig

import (
	"context"
	"sync"
)

// Changes guards what a program measures, and wakes those that wait for it. The zero
// value is ready.
type Changes struct {
	mu      sync.Mutex
	changed chan struct{} // closed by the next change; nil: no caller waits
}

// Do calls do under the lock, and wakes waiters.
func (c *Changes) Do(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do()
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

// Wait returns when done, which is called under the lock, returns true, or ctx ends.
func (c *Changes) Wait(ctx context.Context, done func() bool) error {
	for {
		c.mu.Lock()
		ok := done()
		if c.changed == nil {
			c.changed = make(chan struct{})
		}
		changed := c.changed
		c.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
