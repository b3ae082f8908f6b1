package sim

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/internal/ledger"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
)

// process is one run of one server, from its start to its crash.
type process struct {
	w      *World
	name   string
	link   *link
	clock  lease.Clock
	wall   *wall
	read   atomic.Pointer[storage.Reading] // latest date of storage
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	elector *lease.Lease
	term    *lease.Term // the latest
	ended   time.Time   // its end; zero: it lasts
	leads   *reconcile.Reconciler
	drains  *drain.Coordinator
}

// start starts a process.
func (w *World) start(name string) *process {
	w.mu.Lock()
	w.lives++
	seed := w.cfg.Seed<<8 + uint64(w.lives)
	w.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{w: w, name: fmt.Sprintf("%s/%d", name, w.lives), link: newLink(seed), clock: skew(seed), wall: w.wallOf(name), cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.run(ctx)
	}()
	return p
}

// crash ends a process: its pending calls never happen. Done is closed when all its
// goroutines have ended.
func (p *process) crash() {
	p.link.set(func(l *link) {
		l.dead = true
		if l.frozen != nil {
			close(l.frozen)
			l.frozen = nil
		}
	})
	p.cancel()
}

// retire stops a process in an orderly way: it releases the lease.
func (p *process) retire() { p.cancel() }

func (p *process) isOver() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *process) run(ctx context.Context) {
	store := linkedStore{p.w.store, p, p.link}
	elector, err := lease.New(store, shard, &lease.Options{Peer: p.name, Clock: p.clock, Watch: p.listen})
	if err != nil {
		panic(err) // a mistake in this package
	}
	p.mu.Lock()
	p.elector = elector
	p.mu.Unlock()
	for ctx.Err() == nil {
		term, err := elector.Campaign(ctx)
		if err != nil {
			sleep.For(ctx, time.Second)
			continue
		}
		p.mu.Lock()
		p.term, p.ended = term, time.Time{}
		p.mu.Unlock()
		p.w.check.recordTerm(p, term)
		p.lead(ctx, term, store)
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		_ = elector.Resign(release) // a dead process cannot; others wait until the lease expires
		cancel()
	}
}

func (p *process) lead(ctx context.Context, term *lease.Term, store storage.Store) {
	if !p.w.dated {
		p.wall.step(0) // without storage's dates an initial error of the clock cannot be detected
	}
	work, stop := context.WithCancel(term.Context())
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	drains := drain.New(nil)
	r, err := reconcile.New(linkedProvider{p.w.cloud, p, p.link, p.w.check}, store, &reconcile.Options{
		Owner: owner, Groups: p.w.desired(false).Groups, Balancers: balancers, Changed: p.w.dropRemoved(term), Epoch: term.Epoch(), Check: p.w.check.term(term), Drains: drains,
		Journal: p.w.check.event, HealthInterval: reportInterval, ConsistencyWindow: 20 * time.Second,
		Bootstrap: bootstrap{p}, Provider: &provider.Options{Timeout: 10 * time.Second}, Now: p.wall.now, Elapsed: p.clock.Now,
	})
	if err != nil {
		panic(err) // a mistake in this package
	}
	lives := ledger.NewWriter(store, shard, &ledger.WriterOptions{Check: p.w.check.term(term), Now: p.wall.now})
	r.Admin().Internals().OnEnd(ledger.NewStories(lives).Ended)
	p.mu.Lock()
	p.leads, p.drains = r, drains
	p.mu.Unlock()
	r.Observe(p.w.desired(false)) // changed since
	var reads sync.WaitGroup
	reads.Go(func() { // definitions in effect
		sleep.For(work, time.Duration(p.w.reading.Load()))
		p.setDesired(p.w.desired(true))
	})
	reads.Go(func() { lives.Run(work) })
	_ = r.Run(work) // nil, always
	reads.Wait()
	p.mu.Lock()
	p.leads = nil
	p.mu.Unlock()
}

// leading returns the reconciler of a reachable leader.
func (p *process) leading() (*reconcile.Reconciler, *drain.Coordinator) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.leads == nil || p.term.Err() != nil || !p.leads.Loaded() {
		return nil, nil
	}
	if p.link.broken() {
		return nil, nil
	}
	return p.leads, p.drains
}

// clockOf is the wall clock of a leader's server.
func (w *World) clockOf(r *reconcile.Reconciler) *wall {
	for _, p := range w.allProcesses() {
		p.mu.Lock()
		leads := p.leads
		p.mu.Unlock()
		if leads == r {
			return p.wall
		}
	}
	return &wall{} // an old leader: all its calls fail
}

// setDesired sends the desired groups to a leading process, also when it is not reachable for
// agents.
func (p *process) setDesired(d nstance.Desired) {
	p.mu.Lock()
	r := p.leads
	p.mu.Unlock()
	if r != nil {
		r.Observe(d)
	}
}

// listen is the stream of the holder's renewals to a standby. It breaks when either of
// them is partitioned, frozen or dead.
func (p *process) listen(ctx context.Context, h lease.Holder) iter.Seq2[lease.Announcement, error] {
	return func(yield func(lease.Announcement, error) bool) {
		for _, q := range p.w.allProcesses() {
			if q.name != h.Peer {
				continue
			}
			q.mu.Lock()
			elector := q.elector
			q.mu.Unlock()
			for a := range elector.Announcements(ctx) {
				if p.link.broken() || q.link.broken() {
					break
				}
				if !yield(a, nil) {
					return
				}
			}
		}
		yield(lease.Announcement{}, nstance.Errorf(nstance.Unavailable, "the stream broke"))
	}
}
