// Package ledger keeps the story of every instance that has ended, and of notices that
// ended none, in object storage under its shard: after a change of leader, of its disk,
// or a month later it is still there.
//
// Entries are JSON lines. A [Writer] writes those of about a second together as one
// object, which is never changed, below the day of writing. The record of an instance is
// deleted only after its life has been written, so none is lost by a crash. What is written
// twice is recognised when read: a life by its ID. docs/design/025-ledger.md
package ledger

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/storage"
)

// WriterOptions adjust NewWriter. Nil and zero mean the defaults.
type WriterOptions struct {
	Check      func() error     // asked before each write: an error means that the term is over; nil: never
	FinalCheck func() error     // asked instead before the writes at the end of Run; nil: Check
	Now        func() time.Time // nil: time.Now
	Linger     time.Duration    // how long a batch waits for more entries; 1 s
	Log        *slog.Logger     // nil: discard
}

const (
	defaultLinger = time.Second
	maxBatch      = 512              // entries; a full batch does not wait
	maxPending    = 8192             // entries without a record of their own: later ones are refused
	putTimeout    = 30 * time.Second // of one object
	maxRetryPause = 30 * time.Second // after a write that failed
	finalTimeout  = 5 * time.Second  // of all writes at the end of Run
)

// A Writer writes the ledger of one shard during one term. Its methods may be called
// concurrently; Run is called once.
type Writer struct {
	store storage.Store
	shard nstance.ShardID
	opts  WriterOptions
	wake  chan struct{} // has room for one

	mu      sync.Mutex
	pending []pendingEntry
	over    bool // Run has ended
}

type pendingEntry struct {
	line []byte
	done func(error)
}

// NewWriter returns a writer. Nothing is written before Run.
func NewWriter(store storage.Store, shard nstance.ShardID, o *WriterOptions) *Writer {
	opts := WriterOptions{}
	if o != nil {
		opts = *o
	}
	opts.Linger = cmp.Or(opts.Linger, defaultLinger)
	if opts.Check == nil {
		opts.Check = func() error { return nil }
	}
	if opts.FinalCheck == nil {
		opts.FinalCheck = opts.Check
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	return &Writer{store: store, shard: shard, opts: opts, wake: make(chan struct{}, 1)}
}

// Add has an entry written soon. It does not block. done, if it is not nil, is called
// once: with nil when the entry is durable, else with the error. An entry without done is
// written again until it is durable; it is lost when too many wait, or with the process.
func (w *Writer) Add(e Entry, done func(error)) {
	line, err := json.Marshal(e)
	if err == nil {
		err = w.add(pendingEntry{append(line, '\n'), done})
	}
	if err != nil && done != nil {
		done(nstance.Errorf(nstance.Unavailable, "ledger: %w", err))
	}
}

func (w *Writer) add(p pendingEntry) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.over:
		return nstance.Errorf(nstance.Unavailable, "this term is over")
	case p.done == nil && len(w.pending) >= maxPending:
		return nil
	}
	w.pending = append(w.pending, p)
	if len(w.pending) == 1 || len(w.pending) == maxBatch {
		w.signal()
	}
	return nil
}

func (w *Writer) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Run writes batches until ctx ends. Lives that are not written then have failed: the next
// leader has their records. Other entries are written once more, within finalTimeout.
func (w *Writer) Run(ctx context.Context) {
	failures := 0
	for w.awaitBatch(ctx) {
		if w.write(ctx) == nil {
			failures = 0
			continue
		}
		failures++
		sleep.For(ctx, sleep.Backoff(failures, w.opts.Linger, maxRetryPause))
	}
	w.mu.Lock()
	w.over = true
	rest := w.pending
	w.pending = nil
	w.mu.Unlock()
	settle(rest, nstance.Errorf(nstance.Unavailable, "ledger: this term is over"))
	w.writeFinal(ctx, withoutRecord(rest))
}

// awaitBatch waits until a batch is full, or an entry has waited for others. It reports
// false when ctx has ended.
func (w *Writer) awaitBatch(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-w.wake:
	}
	linger := time.NewTimer(w.opts.Linger)
	defer linger.Stop()
	for !w.full() {
		select {
		case <-ctx.Done():
			return false
		case <-linger.C:
			return ctx.Err() == nil
		case <-w.wake:
		}
	}
	return ctx.Err() == nil
}

func (w *Writer) full() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.pending) >= maxBatch
}

// write writes one batch of what is pending. The rest waits again, for as long as a first
// entry does: else entries that come during a write would become an object each.
func (w *Writer) write(ctx context.Context) error {
	w.mu.Lock()
	batch := w.pending[:min(len(w.pending), maxBatch)]
	if w.pending = w.pending[len(batch):]; len(w.pending) > 0 {
		w.signal()
	}
	w.mu.Unlock()
	if len(batch) == 0 {
		return nil
	}
	err := w.put(ctx, w.opts.Check, batch)
	if err != nil {
		w.putBack(withoutRecord(batch))
	}
	if err != nil && ctx.Err() == nil {
		w.opts.Log.Warn("ledger not written, will be repeated", "entries", len(batch), "code", nstance.CodeOf(err), "err", err)
	}
	settle(batch, err)
	return err
}

// putBack has entries written before those that are pending: one batch more than
// maxPending at most.
func (w *Writer) putBack(entries []pendingEntry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending = slices.Concat(entries, w.pending)
	if len(w.pending) > 0 {
		w.signal()
	}
}

// writeFinal writes entries after ctx has ended.
func (w *Writer) writeFinal(ctx context.Context, entries []pendingEntry) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finalTimeout)
	defer cancel()
	for len(entries) > 0 {
		batch := entries[:min(len(entries), maxBatch)]
		if err := w.put(ctx, w.opts.FinalCheck, batch); err != nil {
			w.opts.Log.Warn("ledger not written at the end of the term", "entries", len(entries), "code", nstance.CodeOf(err), "err", err)
			return
		}
		entries = entries[len(batch):]
	}
}

func (w *Writer) put(ctx context.Context, check func() error, batch []pendingEntry) error {
	if err := check(); err != nil {
		return nstance.Errorf(nstance.Unavailable, "ledger: this term is over: %w", err)
	}
	var lines bytes.Buffer
	for _, p := range batch {
		lines.Write(p.line)
	}
	ctx, cancel := context.WithTimeout(ctx, putTimeout)
	defer cancel()
	now := w.opts.Now().UTC()
	key := layout.LedgerKey(w.shard, now, now.Format("150405")+"-"+rand.Text())
	_, err := records.PutOnce(ctx, w.store, key, lines.Bytes()) // no other writer has this key
	return err
}

// withoutRecord returns the entries that nothing adds again: no record has them.
func withoutRecord(batch []pendingEntry) (out []pendingEntry) {
	for _, p := range batch {
		if p.done == nil {
			out = append(out, p)
		}
	}
	return out
}

func settle(batch []pendingEntry, err error) {
	for _, p := range batch {
		if p.done != nil {
			p.done(err)
		}
	}
}
