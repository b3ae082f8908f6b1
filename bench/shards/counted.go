package main

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/storage"
)

// A countingStore counts the calls that reach a store, by kind and by the folder of the key.
type countingStore struct {
	storage.Store
	mu    sync.Mutex
	calls map[string]int
}

func newCountingStore(s storage.Store) *countingStore {
	return &countingStore{Store: s, calls: map[string]int{}}
}

func (c *countingStore) count(call, key string) {
	folder, _, _ := strings.Cut(key, "/")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[call+" "+folder]++
}

func (c *countingStore) counts() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.calls)
}

// awaitIntents waits until so many instances have a record.
func (c *countingStore) awaitIntents(ctx context.Context, n int) error {
	for c.counts()["put instance"] < n {
		if !sleep.For(ctx, 100*time.Millisecond) {
			return fmt.Errorf("not all machines are on record: %v: %w", c.counts(), ctx.Err())
		}
	}
	return nil
}

// Get implements storage.Store.
func (c *countingStore) Get(ctx context.Context, key string) (storage.Object, error) {
	c.count("get", key)
	return c.Store.Get(ctx, key)
}

// PutIfAbsent implements storage.Store.
func (c *countingStore) PutIfAbsent(ctx context.Context, key string, data []byte) (storage.Version, error) {
	c.count("put", key)
	return c.Store.PutIfAbsent(ctx, key, data)
}

// PutIfMatch implements storage.Store.
func (c *countingStore) PutIfMatch(ctx context.Context, key string, data []byte, v storage.Version) (storage.Version, error) {
	c.count("put", key)
	return c.Store.PutIfMatch(ctx, key, data, v)
}

// DeleteIfMatch implements storage.Store.
func (c *countingStore) DeleteIfMatch(ctx context.Context, key string, v storage.Version) error {
	c.count("delete", key)
	return c.Store.DeleteIfMatch(ctx, key, v)
}

// List implements storage.Store. A page has 1,000 entries on every cloud.
func (c *countingStore) List(ctx context.Context, prefix, after string) iter.Seq2[storage.Entry, error] {
	return func(yield func(storage.Entry, error) bool) {
		c.count("list", prefix)
		n := 0
		for e, err := range c.Store.List(ctx, prefix, after) {
			if n++; n%1000 == 0 {
				c.count("list", prefix)
			}
			if !yield(e, err) {
				return
			}
		}
	}
}
