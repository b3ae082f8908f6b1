package storage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
)

// Contents writes the objects that are named by the digest of what they hold, so
// that they never change: definitions and fetched user data. They belong to all
// shards, and a [Cleaner] removes those that nothing names. So whoever is about
// to name one asks here first, and then does so within 20 minutes: what Keep and
// Claim have answered for is not removed before that. What was answered for is
// remembered for 10 minutes; Refresh, called more often, prolongs that, and
// then neither reads anything. It is safe for concurrent use, and holds no lock
// while storage is asked.
type Contents struct {
	store   Store
	fence   fence
	elapsed func() time.Duration
	doc     *Doc[condemned]
	turn    chan struct{} // holds a token while somebody reads the list

	mu     sync.Mutex // guards what follows
	read   bool
	readAt time.Duration // from before the list was read
	list   map[string]condemnation
	seen   sightings
	kept   map[string]bool // they stand, and what is known of the list has had no gap since
	gaps   int             // in what is known of the list, so far
}

// NewContents returns the contents in a store. Check is asked before each write,
// nil never; elapsed is the time since some instant, also while the machine
// sleeps, nil the ordinary monotonic time.
func NewContents(s Store, check func() error, elapsed func() time.Duration) *Contents {
	return &Contents{
		store: s, fence: fence{check: check}, elapsed: stopwatch(elapsed), turn: make(chan struct{}, 1),
		doc: NewDoc[condemned](s, CondemnedKey, &DocOptions{Check: check}), seen: sightings{}, kept: map[string]bool{},
	}
}

// Keep makes sure that data stands under key. It may be repeated after any error.
// Fails with Unavailable while the object is being removed, which takes a
// second, or a minute where a cleaner has died at it.
func (c *Contents) Keep(ctx context.Context, key string, data []byte) error {
	if c.has(key) {
		return nil
	}
	if err := c.Claim(ctx, key); err != nil { // before the look whether it exists
		return err
	}
	saw := c.watch(key)
	err := c.put(ctx, key, data)
	saw(err)
	return err
}

// Claim makes sure that objects stay that stand already: something durable names
// them at present, or Keep has just been called. Fails like Keep.
func (c *Contents) Claim(ctx context.Context, keys ...string) error {
	if len(keys) == 0 || c.clear(keys) {
		return nil
	}
	if err := c.take(ctx); err != nil {
		return err
	}
	defer c.give()
	if c.clear(keys) { // somebody else has looked meanwhile
		return nil
	}
	return c.look(ctx, keys)
}

// Refresh looks at the list anew.
func (c *Contents) Refresh(ctx context.Context) error {
	if err := c.take(ctx); err != nil {
		return err
	}
	defer c.give()
	return c.look(ctx, nil)
}

func (c *Contents) take(ctx context.Context) error {
	select {
	case c.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return stopped(ctx, "wait for", CondemnedKey)
	}
}

func (c *Contents) give() { <-c.turn }

// look reads the list, and takes keys off it.
func (c *Contents) look(ctx context.Context, keys []string) error {
	began := c.elapsed()
	list, err := c.doc.Load(ctx)
	if errors.Is(err, nstance.Invalid) {
		list, err = condemned{}, nil // no cleaner can read it either, and each begins anew afterwards
	}
	if err == nil {
		c.learn(list, began)
	}
	if err == nil && list.any(keys) {
		if list, err = c.doc.Update(ctx, func(l *condemned) error { return c.rescue(l, keys) }); err == nil {
			c.learn(list, began)
		}
	}
	switch {
	case errors.Is(err, nstance.Conflict), errors.Is(err, nstance.Invalid): // of the list, not of what the caller writes
		return nstance.Errorf(nstance.Unavailable, "look what is to be removed: %v", err)
	case err != nil:
		return fmt.Errorf("look what is to be removed: %w", err)
	}
	return nil
}

// rescue takes keys off the list, unless one is being removed right now.
func (c *Contents) rescue(l *condemned, keys []string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range keys {
		on, ok := l.Keys[key]
		if ok && on.Deleting && c.seen.age(key, on.ID, c.elapsed()) < deleteGrace {
			return nstance.Errorf(nstance.Unavailable, "%s is being removed because nothing named it: try again soon", key)
		}
		delete(l.Keys, key)
	}
	return nil
}

// learn takes down what was read of the list.
func (c *Contents) learn(l condemned, began time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.read && began-c.readAt >= contentMemory { // what stood then may have been removed since
		clear(c.kept)
		c.gaps++
	}
	c.read, c.readAt, c.list = true, began, l.Keys
	c.seen.see(l.Keys, c.elapsed())
	for key := range l.Keys {
		delete(c.kept, key)
	}
}

// clear reports whether it is known that no key is on the list.
func (c *Contents) clear(keys []string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fresh() && !condemned{Keys: c.list}.any(keys)
}

// fresh reports whether what is known of the list may be relied on. It needs the
// lock.
func (c *Contents) fresh() bool { return c.read && c.elapsed()-c.readAt < contentMemory }

// has reports whether the object stands and may be named.
func (c *Contents) has(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fresh() && c.kept[key]
}

// watch is called before it is looked whether an object stands, and what it
// returns when it has been found (nil) or not. It is remembered then, if the
// list has been known all along, and the object was never on it.
func (c *Contents) watch(key string) (saw func(error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, listed := c.list[key]
	gaps, known := c.gaps, c.fresh() && !listed
	return func(err error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if _, on := c.list[key]; err != nil || on || !known || gaps != c.gaps {
			return
		}
		if len(c.kept) >= maxDefinitions {
			clear(c.kept)
		}
		c.kept[key] = true
	}
}

// put writes the object, unless it is there.
func (c *Contents) put(ctx context.Context, key string, data []byte) error {
	if err := c.fence.allow(key, 0); err != nil {
		return err
	}
	_, err := c.store.PutIfAbsent(ctx, key, data)
	if errors.Is(err, nstance.Ambiguous) {
		if err := c.fence.allow(key, 0); err != nil { // the answer may have been long in not coming
			return err
		}
		_, err = c.store.PutIfAbsent(ctx, key, data) // the same bytes again harm nothing
	}
	if errors.Is(err, nstance.Conflict) {
		return nil
	}
	return err
}
