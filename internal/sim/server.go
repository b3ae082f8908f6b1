package sim

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
)

// A process is one life of one server, from its start to its crash.
type process struct {
	w      *World
	name   string
	link   *link
	cancel context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex
	term   *lease.Term
	leads  *reconcile.Reconciler
	drains *drain.Coordinator
}

// start begins a life.
func (w *World) start(name string) *process {
	w.lives++
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{w: w, name: fmt.Sprintf("%s/%d", name, w.lives), link: newLink(w.cfg.Seed<<8 + uint64(w.lives)), cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.run(ctx)
	}()
	return p
}

// crash ends a life: what it has not done yet, it never does.
func (p *process) crash() {
	p.link.set(func(l *link) {
		l.dead = true
		if l.frozen != nil {
			close(l.frozen)
			l.frozen = nil
		}
	})
	p.cancel()
	<-p.done
}

func (p *process) run(ctx context.Context) {
	store := linkedStore{p.w.store, p.link}
	elector, err := lease.New(store, shard, &lease.Options{Address: p.name, Clock: lease.GoClock(), Fresh: true})
	if err != nil {
		panic(err) // a mistake in this package
	}
	for ctx.Err() == nil {
		term, err := elector.Campaign(ctx)
		if err != nil {
			wait(ctx, time.Second)
			continue
		}
		p.lead(ctx, term, store)
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		_ = elector.Resign(release) // a dead process cannot; others wait for its lease to run out
		cancel()
	}
}

func (p *process) lead(ctx context.Context, term *lease.Term, store storage.Store) {
	work, stop := context.WithCancel(term.Context())
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	var r *reconcile.Reconciler
	drains := drain.New(&drain.Options{OnAck: func(a nstance.Ack) { r.Observe(nstance.Drained{Ack: a}) }})
	r, err := reconcile.New(linkedProvider{p.w.cloud, p.link, p.w.check}, store, &reconcile.Options{
		Owner: owner, Groups: []nstance.Group{p.w.wanted()}, Epoch: term.Epoch(), Check: p.w.check.term(term), Drains: drains,
		Journal: p.w.check.event, HealthInterval: reportInterval, ConsistencyWindow: 20 * time.Second,
		Provider: &provider.Options{Timeout: 10 * time.Second},
	})
	if err != nil {
		panic(err) // a mistake in this package
	}
	p.mu.Lock()
	p.term, p.leads, p.drains = term, r, drains
	p.mu.Unlock()
	_ = r.Run(work) // nil, always
	p.mu.Lock()
	p.leads = nil
	p.mu.Unlock()
}

// leading returns the reconciler of a process that leads and can be reached.
func (p *process) leading() (*reconcile.Reconciler, *drain.Coordinator) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.leads == nil || p.term.Err() != nil || !p.leads.Loaded() {
		return nil, nil
	}
	if v := p.link.judge(); v.dead || v.cut || v.frozen != nil {
		return nil, nil
	}
	return p.leads, p.drains
}

// valid reports whether the process believes that it leads.
func (p *process) valid() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.term != nil && p.term.Err() == nil
}
