package reconcile

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
)

const (
	// gather is how long changes are collected before load balancers are
	// called, so that a storm is a few batches.
	gather = 100 * time.Millisecond
	// firstRebalance and lastRebalance are the waits before another attempt at
	// a load balancer that failed.
	firstRebalance = time.Second
	lastRebalance  = time.Minute
	// balancersAtOnce is how many load balancers are worked at.
	balancersAtOnce = 8
)

// balanceLoads keeps the members of load balancers as they should be until ctx
// ends, each load balancer by itself: one that does not answer delays no other.
func (r *Reconciler) balanceLoads(ctx context.Context) {
	can := r.provider.Abilities().Balancers
	if can == nil {
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, balancersAtOnce)
	next := time.Hour
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-r.balancers.wake:
			sleep(ctx, gather)
		case <-time.After(next):
		}
		var due []*balancer
		due, next = r.dueBalancers()
		for _, b := range due {
			wg.Go(func() {
				select {
				case slots <- struct{}{}:
					r.settle(ctx, can, b)
					<-slots
				case <-ctx.Done():
				}
			})
		}
	}
}

// dueBalancers takes those that are to be worked at now, and says how long the
// others can wait.
func (r *Reconciler) dueBalancers() (due []*balancer, next time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.opts.Now()
	next = time.Hour
	if !r.loaded { // begin looks at all of them
		return nil, next
	}
	for name, b := range r.balancers.by {
		switch wait := b.retryAt.Sub(now); {
		case b.busy:
		case !b.retired.IsZero() && now.Sub(b.retired) > retireWithin && !r.detained(b):
			r.log.Warn("machines may be left in a load balancer that is not configured any more", "load_balancer", b.lb.ID, "err", b.trouble)
			delete(r.balancers.by, name)
		case !b.dirty:
		case wait > 0:
			next = min(next, wait)
		default:
			b.busy = true
			due = append(due, b)
		}
	}
	return due, next
}

// settle brings one load balancer up to date, or notes what stands in the way.
func (r *Reconciler) settle(ctx context.Context, can nstance.Balancer, b *balancer) {
	var err error
	for again := true; again && err == nil && ctx.Err() == nil; {
		again, err = r.settleOnce(ctx, can, b)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	b.busy = false
	switch {
	case ctx.Err() != nil:
	case err != nil:
		r.putOff(b, err)
	default:
		b.attempts, b.retryAt, b.trouble = 0, time.Time{}, nil
		r.retire(b)
	}
	r.balancers.signal() // for what has become dirty meanwhile, and the time of the next attempt
}

// putOff notes why b is not up to date, and when to try again. It needs the
// lock.
func (r *Reconciler) putOff(b *balancer, err error) {
	now := r.opts.Now()
	if b.trouble == nil {
		b.since = now
	}
	if b.trouble == nil || b.trouble.Error() != err.Error() {
		r.log.Warn("load balancer not up to date, will be tried again", "load_balancer", b.lb.Name, "code", nstance.CodeOf(err), "err", err)
	}
	b.trouble, b.dirty, b.whole = err, true, true
	b.retryAt = now.Add(min(firstRebalance<<min(b.attempts, 6), lastRebalance))
	b.attempts++
}

// retire forgets a load balancer that is not configured any more, once nobody is
// left in it. It needs the lock.
func (r *Reconciler) retire(b *balancer) {
	if b.retired.IsZero() || r.detained(b) {
		return
	}
	for name, o := range r.balancers.by {
		if o == b {
			delete(r.balancers.by, name)
		}
	}
}

// settleOnce lists b's members if they are not known, and makes one round of
// changes. It reports whether there was another change meanwhile.
func (r *Reconciler) settleOnce(ctx context.Context, can nstance.Balancer, b *balancer) (again bool, err error) {
	missing, err := r.listBalancer(ctx, can, b)
	if err != nil {
		return false, err
	}
	s := r.begun(b)
	if missing != nil {
		s.join = nil
	}
	err = errors.Join(
		r.inBatches(s.leave, func(some []nstance.Machine) error {
			err := can.LeaveBalancer(ctx, b.lb, some)
			r.shifted(b, some, false, err)
			return err
		}),
		r.inBatches(s.join, func(some []nstance.Machine) error {
			err := can.JoinBalancer(ctx, b.lb, some)
			r.shifted(b, some, true, err)
			return err
		}))
	r.mu.Lock()
	defer r.mu.Unlock()
	b.joining = nil
	if b.retired.IsZero() {
		err = errors.Join(missing, err)
	}
	return b.dirty, err
}

// listBalancer asks who is in b, if that is not known well enough. One that
// does not exist has no members, which is told apart from an error: nobody has
// to be withdrawn from it.
func (r *Reconciler) listBalancer(ctx context.Context, can nstance.Balancer, b *balancer) (missing, err error) {
	r.mu.Lock()
	known := b.members != nil && !b.relist
	r.mu.Unlock()
	if known {
		return nil, nil
	}
	ids, err := can.BalancerMembers(ctx, b.lb)
	if errors.Is(err, nstance.NotFound) {
		missing, err = err, nil
	}
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	b.relist = missing != nil // it may be made
	b.members = make(map[string]bool, len(ids))
	for _, id := range ids {
		b.members[id] = true
	}
	return missing, nil
}

// begun takes what is to be done. Whoever is about to join counts as a member
// until the answer is there.
func (r *Reconciler) begun(b *balancer) shift {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.shift(b)
	b.dirty, b.whole = false, false
	b.joining = map[string]bool{}
	for _, m := range s.join {
		b.joining[m.ProviderID] = true
	}
	return s
}

// shifted takes the end of one call. After an error the list is to be read
// again; until then whoever may have joined counts as a member.
func (r *Reconciler) shifted(b *balancer, machines []nstance.Machine, in bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b.relist = b.relist || err != nil
	if err != nil && !in {
		return
	}
	for _, m := range machines {
		if in {
			b.members[m.ProviderID] = true
		} else {
			delete(b.members, m.ProviderID)
			delete(b.left, m.ProviderID)
		}
	}
	if !in {
		r.letGo(machines)
	}
}

// inBatches makes calls about some machines each. A batch that is refused for
// one of them is taken apart, so that it keeps none of the others.
func (r *Reconciler) inBatches(machines []nstance.Machine, call func([]nstance.Machine) error) error {
	var first error
	for some := range slices.Chunk(machines, nstance.MaxBalancerBatch) {
		if err := r.opts.Check(); err != nil {
			return err
		}
		err := call(some)
		if len(some) > 1 && (errors.Is(err, nstance.NotFound) || errors.Is(err, nstance.Invalid)) {
			err = r.oneByOne(some, call)
		}
		if err != nil && first == nil {
			first = err
		}
	}
	return first
}

// oneByOne makes a call for each machine, and asks the provider how those are
// that it refuses.
func (r *Reconciler) oneByOne(machines []nstance.Machine, call func([]nstance.Machine) error) error {
	var first error
	for i, m := range machines {
		if err := r.opts.Check(); err != nil {
			return err
		}
		err := call(machines[i : i+1])
		if errors.Is(err, nstance.NotFound) {
			r.asks.add(m.ID)
		}
		if err != nil && first == nil {
			first = err
		}
	}
	return first
}
