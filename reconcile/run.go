package reconcile

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/reconcile/internal/work"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// Run loads the shard and keeps its groups at their size until ctx, which is
// one leadership term, ends. Then it returns nil, after every step under way
// has stopped. Whatever fails is tried again. It plans from the records alone where the
// provider does not answer within two seconds. Run returns early only when the
// provider uses another account than the shard's machines are in: with Invalid,
// before the provider was asked for anything else, and when it was called before.
func (r *Reconciler) Run(ctx context.Context) error {
	if r.started.Swap(true) {
		return nstance.FieldError("run", "make another Reconciler for each term", "was called before")
	}
	defer close(r.over)
	defer r.saver.Close()
	ctx, stop := context.WithCancelCause(ctx)
	r.lead(ctx, stop)
	if err := context.Cause(ctx); errors.Is(err, nstance.Invalid) {
		return err
	}
	return nil
}

// lead does what Run says until ctx ends, which stop does early.
func (r *Reconciler) lead(ctx context.Context, stop context.CancelCauseFunc) {
	defer r.lookUps.Wait()
	defer stop(nil)
	if r.provider.Abilities().Account != nil {
		r.provider.Block(errAccountUnknown)
	}
	if err := r.load(ctx, stop); err != nil {
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { r.planGroups(ctx) })
	wg.Go(func() { r.urgent.Run(provider.Urgent(ctx), r.perform) })
	wg.Go(func() { r.ordinary.Run(ctx, r.perform) })
	wg.Go(func() { r.deletions.Run(ctx, r.perform) })
	wg.Go(func() { r.admit(ctx) })
	wg.Go(func() { r.definitions.Run(ctx, func(key nstance.GroupKey) { r.queue.Add(key, true) }, r.log) })
	wg.Go(func() { r.questions.Run(ctx) })
	wg.Go(func() { r.followDrains(ctx) })
	wg.Go(func() { r.notifyWatchers(ctx) })
	wg.Go(func() { r.saver.Run(ctx, r.saveStates) })
	wg.Go(func() { r.saveSnapshots(ctx) })
	wg.Go(func() { r.readLateWrites(ctx) })
	wg.Go(func() { r.collectOrphans(ctx) })
	wg.Go(func() { r.heartbeat(ctx) })
	wg.Go(func() { r.cloud.Run(ctx) })
	if can := r.provider.Abilities().Balancers; can != nil {
		wg.Go(func() { r.balance.Run(ctx, can) })
	}
	r.runFullPasses(ctx)
}

// planGroups plans groups as they come due. In a storm of facts long plans take at most
// half of the time, so that what they request is carried out meanwhile: facts that come
// during the pause share the next plan. Only the first of urgent ones does not wait.
func (r *Reconciler) planGroups(ctx context.Context) {
	budget := work.NewBudget(time.Now())
	for {
		key, urgent, ok := r.queue.Take(ctx)
		if !ok {
			return
		}
		took := r.process(key)
		if over := budget.Spend(took, time.Now()); over > 0 {
			r.queue.Pause(ctx, over, urgent)
		}
	}
}

// process plans one group and hands the actions to the lanes. It returns how long that
// took.
func (r *Reconciler) process(key nstance.GroupKey) (took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	began := time.Now()
	defer func() { took = time.Since(began) }()
	g := r.groups[key]
	if g == nil || !r.loaded {
		return took
	}
	now := r.opts.Now()
	r.detectPause(now)
	r.updateClock()
	next := earliest(r.askProvider(g, now), r.endPreserves(g, now), r.endClaims(g, now))
	at := r.snapshot(g, now, g.buffer[:0])
	g.buffer = at.view.Members
	census := plan.NewCensus(at.view, now)
	r.recordCensus(g, census, now)
	d := census.Plan()
	next = earliest(next, d.Next, r.apply(&at, census, d), r.nextStep(g))
	if !next.IsZero() && !next.After(now) {
		next = now.Add(time.Second) // skip deadlines in the past: never spin on them
	}
	r.queue.AddAt(key, next)
	r.publishView(g)
	return took
}

const (
	// routineDelay is how long a routine fact waits for its plan, for each member of the
	// group: twenty-five times as long as the plan takes.
	routineDelay = 10 * time.Microsecond
	// Groups whose routine facts would wait less plan at once, and none waits longer.
	minRoutineDelay, maxRoutineDelay = 2 * time.Millisecond, 100 * time.Millisecond
)

// planForRoutine has a group planned for a fact that each of its members brings about in an
// ordinary life, such as its registration. After an outage thousands come at once: in a large
// group they share a plan.
func (s *shard) planForRoutine(g *group) {
	delay := min(routineDelay*time.Duration(len(g.members)), maxRoutineDelay)
	if delay < minRoutineDelay {
		s.queue.Add(g.key, false)
		return
	}
	s.queue.AddAt(g.key, s.opts.Now().Add(delay))
}

// runFullPasses looks at everything now and then, whatever happened or did not: at the
// records too, since the intent of a former leader, sent before its term was
// over, may have landed after this one had read them all.
func (r *Reconciler) runFullPasses(ctx context.Context) {
	for {
		jittered := r.opts.FullPass*9/10 + rand.N(r.opts.FullPass/5+1)
		select {
		case <-ctx.Done():
			return
		case <-time.After(jittered):
		}
		r.rereadRecords(ctx)
		r.reconcileMachines(ctx)
		r.cloud.CountAddresses()
		r.mu.Lock()
		r.balance.CompareAll(true)
		for key := range r.groups {
			r.queue.Add(key, false)
		}
		r.mu.Unlock()
	}
}

// admit begins creates, and ends what is avoided, when the time has come, until ctx ends.
func (r *Reconciler) admit(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(r.admitDue())
		select {
		case <-ctx.Done():
			return
		case <-r.admitWake:
		case <-timer.C:
		}
	}
}

// admitDue does that once, and returns how long to wait.
func (r *Reconciler) admitDue() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.opts.Now()
	r.updateClock()
	if ended := r.places.AvoidedPools.End(r.reachedBy(now)); len(ended) > 0 {
		r.avoidanceChanged(now, ended...)
	}
	if !r.nextGrants.IsZero() && !r.nextGrants.After(now) {
		r.admitCreates(now, nil)
	}
	wait := r.places.AvoidedPools.NextEnd(now)
	if !r.nextGrants.IsZero() {
		wait = min(wait, r.nextGrants.Sub(now))
	}
	return max(0, wait)
}
