package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
)

const (
	// cleanEvery is the longest time between two passes: one comes every
	// shard.gc.retention if that is less.
	cleanEvery = 30 * time.Minute
	// cleanerCheck is how soon another setting is noticed.
	cleanerCheck = 5 * time.Second
	// knowEvery is how often a leader looks at what is to be removed, several times
	// within the time for which it may go by what it knows.
	knowEvery = 4 * time.Minute
	// cleanTimeout bounds a pass.
	cleanTimeout = 10 * time.Minute
	// expiredFor is how long something must have been expired before it is
	// removed, beside shard.gc.retention: no server that still takes it can have a
	// clock that is so far behind.
	expiredFor = 24 * time.Hour
	// expiredPage is how many objects of a kind that expires one pass reads.
	expiredPage = 500
)

// A cleaner removes, during one term, stored objects that are of no use any more:
// of the whole cluster, since none of them belongs to a shard. Of all leaders one
// does at a time. docs/design/014-cleaning.md says what may go, and when.
type cleaner struct {
	store    storage.Store
	check    func() error         // the term is over
	clock    func() bool          // the wall clock can be trusted
	now      func() time.Time     // the wall clock
	recheck  time.Duration        // how soon another setting is noticed
	keep     func() time.Duration // shard.gc.retention
	know     func(context.Context) error
	contents *storage.Cleaner
	log      *slog.Logger

	after map[string]string // by prefix: the last key that was read

	mu    sync.Mutex
	wrong map[string]string // why a prefix is not cleaned, by what it is called
}

func newCleaner(t *term) *cleaner {
	s := t.server
	return &cleaner{
		store: s.store, check: t.granted.Err, clock: t.reconciler.ClockRight, now: s.opts.Now, recheck: s.opts.intervals.cleanerCheck, log: t.log,
		keep: func() time.Duration { return s.config().Shard.GC.Retention }, know: t.reconciler.Records().Contents().Refresh,
		contents: storage.NewCleaner(s.store, t.conf.Shard.ID, &storage.CleanerOptions{
			Check: t.granted.Err, Elapsed: lease.Elapsed(), Now: s.opts.Now, Log: t.log,
		}),
		after: map[string]string{}, wrong: map[string]string{},
	}
}

// run cleans until ctx ends, and keeps what this leader knows of what is to be
// removed so fresh that nothing it does has to ask for it.
func (c *cleaner) run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { c.keepKnowing(ctx) })
	defer wg.Wait()
	for c.rest(ctx) {
		c.pass(ctx)
	}
}

func (c *cleaner) keepKnowing(ctx context.Context) {
	for ctx.Err() == nil {
		wait := knowEvery - rand.N(knowEvery/10)
		if err := c.know(ctx); err != nil && ctx.Err() == nil {
			c.log.Warn("what is to be removed not read", "code", nstance.CodeOf(err), "err", err)
			wait = knowEvery / 4
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// rest waits until the next pass is due, which another setting may bring forward,
// or returns false when ctx has ended first.
func (c *cleaner) rest(ctx context.Context) bool {
	began, part := time.Now(), 0.9+rand.Float64()/5
	for {
		left := time.Duration(float64(min(c.keep(), cleanEvery))*part) - time.Since(began)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(min(left, c.recheck)):
		}
		if left <= 0 {
			return true
		}
	}
}

// pass cleans once if it is this leader's turn and its clock is right. What goes
// wrong with one kind of object does not concern the others.
func (c *cleaner) pass(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, cleanTimeout)
	defer cancel()
	mine, err := c.contents.Turn(ctx)
	c.note(storage.CondemnedKey, err)
	if err == nil && !mine {
		c.forget()
	}
	if err != nil || !mine || !c.clock() {
		return
	}
	removed, err := c.contents.Clean(ctx, c.keep())
	c.done(strings.Join(storage.Cleanable(), ", "), removed, err)
	c.expire(ctx, storage.NonceKey(""), nonceEnds)
	c.expire(ctx, storage.OperatorPrefix, operatorEnds)
}

func (c *cleaner) expire(ctx context.Context, prefix string, ends ending) {
	n, err := c.expired(ctx, prefix, ends)
	c.done(prefix, map[string]int{prefix: n}, err)
}

// done notes and logs the outcome.
func (c *cleaner) done(what string, removed map[string]int, err error) {
	c.note(what, err)
	for prefix, n := range removed {
		if n > 0 {
			c.log.Info("removed what is of no use any more", "prefix", prefix, "objects", n)
		}
	}
}

// note remembers why something is not cleaned, or that it is.
func (c *cleaner) note(what string, err error) {
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
		c.log.Warn("not cleaned", "what", what, "code", nstance.CodeOf(err), "err", err)
	}
	c.wrong[what] = err.Error()
}

// forget has nothing wrong: whoever cleans now says what is.
func (c *cleaner) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.wrong)
}

// problems returns what a person should see.
func (c *cleaner) problems() (out []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for what, why := range c.wrong {
		out = append(out, fmt.Sprintf("%s is not cleaned: %s", what, why))
	}
	slices.Sort(out)
	return out
}

// An ending says until when an object is needed; zero: nobody knows.
type ending func(data []byte) (time.Time, error)

func nonceEnds(data []byte) (time.Time, error) {
	var used usedNonce
	err := json.Unmarshal(data, &used)
	return used.Operator.NonceEnds(), err
}

func operatorEnds(data []byte) (time.Time, error) {
	var rec operatorRecord
	if err := json.Unmarshal(data, &rec); err != nil || rec.Operator == nil {
		return time.Time{}, errors.Join(err, errNoOperator)
	}
	return rec.Operator.Ends(), nil
}

var errNoOperator = nstance.Errorf(nstance.Invalid, "it is no operator's record")

// expired removes those of the next few objects that nobody needs any more. After
// an error of listing or reading, or where one cannot be understood, it removes
// none of them.
func (c *cleaner) expired(ctx context.Context, prefix string, ends ending) (removed int, err error) {
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
func (c *cleaner) due(ctx context.Context, page []storage.Entry, ends ending) (dues []storage.Object, err error) {
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
func (c *cleaner) read(ctx context.Context, key string, ends ending) (obj storage.Object, due bool, err error) {
	now := c.now() // before anybody asks whether the clock is right
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
func (c *cleaner) remove(ctx context.Context, obj storage.Object) (gone bool, err error) {
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
