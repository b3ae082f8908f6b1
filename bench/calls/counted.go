package main

import (
	"context"
	"strings"
	"sync"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/bench/internal/rig"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage"
)

// calls are the storage calls for one instance's record.
type calls struct {
	Puts    int `json:"puts"`
	Deletes int `json:"deletes"`
	Gets    int `json:"gets"`
}

func (c calls) max(o calls) calls {
	return calls{max(c.Puts, o.Puts), max(c.Deletes, o.Deletes), max(c.Gets, o.Gets)}
}

// countingStore counts the calls that reach a store, for each instance's record.
type countingStore struct {
	storage.Store
	mu     sync.Mutex
	of     map[nstance.InstanceID]*calls
	ledger int // puts of batches of the ledger, which instances share
}

func (c *countingStore) ledgerPuts() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ledger
}

func (c *countingStore) calls(id nstance.InstanceID) calls {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.of[id]; n != nil {
		return *n
	}
	return calls{}
}

func (c *countingStore) count(key string, add func(*calls)) {
	ref, err := records.ParseInstanceKey(key)
	if err != nil {
		return // an object of the shard
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of[ref.ID] == nil {
		c.of[ref.ID] = &calls{}
	}
	add(c.of[ref.ID])
}

// Get implements storage.Store.
func (c *countingStore) Get(ctx context.Context, key string) (storage.Object, error) {
	c.count(key, func(n *calls) { n.Gets++ })
	return c.Store.Get(ctx, key)
}

// PutIfAbsent implements storage.Store.
func (c *countingStore) PutIfAbsent(ctx context.Context, key string, data []byte) (storage.Version, error) {
	if strings.HasPrefix(key, layout.LedgerPrefix(rig.Zone)) {
		c.mu.Lock()
		c.ledger++
		c.mu.Unlock()
	}
	c.count(key, func(n *calls) { n.Puts++ })
	return c.Store.PutIfAbsent(ctx, key, data)
}

// PutIfMatch implements storage.Store.
func (c *countingStore) PutIfMatch(ctx context.Context, key string, data []byte, v storage.Version) (storage.Version, error) {
	c.count(key, func(n *calls) { n.Puts++ })
	return c.Store.PutIfMatch(ctx, key, data, v)
}

// DeleteIfMatch implements storage.Store.
func (c *countingStore) DeleteIfMatch(ctx context.Context, key string, v storage.Version) error {
	c.count(key, func(n *calls) { n.Deletes++ })
	return c.Store.DeleteIfMatch(ctx, key, v)
}
