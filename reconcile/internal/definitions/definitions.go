// Package definitions reads the recorded definitions that plans need, outside of any lock of the
// caller's, and has the groups planned again that wait for one.
package definitions

import (
	"context"
	"errors"
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
	groups []nstance.GroupKey
	err    error // of the last attempt
}

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
// read.
func (d *Reader) Run(ctx context.Context, planAgain func(nstance.GroupKey), log *slog.Logger) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.wake:
		}
		if err := d.readAll(ctx, planAgain, log); err == nil || ctx.Err() != nil {
			continue
		}
		d.signal()
		if !sleep.For(ctx, time.Second) {
			return
		}
	}
}

func (d *Reader) readAll(ctx context.Context, planAgain func(nstance.GroupKey), log *slog.Logger) (failed error) {
	digests := d.digests()
	_, errs := d.source.Definitions(ctx, digests)
	for _, digest := range digests {
		err := errs[digest]
		if err != nil {
			log.Warn("definition not read", "digest", digest, "code", nstance.CodeOf(err), "err", err)
		}
		for _, key := range d.done(digest, err) {
			planAgain(key)
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

func (d *Reader) digests() (out []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for digest := range d.wanted {
		out = append(out, digest)
	}
	return out
}

// done ends an attempt and returns the groups that wait for it. What failed is
// tried again.
func (d *Reader) done(digest string, err error) []nstance.GroupKey {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.wanted[digest]
	first := w.err == nil
	if w.err = err; err == nil {
		delete(d.wanted, digest)
		return w.groups
	}
	if first {
		return w.groups // which say why they wait
	}
	return nil
}
