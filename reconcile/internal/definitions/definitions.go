// Package definitions reads the recorded definitions that plans need, outside of any lock of the
// caller's, and has the groups planned again that wait for one.
package definitions

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

// A Source has the definitions.
type Source interface {
	// CachedDefinition returns one that is in memory.
	CachedDefinition(digest string) (nstance.Definition, bool)

	// Definitions reads several. What cannot be read has an error.
	Definitions(ctx context.Context, digests []string) (map[string]nstance.Definition, map[string]error)
}

// A Reader reads definitions. It is safe for concurrent use.
type Reader struct {
	source Source
	wake   chan struct{} // has room for one

	mu     sync.Mutex
	wanted map[string]*wanted // by digest
}

// A wanted is a definition that groups wait for.
type wanted struct {
	groups   []nstance.GroupKey // that have asked since the last attempt
	err      error              // of the last attempt
	failures int                // in a row
	retryAt  time.Time
}

// What cannot be read is tried again after firstRetry, doubling to lastRetry.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// New returns a reader without requests.
func New(source Source) *Reader {
	return &Reader{source: source, wake: make(chan struct{}, 1), wanted: map[string]*wanted{}}
}

// Get returns a definition that is in memory, or says why it is not yet. Then the
// group is planned again once it has been read.
func (d *Reader) Get(key nstance.GroupKey, digest string) (nstance.Definition, string) {
	if def, ok := d.source.CachedDefinition(digest); ok {
		return def, ""
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.wanted[digest]
	if w == nil {
		w = &wanted{}
		d.wanted[digest] = w
		d.signal()
	}
	if !slices.Contains(w.groups, key) {
		w.groups = append(w.groups, key)
	}
	if w.err != nil {
		return nstance.Definition{}, fmt.Sprintf("%.12s cannot be read: %v; resume the rollout, or configure a definition, if it is lost", digest, w.err)
	}
	return nstance.Definition{}, fmt.Sprintf("%.12s is being read", digest)
}

func (d *Reader) signal() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Run reads until ctx ends, and has the groups planned again that wait for what was
// read, or could not be.
func (d *Reader) Run(ctx context.Context, planAgain func(nstance.GroupKey), log *slog.Logger) {
	for ctx.Err() == nil {
		digests, wait := d.due()
		if len(digests) > 0 {
			d.read(ctx, digests, planAgain, log)
			continue
		}
		select {
		case <-ctx.Done():
		case <-d.wake:
		case <-time.After(wait):
		}
	}
}

// due returns what is to be read now, and how long the rest can wait. What no group has asked
// for since its last attempt is dropped.
func (d *Reader) due() (digests []string, wait time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	wait = time.Hour
	for digest, w := range d.wanted {
		switch left := time.Until(w.retryAt); {
		case left > 0:
			wait = min(wait, left)
		case len(w.groups) == 0:
			delete(d.wanted, digest)
		default:
			digests = append(digests, digest)
		}
	}
	return digests, wait
}

func (d *Reader) read(ctx context.Context, digests []string, planAgain func(nstance.GroupKey), log *slog.Logger) {
	_, errs := d.source.Definitions(ctx, digests)
	for _, digest := range digests {
		err := errs[digest]
		groups, news := d.done(digest, err)
		if news {
			log.Warn("definition not read", "digest", digest, "code", nstance.CodeOf(err), "err", err)
		}
		for _, key := range groups {
			planAgain(key)
		}
	}
}

// done ends an attempt. It returns the groups that wait for it, which ask again if they still
// need what failed, and whether it failed in another way than the attempt before.
func (d *Reader) done(digest string, err error) (groups []nstance.GroupKey, news bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.wanted[digest]
	groups, w.groups = w.groups, nil
	if err == nil {
		delete(d.wanted, digest)
		return groups, false
	}
	news = w.err == nil || w.err.Error() != err.Error()
	w.err = err
	w.failures++
	w.retryAt = time.Now().Add(sleep.Backoff(w.failures, firstRetry, lastRetry))
	return groups, news
}
