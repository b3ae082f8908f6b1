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

// operatorMode is the behaviour of an operator.
type operatorMode int

const (
	absent   operatorMode = iota // the agents execute the drains
	diligent                     // drains machines and acknowledges
	slow                         // needs minutes
	silent                       // watches, and never acknowledges
	manners
)

// operator is the operator of a tenant: while it watches, it is the executor of that
// tenant's drains.
type operator struct {
	w      *World
	tenant nstance.TenantID

	mu      sync.Mutex
	rng     *rand.Rand
	manner  operatorMode
	drains  *drain.Coordinator // of the server that it watches
	leave   func()
	emptied map[nstance.InstanceID]uint64 // generations; acknowledgements are repeated
	begun   map[nstance.InstanceID]uint64
}

func newOperator(w *World, tenant nstance.TenantID, nth uint64) *operator {
	rng := rand.New(rand.NewPCG(w.cfg.Seed, 6+100*nth))
	return &operator{
		w: w, tenant: tenant, rng: rng, manner: operatorMode(rng.IntN(int(manners))), leave: func() {},
		emptied: map[nstance.InstanceID]uint64{}, begun: map[nstance.InstanceID]uint64{},
	}
}

func (o *operator) setMode(m operatorMode) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.manner = m
}

// run watches the leader until ctx ends.
func (o *operator) run(ctx context.Context) {
	var watches sync.WaitGroup
	defer watches.Wait()
	defer func() { o.leave() }()
	for sleep.For(ctx, agentTick) {
		_, drains := o.w.leader()
		if o.inMode(absent) {
			drains = nil
		}
		if drains != o.drains {
			o.watch(ctx, drains, &watches)
		}
		if drains != nil {
			o.acknowledge(ctx, drains)
		}
	}
}

func (o *operator) inMode(m operatorMode) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.manner == m
}

// watch ends one watch and starts another; nil starts none.
func (o *operator) watch(ctx context.Context, drains *drain.Coordinator, watches *sync.WaitGroup) {
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
				return // as a broken stream; the next watch repeats the drains
			}
			if e.Drain.Instance != "" && e.Drain.Group.Tenant != o.tenant {
				o.w.check.violated("tenant", "the operator of %s received drain of %s of %s", o.tenant, e.Drain.Instance, e.Drain.Group)
			}
			if e.Type == nstance.DrainSnapshot || e.Type == nstance.DrainRequested || e.Type == nstance.DrainReassigned {
				o.begin(ctx, e.Drain, watches)
			}
		}
	})
}

// begin drains a machine, once for each generation.
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
		o.w.check.recordDrained(d.Instance, d.Generation)
		o.mu.Lock()
		defer o.mu.Unlock()
		o.emptied[d.Instance] = max(o.emptied[d.Instance], d.Generation)
	})
}

// acknowledge acknowledges every completed drain in progress.
func (o *operator) acknowledge(ctx context.Context, drains *drain.Coordinator) {
	for _, d := range drains.Active() {
		o.mu.Lock()
		generation, mute := o.emptied[d.Instance], o.manner == silent || o.rng.Float64() < o.w.messageLoss()
		o.mu.Unlock()
		if generation == 0 || mute {
			continue
		}
		_ = drains.Acknowledge(ctx, nstance.Ack{ // refused unless it is for the current drain
			Instance: d.Instance, Generation: generation, By: nstance.ExecutorOperator, Outcome: nstance.OutcomeDrained,
		})
	}
}
