package reconcile

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
)

const (
	// countEvery is how old the count of free addresses may become while
	// machines are made.
	countEvery = 30 * time.Second
	// countFor is how long an old count is better than none.
	countFor = 10 * time.Minute
	// firstCount is how long a term waits for its first count.
	firstCount = 2 * time.Second
)

// A census of subnets knows how many addresses are free in each, less those that
// were chosen since. It needs the reconciler's lock.
type subnetCensus struct {
	free map[string]int
	at   time.Time     // when it was asked for
	wake chan struct{} // has room for one: it is old, and in use
}

// order returns subnets with those first that have the most free addresses;
// equals, and those of which nothing is known, as they are configured. Full ones
// come last: something may have been freed since.
func (c *subnetCensus) order(subnets []string, now time.Time) []string {
	if len(subnets) < 2 {
		return subnets
	}
	if now.Sub(c.at) > countEvery {
		c.ask()
	}
	if now.Sub(c.at) > countFor {
		return subnets
	}
	full := c.full(now)
	rank := func(s string) int {
		_, known := c.free[s]
		switch {
		case full(s):
			return 2
		case !known:
			return 1
		}
		return 0
	}
	return slices.SortedStableFunc(slices.Values(subnets), func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(c.free[b], c.free[a]))
	})
}

// full returns what reports whether a subnet is known to have no free address.
func (c *subnetCensus) full(now time.Time) func(subnet string) bool {
	return func(subnet string) bool {
		free, known := c.free[subnet]
		return known && free <= 0 && now.Sub(c.at) <= countFor
	}
}

// subnetsAsOf is what is known of subnets at an instant.
type subnetsAsOf struct {
	*subnetCensus
	now time.Time
}

func (c *subnetCensus) asOf(now time.Time) subnetsAsOf { return subnetsAsOf{c, now} }

// Order implements [admission.Subnets].
func (s subnetsAsOf) Order(subnets []string) []string { return s.order(subnets, s.now) }

// Full implements [admission.Subnets].
func (s subnetsAsOf) Full(subnet string) bool { return s.full(s.now)(subnet) }

func (c *subnetCensus) ask() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// reserve counts an address that a machine will take; returned, one that it will
// not after all.
func (c *subnetCensus) reserve(subnet string) { c.change(subnet, -1) }
func (c *subnetCensus) release(subnet string) { c.change(subnet, +1) }

func (c *subnetCensus) change(subnet string, by int) {
	if _, known := c.free[subnet]; known {
		c.free[subnet] += by
	}
}

// countSubnets counts again whenever an old count is used.
func (r *Reconciler) countSubnets(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.subnets.wake:
		}
		if subnets := r.usedSubnets(nil); len(subnets) > 0 {
			r.count(ctx, subnets)
			if !sleep(ctx, countEvery/2) {
				return
			}
		}
	}
}

// count asks for the free addresses of subnets. What is not answered leaves the
// old count.
func (r *Reconciler) count(ctx context.Context, subnets []string) {
	can := r.provider.Abilities().Subnets
	if can == nil || len(subnets) == 0 {
		return
	}
	began := r.opts.Now()
	free, err := can.FreeAddresses(ctx, subnets)
	if err != nil {
		r.log.Warn("free addresses not counted", "code", nstance.CodeOf(err), "err", err)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.subnets.free, r.subnets.at = maps.Clone(free), began
	for _, m := range r.members { // those that the provider may not have counted
		if m.subnet != "" && (!m.machineKnown || !m.machineSince.Before(began)) {
			r.subnets.reserve(m.subnet)
		}
	}
}

// usedSubnets returns the subnets among which some group can choose, and others,
// sorted.
func (r *Reconciler) usedSubnets(others []string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	used := map[string]bool{}
	for _, name := range others {
		used[name] = true
	}
	for _, g := range r.groups {
		if s := g.spec.Definition.Subnets; len(s) > 1 {
			for _, name := range s {
				used[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(used))
}
