package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/sleep"
)

// A definitionReader reads recorded definitions that plans need, outside of the
// lock.
type definitionReader struct {
	records *records.Records
	wake    chan struct{} // has room for one

	mu     sync.Mutex
	wanted map[string]*wantedDefinition // by digest
}

type wantedDefinition struct {
	groups []nstance.GroupKey
	err    error // of the last attempt
}

func newDefinitionReader(records *records.Records) *definitionReader {
	return &definitionReader{records: records, wake: make(chan struct{}, 1), wanted: map[string]*wantedDefinition{}}
}

// get returns a definition that is in memory, or says why it is not yet. Then the
// group is planned again once it has been read.
func (d *definitionReader) get(key nstance.GroupKey, digest string) (nstance.Definition, string) {
	if def, ok := d.records.CachedDefinition(digest); ok {
		return def, ""
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.wanted[digest]
	if w == nil {
		w = &wantedDefinition{}
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

func (d *definitionReader) signal() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// run reads until ctx ends, and has the groups planned again that wait for what was
// read.
func (d *definitionReader) run(ctx context.Context, planAgain func(nstance.GroupKey), log *slog.Logger) {
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

func (d *definitionReader) readAll(ctx context.Context, planAgain func(nstance.GroupKey), log *slog.Logger) (failed error) {
	for _, digest := range d.digests() {
		_, err := d.records.Definition(ctx, digest)
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

func (d *definitionReader) digests() (out []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for digest := range d.wanted {
		out = append(out, digest)
	}
	return out
}

// done ends an attempt and returns the groups that wait for it. What failed is
// tried again.
func (d *definitionReader) done(digest string, err error) []nstance.GroupKey {
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
