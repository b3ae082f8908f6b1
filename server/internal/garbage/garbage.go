// Package garbage deletes stored objects that have no use any more.
// docs/design/014-cleaning.md says what may be deleted, and when.
package garbage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/storage"
)

const (
	// collectEvery is the longest time between two passes: one comes every
	// shard.gc.retention if that is less.
	collectEvery = 30 * time.Minute
	// settingCheck is how soon another retention takes effect.
	settingCheck = 5 * time.Second
	// collectTimeout bounds a pass.
	collectTimeout = 10 * time.Minute
	// expiredFor is how long an object must have been expired before it is
	// deleted, beside shard.gc.retention: it covers servers whose clock is behind.
	expiredFor = 24 * time.Hour
	// expiredPage is how many objects of a kind that expires one pass reads.
	expiredPage = 500
	// parallelReads is how many objects a pass reads at a time.
	parallelReads = 16
)

// A Kind is one kind of object that expires.
type Kind struct {
	Prefix string
	// Ends says until when an object is needed; zero: unknown, and it is kept.
	Ends func(data []byte) (time.Time, error)
}

// Options configure a Collector. Only SettingCheck and Ledger may be zero.
type Options struct {
	Check        func() error         // fails when the term has ended
	ClockRight   func() bool          // whether the wall clock can be trusted
	Now          func() time.Time     // the wall clock
	Retention    func() time.Duration // shard.gc.retention
	Kinds        []Kind
	SettingCheck time.Duration // how soon another retention takes effect; 5 s
	Log          *slog.Logger

	// Contents deletes the shard's definitions and fetched user data that no
	// object names, and returns how many by prefix.
	Contents func(context.Context) (map[string]int, error)

	// Ledger deletes the days of the ledger that are not kept, and returns how many
	// objects these were.
	Ledger func(context.Context) (int, error)
}

// A Collector deletes, during one term, the shard's definitions, fetched user data and
// bootstrap data that no object names, and objects that have expired.
type Collector struct {
	Options
	store storage.Store

	lastRead map[string]string // key by prefix, where the next pass goes on

	mu       sync.Mutex
	problems map[string]string // by what is not collected
}

// New returns a collector, which does nothing before Run.
func New(store storage.Store, opts Options) *Collector {
	if opts.SettingCheck <= 0 {
		opts.SettingCheck = settingCheck
	}
	return &Collector{Options: opts, store: store, lastRead: map[string]string{}, problems: map[string]string{}}
}

// Run collects until ctx ends.
func (c *Collector) Run(ctx context.Context) {
	for c.waitForPass(ctx) {
		c.pass(ctx)
	}
}

// waitForPass waits until the next pass is due, which another retention may bring
// forward. It returns false when ctx has ended first.
func (c *Collector) waitForPass(ctx context.Context) bool {
	began, part := time.Now(), 0.9+rand.Float64()/5
	for {
		left := time.Duration(float64(min(c.Retention(), collectEvery))*part) - time.Since(began)
		if !sleep.For(ctx, min(left, c.SettingCheck)) {
			return false
		}
		if left <= 0 {
			return true
		}
	}
}

// pass collects once. An error with one kind of object does not stop the others.
// Deleting expired objects needs a wall clock that is right.
func (c *Collector) pass(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, collectTimeout)
	defer cancel()
	removed, err := c.Contents(ctx)
	c.finish("definition/, fetched/, bootstrap/", removed, err)
	if c.Ledger != nil && c.ClockRight() {
		n, err := c.Ledger(ctx)
		c.finish("ledger/", map[string]int{"ledger/": n}, err)
	}
	if c.ClockRight() {
		for _, kind := range c.Kinds {
			n, err := c.deleteExpired(ctx, kind)
			c.finish(kind.Prefix, map[string]int{kind.Prefix: n}, err)
		}
	}
}

// finish records and logs the outcome for one kind.
func (c *Collector) finish(what string, removed map[string]int, err error) {
	c.setProblem(what, err)
	for prefix, n := range removed {
		if n > 0 {
			c.Log.Info("garbage deleted", "prefix", prefix, "objects", n)
		}
	}
}

// setProblem records why something is not collected; nil: it is.
func (c *Collector) setProblem(what string, err error) {
	if errors.Is(err, context.Canceled) || c.Check() != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		delete(c.problems, what)
		return
	}
	if c.problems[what] != err.Error() {
		c.Log.Warn("garbage not collected", "what", what, "code", nstance.CodeOf(err), "err", err)
	}
	c.problems[what] = err.Error()
}

// Problems returns what operators should see.
func (c *Collector) Problems() (out []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for what, why := range c.problems {
		out = append(out, fmt.Sprintf("garbage under %s is not collected: %s", what, why))
	}
	slices.Sort(out)
	return out
}

// deleteExpired deletes those of the next page of objects that have expired. It
// deletes none after an error of listing or reading, or where one object cannot
// be understood.
func (c *Collector) deleteExpired(ctx context.Context, kind Kind) (removed int, err error) {
	prefix := kind.Prefix
	page, after, err := listPage(ctx, c.store, prefix, c.lastRead[prefix], expiredPage)
	if err != nil {
		return 0, err
	}
	expired, err := c.expired(ctx, page, kind)
	if err != nil {
		return 0, err
	}
	for _, obj := range expired {
		gone, err := c.remove(ctx, obj)
		if err != nil {
			return removed, err
		}
		if gone {
			removed++
		}
	}
	c.lastRead[prefix] = after
	return removed, nil
}

// listPage returns at most limit entries after a key, and the key after which the
// next page begins: the last one, or none when there is nothing more.
func listPage(ctx context.Context, s storage.Store, prefix, after string, limit int) (page []storage.Entry, next string, err error) {
	for entry, err := range s.List(ctx, prefix, after) {
		if err != nil {
			return nil, "", err
		}
		if len(page) == limit {
			return page, page[limit-1].Key, nil
		}
		page = append(page, entry)
	}
	return page, "", nil
}

// expired reads objects and returns those that may be deleted.
func (c *Collector) expired(ctx context.Context, page []storage.Entry, kind Kind) (expired []storage.Object, err error) {
	found := make([]*storage.Object, len(page))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallelReads)
	for i, entry := range page {
		g.Go(func() error {
			obj, due, err := c.read(ctx, entry.Key, kind)
			if err == nil && due {
				found[i] = &obj
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for _, obj := range found {
		if obj != nil {
			expired = append(expired, *obj)
		}
	}
	return expired, nil
}

// read returns an object and whether it may be deleted. An object that another
// leader has just deleted may not.
func (c *Collector) read(ctx context.Context, key string, kind Kind) (obj storage.Object, due bool, err error) {
	now := c.Now() // before remove checks the clock
	obj, err = c.store.Get(ctx, key)
	if errors.Is(err, nstance.NotFound) {
		return obj, false, nil
	}
	if err != nil {
		return obj, false, err
	}
	var h records.Header
	if err = json.Unmarshal(obj.Data, &h); err == nil {
		err = records.Understood(key, h.Format)
	}
	var end time.Time
	if err == nil {
		end, err = kind.Ends(obj.Data)
	}
	if err != nil {
		return obj, false, nstance.Errorf(nstance.Invalid, "%s cannot be read: %w", key, err)
	}
	return obj, !end.IsZero() && now.Sub(end) > expiredFor+c.Retention(), nil
}

// remove deletes an object, unless it has changed, the term has ended, or the
// clock can no longer be trusted.
func (c *Collector) remove(ctx context.Context, obj storage.Object) (gone bool, err error) {
	if err := c.Check(); err != nil {
		return false, err
	}
	if !c.ClockRight() {
		return false, nstance.Errorf(nstance.Unavailable, "this server's clock cannot be trusted")
	}
	err = c.store.DeleteIfMatch(ctx, obj.Key, obj.Version)
	if errors.Is(err, nstance.NotFound) || errors.Is(err, nstance.Conflict) {
		return false, nil
	}
	return err == nil, err
}
