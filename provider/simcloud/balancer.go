package simcloud

import (
	"context"
	"maps"
	"slices"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

var _ nstance.Balancer = (*Cloud)(nil)

// balancers are the load balancers of the account.
type balancers struct {
	*core
	calls   *calls
	handles map[string]*machine        // of the fleet
	members map[string]map[string]bool // by provider ID, by load balancer
	deleted []nstance.InstanceID       // while they were members
}

// BalancerMembers implements [nstance.Balancer].
func (b *balancers) BalancerMembers(ctx context.Context, lb nstance.LoadBalancer) ([]string, error) {
	return ask(ctx, b.calls, OpMembers, nstance.InstanceID(lb.ID), func() ([]string, error) {
		in, err := b.membersOf(lb)
		return slices.Sorted(maps.Keys(in)), err
	})
}

// JoinBalancer implements [nstance.Balancer].
func (b *balancers) JoinBalancer(ctx context.Context, lb nstance.LoadBalancer, machines []nstance.Machine) error {
	return b.balance(ctx, OpJoin, lb, func(in map[string]bool) error {
		for _, m := range machines {
			if b.handles[m.ProviderID] == nil {
				return nstance.Errorf(nstance.NotFound, "no machine %.64q", m.ProviderID)
			}
		}
		for _, m := range machines {
			in[m.ProviderID] = true
		}
		return nil
	})
}

// LeaveBalancer implements [nstance.Balancer].
func (b *balancers) LeaveBalancer(ctx context.Context, lb nstance.LoadBalancer, machines []nstance.Machine) error {
	return b.balance(ctx, OpLeave, lb, func(in map[string]bool) error {
		for _, m := range machines {
			delete(in, m.ProviderID)
		}
		return nil
	})
}

// balance makes a call about lb. Faults match it by the load balancer's ID, as
// Fault.ID.
func (b *balancers) balance(ctx context.Context, op Op, lb nstance.LoadBalancer, do func(in map[string]bool) error) error {
	return b.calls.call(ctx, op, nstance.InstanceID(lb.ID), func() error {
		in, err := b.membersOf(lb)
		if err != nil {
			return err
		}
		return do(in)
	})
}

// membersOf needs the lock.
func (b *balancers) membersOf(lb nstance.LoadBalancer) (map[string]bool, error) {
	if err := provider.DecodeArgs(lb.Args, &struct{}{}); err != nil {
		return nil, err
	}
	in, ok := b.members[lb.ID]
	if !ok {
		return nil, nstance.Errorf(nstance.NotFound, "no load balancer %.64q", lb.ID)
	}
	return in, nil
}

// SetBalancer adds a load balancer, unless it exists, or removes it. An existing one gets
// the members, by their provider IDs, beside those that it has, as an operator at the
// cloud's console would add them.
func (b *balancers) SetBalancer(id string, exists bool, members ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !exists {
		delete(b.members, id)
		return
	}
	if b.members[id] == nil {
		b.members[id] = map[string]bool{}
	}
	for _, member := range members {
		b.members[id][member] = true
	}
}

// AttachedTo returns the members of a load balancer as they are at this moment,
// by their provider IDs, sorted.
func (b *balancers) AttachedTo(id string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(maps.Keys(b.members[id]))
}

// DeletedWhileMember returns the machines that Delete ended while a load balancer still sent
// traffic to them, oldest first, the last thousand.
func (b *balancers) DeletedWhileMember() []nstance.InstanceID {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.deleted)
}

const maxSevered = 1000

// recordDeleted records a machine that is deleted while it is a member. It needs
// the lock.
func (b *balancers) recordDeleted(m *machine) {
	for _, in := range b.members {
		if in[m.view.ProviderID] {
			b.deleted = append(b.deleted[max(0, len(b.deleted)-maxSevered+1):], m.view.ID)
			return
		}
	}
}

// detach removes a machine that is gone from every load balancer. It needs the lock.
func (b *balancers) detach(m *machine) {
	for _, in := range b.members {
		delete(in, m.view.ProviderID)
	}
}
