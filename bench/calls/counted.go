package main

import (
	"context"
	"sync"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// calls are calls about one instance's record.
type calls struct {
	Puts    int `json:"puts"`
	Deletes int `json:"deletes"`
	Gets    int `json:"gets"`
}

func (c calls) most(o calls) calls {
	return calls{max(c.Puts, o.Puts), max(c.Deletes, o.Deletes), max(c.Gets, o.Gets)}
}

// counted counts the calls that reach a store, for each instance's record.
type counted struct {
	storage.Store
	mu sync.Mutex
	of map[nstance.InstanceID]*calls
}

func (c *counted) calls(id nstance.InstanceID) calls {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.of[id]; n != nil {
		return *n
	}
	return calls{}
}

func (c *counted) note(key string, add func(*calls)) {
	ref, err := storage.ParseInstanceKey(key)
	if err != nil {
		return // of the shard
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of[ref.ID] == nil {
		c.of[ref.ID] = &calls{}
	}
	add(c.of[ref.ID])
}

// Get implements storage.Store.
func (c *counted) Get(ctx context.Context, key string) (storage.Object, error) {
	c.note(key, func(n *calls) { n.Gets++ })
	return c.Store.Get(ctx, key)
}

// PutIfAbsent implements storage.Store.
func (c *counted) PutIfAbsent(ctx context.Context, key string, data []byte) (storage.Version, error) {
	c.note(key, func(n *calls) { n.Puts++ })
	return c.Store.PutIfAbsent(ctx, key, data)
}

// PutIfMatch implements storage.Store.
func (c *counted) PutIfMatch(ctx context.Context, key string, data []byte, v storage.Version) (storage.Version, error) {
	c.note(key, func(n *calls) { n.Puts++ })
	return c.Store.PutIfMatch(ctx, key, data, v)
}

// DeleteIfMatch implements storage.Store.
func (c *counted) DeleteIfMatch(ctx context.Context, key string, v storage.Version) error {
	c.note(key, func(n *calls) { n.Deletes++ })
	return c.Store.DeleteIfMatch(ctx, key, v)
}
