package reconcile

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

const (
	// countPause is how long the provider is not asked for free addresses after an
	// answer.
	countPause = 15 * time.Second

	// firstCount is how long a term waits for its first count.
	firstCount = 2 * time.Second
)

// askAddresses has the free addresses counted again.
func (r *Reconciler) askAddresses() {
	select {
	case r.addressWake <- struct{}{}:
	default:
	}
}

// countWhenOld counts free addresses again whenever the last count is old.
func (r *Reconciler) countWhenOld(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.addressWake:
		}
		if subnets := r.usedSubnets(nil); len(subnets) > 0 {
			r.countAddresses(ctx, subnets)
			if !sleep.For(ctx, countPause) {
				return
			}
		}
	}
}

// countAddresses asks for the free addresses of subnets. What is not answered leaves the
// old count.
func (r *Reconciler) countAddresses(ctx context.Context, subnets []string) {
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
	r.admission.SetAddresses(free, began)
	for _, m := range r.members { // those that the provider may not have counted
		if m.subnet != "" && (!m.machineKnown() || !m.machineSince.Before(began)) {
			r.admission.TakeAddress(m.subnet)
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
