package spot

import (
	"context"
	"iter"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
)

// maxRetry is the longest pause after an error: the shortest warning, gcp's, is
// 30 s.
const maxRetry = time.Second

// A source is one key of a metadata service. It belongs to one watch.
type source interface {
	// read returns everything that the key announces now. With an error, the
	// notices are those that could be read, and prove nothing about others.
	// It may block for a long poll, and counts that time as its pause.
	read(ctx context.Context) (reading, error)
}

// A reading is what a key announces at one time.
type reading struct {
	found []nstance.Notice // with the cloud's times
	at    instant
	soon  bool // the next read is to come without a pause
}

// An item is what a watch yields.
type item struct {
	notice nstance.Notice
	err    error
}

// watch polls every source on a goroutine of its own, so that one that hangs
// delays no other, and yields what they find one at a time. It has waited for
// all of them when the loop over it ends.
func watch(ctx context.Context, o *Options, r *rounds, sources ...source) iter.Seq2[nstance.Notice, error] {
	return func(yield func(nstance.Notice, error) bool) {
		ctx, stop := context.WithCancel(ctx)
		items := make(chan item)
		var pollers sync.WaitGroup
		defer o.Client.CloseIdleConnections()
		defer pollers.Wait()
		defer stop()
		for _, s := range sources {
			p := &poller{o: o, source: s, ledger: newLedger(), items: items, rounds: r}
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
	o       *Options
	source  source
	ledger  *ledger
	trouble trouble
	items   chan<- item
	rounds  *rounds
}

func (p *poller) run(ctx context.Context) {
	p.rounds.done(p)
	defer p.rounds.leave(p)
	for ctx.Err() == nil {
		began := time.Now()
		got, err := p.source.read(ctx)
		if ctx.Err() != nil {
			return
		}
		p.tell(ctx, got, err)
		p.rounds.done(p)
		switch {
		case err != nil:
			wait(ctx, p.retry(err))
		case !got.soon:
			wait(ctx, p.o.PollInterval-time.Since(began))
		}
	}
}

// tell passes on what is new about a reading.
func (p *poller) tell(ctx context.Context, got reading, err error) {
	news, late := p.ledger.update(got.found, err == nil, got.at)
	for _, n := range news {
		p.send(ctx, item{notice: n})
	}
	for _, n := range late {
		p.send(ctx, item{err: nstance.Errorf(nstance.Invalid, "%s: ignored %s, its deadline %s was past when the watch began",
			n.Source, n.EventID, n.Deadline.Format(time.RFC3339))})
	}
	if p.trouble.isNews(err) {
		p.send(ctx, item{err: err})
	}
}

func (p *poller) send(ctx context.Context, it item) {
	select {
	case <-ctx.Done():
	case p.items <- it:
	}
}

// retry is sooner than the next poll and differs from poller to poller, but
// does not press a service that asks for patience.
func (p *poller) retry(err error) time.Duration {
	d := p.o.PollInterval
	if nstance.CodeOf(err) != nstance.Throttled {
		d = min(d, maxRetry)
	}
	return d/2 + rand.N(d/2+1)
}

func wait(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// maxTroubles bounds the different errors of one outage that are news.
const maxTroubles = 8

// A trouble is a stretch of failed reads. Each different error in it is news
// once; a success ends it.
type trouble struct{ seen map[string]bool }

func (t *trouble) isNews(err error) bool {
	if err == nil {
		t.seen = nil
		return false
	}
	if t.seen == nil {
		t.seen = map[string]bool{}
	}
	text := err.Error()
	if t.seen[text] || len(t.seen) >= maxTroubles {
		return false
	}
	t.seen[text] = true
	return true
}
