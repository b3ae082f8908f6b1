package reconcile_test

import (
	"context"
	"strings"
	"sync"

	"github.com/nstance-go/nstance/storage"
)

// calls are the calls about instance records.
type calls struct{ gets, puts, deletes int }

// counting counts the calls about instance records that reach a store.
type counting struct {
	storage.Store
	mu sync.Mutex
	n  calls
}

func (c *counting) reset() { c.take() }

func (c *counting) take() calls {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.n
	c.n = calls{}
	return n
}

func (c *counting) count(key string, change func(*calls)) {
	if strings.HasPrefix(key, "instance/") {
		c.mu.Lock()
		change(&c.n)
		c.mu.Unlock()
	}
}

func (c *counting) Get(ctx context.Context, key string) (storage.Object, error) {
	c.count(key, func(n *calls) { n.gets++ })
	return c.Store.Get(ctx, key)
}

func (c *counting) PutIfAbsent(ctx context.Context, key string, data []byte) (storage.Version, error) {
	c.count(key, func(n *calls) { n.puts++ })
	return c.Store.PutIfAbsent(ctx, key, data)
}

func (c *counting) PutIfMatch(ctx context.Context, key string, data []byte, v storage.Version) (storage.Version, error) {
	c.count(key, func(n *calls) { n.puts++ })
	return c.Store.PutIfMatch(ctx, key, data, v)
}

func (c *counting) DeleteIfMatch(ctx context.Context, key string, v storage.Version) error {
	c.count(key, func(n *calls) { n.deletes++ })
	return c.Store.DeleteIfMatch(ctx, key, v)
}
