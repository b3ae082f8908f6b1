// Package acknowledgements keeps what operators have acknowledged of what needs attention.
// docs/events.md says what that means.
package acknowledgements

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/attention"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
)

const (
	// maxAcknowledgements bounds a shard's document.
	maxAcknowledgements = 128
	// absence is for how long an entry is gone when its acknowledgement ends. A new leader
	// lists some entries only after 15 minutes of its own.
	absence = 20 * time.Minute
	// checkInterval is between two looks at what has ended.
	checkInterval = time.Minute
	// settleRetry is between two attempts to find out what is durable.
	settleRetry = time.Second
)

// Options configure a Book. All fields are required.
type Options struct {
	Shard nstance.ShardID
	Epoch uint64
	Check func() error // fails when the term has ended
	Now   func() time.Time
	Log   *slog.Logger

	// ClockRight reports whether Now can be trusted. It is asked after Now.
	ClockRight func() bool

	// List returns everything that needs attention. It must not call the Book.
	List func() []reconcile.Attention
}

// document is what attention/{shard}.json holds.
type document struct {
	records.Header
	Acknowledged []attention.Acknowledgement `json:"acknowledged,omitempty"`
}

// A Book has the acknowledgements of a shard while this server leads it. Its methods may
// be called concurrently.
type Book struct {
	Options
	doc   *records.Doc[document]
	doubt chan struct{} // has room for one: what is durable may not be what is known

	mu      sync.Mutex
	problem string // why nothing can be acknowledged; empty: it can
}

// New returns a book, which knows no acknowledgement before Run.
func New(store storage.Store, opts Options) *Book {
	b := &Book{Options: opts, doubt: make(chan struct{}, 1)}
	b.doc = records.NewDoc[document](store, layout.AttentionKey(opts.Shard), &records.DocOptions{Epoch: opts.Epoch, Check: opts.Check})
	b.inDoubt() // a write of the last leader may land still
	return b
}

// Mark marks what is acknowledged of a list, and moves it to the end.
func (b *Book) Mark(list []reconcile.Attention) []attention.Entry {
	d, _ := b.doc.Held()
	now, _ := b.trustedNow()
	return attention.Mark(list, d.Acknowledged, now)
}

// trustedNow returns the time, and whether it can be trusted; the zero time, at which none has
// ended, if not.
func (b *Book) trustedNow() (now time.Time, trusted bool) {
	if now = b.Now(); b.ClockRight() {
		return now, true
	}
	return time.Time{}, false
}

// Problems says why nothing can be acknowledged.
func (b *Book) Problems() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.problem == "" {
		return nil
	}
	return []string{b.problem}
}

func (b *Book) setProblem(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.problem = ""
	if nstance.CodeOf(err) == nstance.Invalid {
		b.problem = fmt.Sprintf("%s cannot be used, and nothing is acknowledged: %v", layout.AttentionKey(b.Shard), err)
	}
}

// Put acknowledges what want names, for as long as it says, and returns what stands, with
// whether that changed, once it is durable. Fails with Invalid and NotFound as
// attention.Check does, with Conflict when 128 are acknowledged already. A dry run only checks.
func (b *Book) Put(ctx context.Context, want attention.Acknowledgement, dryRun bool) (stands attention.Acknowledgement, changed bool, err error) {
	list := b.List()
	if want, err = attention.Check(want, list); err != nil {
		return want, false, err
	}
	err = b.update(ctx, dryRun, func(all []attention.Acknowledgement) ([]attention.Acknowledgement, error) {
		stands, changed = want, true
		i := slices.IndexFunc(all, want.Same)
		switch {
		case i >= 0 && all[i].Repeats(want, list):
			stands, changed = all[i], false
		case i >= 0:
			all[i] = want
		case len(all) >= maxAcknowledgements:
			return nil, &nstance.Error{Code: nstance.Conflict, Msg: fmt.Sprintf("%d acknowledgements stand already", len(all)), Remedy: "end one with nstance-admin attention unack"}
		default:
			all = append(all, want)
		}
		return all, nil
	})
	return stands, changed, err
}

// Remove ends the acknowledgement of a kind and subject, and reports whether there was one,
// once it is durable. An empty subject means the only one of the kind. Fails with
// Invalid when there are several. A dry run only checks.
func (b *Book) Remove(ctx context.Context, kind reconcile.AttentionKind, subject string, dryRun bool) (of string, removed bool, err error) {
	if kind == "" {
		return "", false, nstance.FieldError("kind", "use a kind that nstance-admin attention list shows", "is missing")
	}
	err = b.update(ctx, dryRun, func(all []attention.Acknowledgement) ([]attention.Acknowledgement, error) {
		of, removed = subject, false
		if of == "" {
			var subjects []string
			for _, a := range all {
				if a.Kind == kind {
					subjects = append(subjects, a.Subject)
				}
			}
			if of, err = attention.OnlySubject(subjects); err != nil {
				return nil, err
			}
		}
		i := slices.IndexFunc(all, (&attention.Acknowledgement{Kind: kind, Subject: of}).Same)
		if removed = i >= 0; removed {
			all = slices.Delete(all, i, i+1)
		}
		return all, nil
	})
	return of, removed, err
}

// update makes a change of those that stand durable, unless it is a dry run.
func (b *Book) update(ctx context.Context, dryRun bool, change func([]attention.Acknowledgement) ([]attention.Acknowledgement, error)) error {
	_, err := b.doc.Update(ctx, func(d *document) error {
		all, err := change(slices.Clone(d.Acknowledged))
		if err == nil && !dryRun {
			d.Acknowledged = all
		}
		return err
	})
	if err != nil {
		b.inDoubt()
	}
	return err
}

// inDoubt has Run find out what is durable.
func (b *Book) inDoubt() {
	select {
	case b.doubt <- struct{}{}:
	default:
	}
}

// Run reads what is acknowledged, and ends acknowledgements, until ctx ends.
func (b *Book) Run(ctx context.Context) {
	check := time.NewTicker(checkInterval)
	defer check.Stop()
	last := map[entryName]time.Time{} // when an entry was last listed, or first missed
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-b.doubt:
			_, err = b.doc.Update(ctx, func(*document) error { return nil })
		case <-check.C:
			err = b.end(ctx, last)
		}
		b.setProblem(err)
		if err != nil && ctx.Err() == nil && nstance.CodeOf(err) != nstance.Invalid {
			b.Log.Warn("acknowledgements not read or written yet, retrying", "code", nstance.CodeOf(err), "err", err)
			time.AfterFunc(settleRetry, b.inDoubt)
		}
	}
}

// entryName is what an acknowledgement is about.
type entryName struct {
	kind    reconcile.AttentionKind
	subject string
}

// end removes the acknowledgements whose time is over, and those whose entries are gone for
// long: last has when each was last listed.
func (b *Book) end(ctx context.Context, last map[entryName]time.Time) error {
	held, _ := b.doc.Held()
	missing := b.recordListed(held.Acknowledged, last, b.Now())
	now, trusted := b.trustedNow()
	_, err := b.doc.Update(ctx, func(d *document) error {
		d.Acknowledged = slices.DeleteFunc(slices.Clone(d.Acknowledged), func(a attention.Acknowledgement) bool {
			return !a.Until.After(now) || missing[entryName{a.Kind, a.Subject}]
		})
		for i := range d.Acknowledged { // the clock of the leader that wrote it may have been ahead
			if a := &d.Acknowledged[i]; trusted && a.Until.Sub(now) > attention.Longest {
				a.Until = now.Add(attention.Longest).UTC()
			}
		}
		return nil
	})
	if err == nil { // one that is given again waits anew
		maps.DeleteFunc(last, func(name entryName, _ time.Time) bool { return missing[name] })
	}
	return err
}

// recordListed records in last which acknowledged entries are listed now, and returns those
// that are gone for long.
func (b *Book) recordListed(all []attention.Acknowledgement, last map[entryName]time.Time, now time.Time) (missing map[entryName]bool) {
	listed, whole := map[entryName]bool{}, true
	for _, e := range b.List() {
		listed[entryName{e.Kind, e.Subject}] = true
		whole = whole && e.Kind != attention.Loading
	}
	missing = map[entryName]bool{}
	known := map[entryName]bool{}
	for _, a := range all {
		name := entryName{a.Kind, a.Subject}
		known[name] = true
		if _, ok := last[name]; !ok || !whole || listed[name] {
			last[name] = now
		}
		missing[name] = now.Sub(last[name]) >= absence
	}
	maps.DeleteFunc(last, func(name entryName, _ time.Time) bool { return !known[name] })
	return missing
}
