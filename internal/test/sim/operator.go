package sim

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/internal/sleep"
)

// A manner is how the operator behaves.
type manner int

const (
	absent   manner = iota // the agents empty their machines themselves
	diligent               // empties machines and says so
	slow                   // takes minutes
	silent                 // watches, and never acknowledges anything
	manners
)

// An operator is the one of a tenant: while it watches, it is the executor of
// that tenant's drains.
type operator struct {
	w      *World
	tenant nstance.TenantID

	mu      sync.Mutex
	rng     *rand.Rand
	manner  manner
	drains  *drain.Coordinator // of the server that it watches
	leave   func()
	emptied map[nstance.InstanceID]uint64 // generations; said again and again
	begun   map[nstance.InstanceID]uint64
}

func newOperator(w *World, tenant nstance.TenantID, nth uint64) *operator {
	rng := rand.New(rand.NewPCG(w.cfg.Seed, 6+100*nth))
	return &operator{
		w: w, tenant: tenant, rng: rng, manner: manner(rng.IntN(int(manners))), leave: func() {},
		emptied: map[nstance.InstanceID]uint64{}, begun: map[nstance.InstanceID]uint64{},
	}
}

func (o *operator) become(m manner) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.manner = m
}

// run follows the leader until ctx ends.
func (o *operator) run(ctx context.Context) {
	var watches sync.WaitGroup
	defer watches.Wait()
	defer func() { o.leave() }()
	for sleep.For(ctx, agentTick) {
		_, drains := o.w.leader()
		if o.behaves(absent) {
			drains = nil
		}
		if drains != o.drains {
			o.follow(ctx, drains, &watches)
		}
		if drains != nil {
			o.acknowledge(ctx, drains)
		}
	}
}

func (o *operator) behaves(m manner) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.manner == m
}

// follow breaks off one watch and begins another; nil watches nobody.
func (o *operator) follow(ctx context.Context, drains *drain.Coordinator, watches *sync.WaitGroup) {
	o.leave()
	o.drains, o.leave = drains, func() {}
	if drains == nil {
		return
	}
	watching, stop := context.WithCancel(ctx)
	remove := drains.AddExecutor(o.tenant)
	o.leave = func() { remove(); stop() }
	watches.Go(func() {
		for e, err := range drains.Watch(watching, o.tenant, 0) {
			if err != nil {
				return // as a broken stream; the drains stand in the next watch's snapshot
			}
			if e.Drain.Instance != "" && e.Drain.Group.Tenant != o.tenant {
				o.w.check.violated("tenant", "the operator of %s hears of %s of %s", o.tenant, e.Drain.Instance, e.Drain.Group)
			}
			if e.Type == nstance.DrainSnapshot || e.Type == nstance.DrainRequested || e.Type == nstance.DrainReassigned {
				o.begin(ctx, e.Drain, watches)
			}
		}
	})
}

// begin empties a machine for a drain, once for each generation.
func (o *operator) begin(ctx context.Context, d nstance.Drain, watches *sync.WaitGroup) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if d.Executor != nstance.ExecutorOperator || o.begun[d.Instance] >= d.Generation || o.manner == silent {
		return
	}
	o.begun[d.Instance] = d.Generation
	takes := time.Duration(1+o.rng.IntN(40)) * time.Second
	if o.manner == slow {
		takes *= 8
	}
	watches.Go(func() {
		for ok := sleep.For(ctx, takes); o.w.hang.Load() > 0 || !ok; {
			if !ok || !sleep.For(ctx, agentTick) {
				return
			}
		}
		o.w.check.emptied(d.Instance, d.Generation)
		o.mu.Lock()
		defer o.mu.Unlock()
		o.emptied[d.Instance] = max(o.emptied[d.Instance], d.Generation)
	})
}

// acknowledge says of every drain under way that is done that it is.
func (o *operator) acknowledge(ctx context.Context, drains *drain.Coordinator) {
	for _, d := range drains.Active() {
		o.mu.Lock()
		generation, mute := o.emptied[d.Instance], o.manner == silent || o.rng.Float64() < o.w.lossy()
		o.mu.Unlock()
		if generation == 0 || mute {
			continue
		}
		_ = drains.Acknowledge(ctx, nstance.Ack{ // refused unless it is for the present drain
			Instance: d.Instance, Generation: generation, By: nstance.ExecutorOperator, Outcome: nstance.OutcomeDrained,
		})
	}
}
