package spot

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

// maxRetry is the longest pause after an error: the shortest warning, gcp's, is
// 30 s.
const maxRetry = time.Second

// A source is one key of a metadata service. It belongs to one watch.
type source interface {
	// read returns everything that the key announces now. With an error, the
	// notices are those that could be read; others may stand. It may block for
	// a long poll, whose time counts as the pause.
	read(ctx context.Context) (reading, error)
	// noticeSource returns the source in its notices; empty: any.
	noticeSource() string
}

// A reading is what a key announces at one time.
type reading struct {
	found     []nstance.Notice // with the cloud's times
	at        instant
	skipPause bool  // before the next read
	skipped   error // announcements that mean nothing here; the reading is complete without them
}

// An item is what a watch yields.
type item struct {
	notice nstance.Notice
	err    error
}

// watch polls every source on a goroutine of its own, so that one that hangs
// delays no other, and yields their items one at a time. When the loop over it
// ends, all goroutines have ended.
func watch(ctx context.Context, o *Options, r *lastReads, standing []nstance.Notice, sources ...source) iter.Seq2[nstance.Notice, error] {
	return func(yield func(nstance.Notice, error) bool) {
		ctx, stop := context.WithCancel(ctx)
		items := make(chan item)
		var pollers sync.WaitGroup
		if o.Client != nil {
			defer o.Client.CloseIdleConnections()
		}
		defer pollers.Wait()
		defer stop()
		began := time.Now()
		for _, s := range sources {
			p := &poller{o: o, source: s, began: began, dedup: newNoticeDedup(), items: items, lastReads: r}
			p.dedup.resume(standing, s.noticeSource())
			pollers.Go(func() { p.run(ctx) })
		}
		for {
			select {
			case <-ctx.Done():
				return
			case it := <-items:
				if !yield(it.notice, it.err) {
					return
				}
			}
		}
	}
}

// A poller reads one source for as long as the watch lasts.
type poller struct {
	o         *Options
	source    source
	began     time.Time // of the watch
	dedup     *noticeDedup
	errors    errorDedup
	skipped   errorDedup
	items     chan<- item
	lastReads *lastReads
}

func (p *poller) run(ctx context.Context) {
	p.lastReads.done(p, nil)
	defer p.lastReads.leave(p)
	for ctx.Err() == nil {
		next := p.nextRead()
		got, err := p.source.read(ctx)
		if ctx.Err() != nil {
			return
		}
		p.yieldChanges(ctx, got, err)
		p.lastReads.done(p, err)
		switch {
		case err != nil:
			sleep.For(ctx, p.retry(err))
		case !got.skipPause:
			sleep.For(ctx, time.Until(next))
		}
	}
}

// nextRead returns the next multiple of the poll interval since the watch began. So all
// pollers of a watch read at the same moments: waking an idle process for each of them
// costs more than the reads.
func (p *poller) nextRead() time.Time {
	past := time.Since(p.began)
	return p.began.Add(past - past%p.o.PollInterval + p.o.PollInterval)
}

// yieldChanges yields the changed notices of a reading, and its error if it is
// new.
func (p *poller) yieldChanges(ctx context.Context, got reading, err error) {
	changed, late := p.dedup.update(got.found, err == nil, got.at)
	for _, n := range changed {
		p.send(ctx, item{notice: n})
	}
	for _, n := range late {
		p.send(ctx, item{err: nstance.Errorf(nstance.Invalid, "%s: ignored %s: its deadline %s was past when the watch began",
			n.Source, n.EventID, n.Deadline.Format(time.RFC3339))})
	}
	if p.errors.isNew(err) {
		p.send(ctx, item{err: err})
	}
	if err == nil && p.skipped.isNew(got.skipped) {
		p.send(ctx, item{err: got.skipped})
	}
}

func (p *poller) send(ctx context.Context, it item) {
	select {
	case <-ctx.Done():
	case p.items <- it:
	}
}

// retry returns a pause with jitter, shorter than the poll interval unless the
// service throttles.
func (p *poller) retry(err error) time.Duration {
	d := p.o.PollInterval
	if nstance.CodeOf(err) != nstance.Throttled {
		d = min(d, maxRetry)
	}
	return sleep.Jitter(d)
}

// maxErrors bounds the different errors that are yielded in one outage.
const maxErrors = 8

// An errorDedup passes each different error of an outage once. A successful read
// ends the outage.
type errorDedup struct{ seen map[string]bool }

func (t *errorDedup) isNew(err error) bool {
	if err == nil {
		t.seen = nil
		return false
	}
	if t.seen == nil {
		t.seen = map[string]bool{}
	}
	text := err.Error()
	if t.seen[text] || len(t.seen) >= maxErrors {
		return false
	}
	t.seen[text] = true
	return true
}
