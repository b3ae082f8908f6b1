package server

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
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/storage"
)

const (
	// collectEvery is the longest time between two passes: one comes every
	// shard.gc.retention if that is less.
	collectEvery = 30 * time.Minute
	// collectorCheck is how soon another setting is noticed.
	collectorCheck = 5 * time.Second
	// collectTimeout bounds a pass.
	collectTimeout = 10 * time.Minute
	// expiredFor is how long something must have been expired before it is
	// removed, beside shard.gc.retention: no server that still accepts it can have
	// a clock that is so far behind.
	expiredFor = 24 * time.Hour
	// expiredPage is how many objects of a kind that expires one pass reads.
	expiredPage = 500
)

// A collector deletes, during one term, stored objects that have no use any more:
// the shard's definitions and fetched user data that nothing names, and the
// cluster's operators and nonces that have expired.
// docs/design/014-cleaning.md says what may be deleted, and when.
type collector struct {
	store    storage.Store
	check    func() error         // the term is over
	clock    func() bool          // the wall clock can be trusted
	now      func() time.Time     // the wall clock
	recheck  time.Duration        // how soon another setting is noticed
	keep     func() time.Duration // shard.gc.retention
	contents func(context.Context) (map[string]int, error)
	log      *slog.Logger

	after map[string]string // by prefix: the last key that was read

	mu    sync.Mutex
	wrong map[string]string // why a prefix is not collected, by what it is called
}

func newCollector(t *term) *collector {
	s := t.server
	return &collector{
		store: s.store, check: t.granted.Err, clock: t.reconciler.ClockRight, now: s.opts.Now, recheck: s.opts.intervals.collectorCheck, log: t.log,
		keep:     func() time.Duration { return s.config().Shard.GC.Retention },
		contents: t.reconciler.Records().CollectGarbage,
		after:    map[string]string{}, wrong: map[string]string{},
	}
}

// run collects until ctx ends.
func (c *collector) run(ctx context.Context) {
	for c.rest(ctx) {
		c.pass(ctx)
	}
}

// rest waits until the next pass is due, which another setting may bring forward,
// or returns false when ctx has ended first.
func (c *collector) rest(ctx context.Context) bool {
	began, part := time.Now(), 0.9+rand.Float64()/5
	for {
		left := time.Duration(float64(min(c.keep(), collectEvery))*part) - time.Since(began)
		if !sleep.For(ctx, min(left, c.recheck)) {
			return false
		}
		if left <= 0 {
			return true
		}
	}
}

// pass collects once. What goes wrong with one kind of object does not concern
// the others. What expires needs a wall clock that is right.
func (c *collector) pass(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, collectTimeout)
	defer cancel()
	removed, err := c.contents(ctx)
	c.done("definition/, fetched/", removed, err)
	if c.clock() {
		c.expire(ctx, storage.NonceKey(""), nonceEnds)
		c.expire(ctx, storage.OperatorPrefix, operatorEnds)
	}
}

func (c *collector) expire(ctx context.Context, prefix string, ends ending) {
	n, err := c.expired(ctx, prefix, ends)
	c.done(prefix, map[string]int{prefix: n}, err)
}

// done notes and logs the outcome.
func (c *collector) done(what string, removed map[string]int, err error) {
	c.note(what, err)
	for prefix, n := range removed {
		if n > 0 {
			c.log.Info("deleted what has no use any more", "prefix", prefix, "objects", n)
		}
	}
}

// note remembers why something is not collected, or that it is.
func (c *collector) note(what string, err error) {
	if errors.Is(err, context.Canceled) || c.check() != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		delete(c.wrong, what)
		return
	}
	if c.wrong[what] != err.Error() {
		c.log.Warn("garbage not collected", "what", what, "code", nstance.CodeOf(err), "err", err)
	}
	c.wrong[what] = err.Error()
}

// problems returns what needs attention.
func (c *collector) problems() (out []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for what, why := range c.wrong {
		out = append(out, fmt.Sprintf("garbage under %s is not collected: %s", what, why))
	}
	slices.Sort(out)
	return out
}

// An ending says until when an object is needed; zero: that is not known.
type ending func(data []byte) (time.Time, error)

func nonceEnds(data []byte) (time.Time, error) {
	var used usedNonce
	err := json.Unmarshal(data, &used)
	return used.Operator.NonceExpiry, err
}

func operatorEnds(data []byte) (time.Time, error) {
	var rec operatorRecord
	if err := json.Unmarshal(data, &rec); err != nil || rec.Operator == nil {
		return time.Time{}, errors.Join(err, errNoOperator)
	}
	return rec.Operator.Ends(), nil
}

var errNoOperator = nstance.Errorf(nstance.Invalid, "it is no operator's record")

// expired deletes those of the next few objects that have expired. After an error
// of listing or reading, or where one cannot be understood, it deletes none.
func (c *collector) expired(ctx context.Context, prefix string, ends ending) (removed int, err error) {
	page, after, err := storage.ListPage(ctx, c.store, prefix, c.after[prefix], expiredPage)
	if err != nil {
		return 0, err
	}
	dues, err := c.due(ctx, page, ends)
	if err != nil {
		return 0, err
	}
	for _, obj := range dues {
		gone, err := c.remove(ctx, obj)
		if err != nil {
			return removed, err
		}
		if gone {
			removed++
		}
	}
	c.after[prefix] = after
	return removed, nil
}

// due reads objects and returns those that may go.
func (c *collector) due(ctx context.Context, page []storage.Entry, ends ending) (dues []storage.Object, err error) {
	found := make([]*storage.Object, len(page))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readsAtOnce)
	for i, entry := range page {
		g.Go(func() error {
			obj, gone, err := c.read(ctx, entry.Key, ends)
			if err == nil && gone {
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
			dues = append(dues, *obj)
		}
	}
	return dues, nil
}

// read returns an object and whether it may go. One that another leader has just
// removed may not.
func (c *collector) read(ctx context.Context, key string, ends ending) (obj storage.Object, due bool, err error) {
	now := c.now() // before the clock is checked
	obj, err = c.store.Get(ctx, key)
	if errors.Is(err, nstance.NotFound) {
		return obj, false, nil
	}
	if err != nil {
		return obj, false, err
	}
	var h storage.Header
	if err = json.Unmarshal(obj.Data, &h); err == nil {
		err = storage.Understood(key, h.Format)
	}
	var end time.Time
	if err == nil {
		end, err = ends(obj.Data)
	}
	if err != nil {
		return obj, false, nstance.Errorf(nstance.Invalid, "%s cannot be read: %w", key, err)
	}
	return obj, !end.IsZero() && now.Sub(end) > expiredFor+c.keep(), nil
}

// remove deletes an object, unless it has changed, the term is over, or the clock
// is not right any more.
func (c *collector) remove(ctx context.Context, obj storage.Object) (gone bool, err error) {
	if err := c.check(); err != nil {
		return false, err
	}
	if !c.clock() {
		return false, nstance.Errorf(nstance.Unavailable, "this server's clock cannot be trusted")
	}
	err = c.store.DeleteIfMatch(ctx, obj.Key, obj.Version)
	if errors.Is(err, nstance.NotFound) || errors.Is(err, nstance.Conflict) {
		return false, nil
	}
	return err == nil, err
}
