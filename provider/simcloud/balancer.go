package simcloud

import (
	"context"
	"maps"
	"slices"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

var _ nstance.Balancer = (*Cloud)(nil)

// BalancerMembers implements [nstance.Balancer].
func (c *Cloud) BalancerMembers(ctx context.Context, lb nstance.LoadBalancer) (members []string, err error) {
	err = c.balance(ctx, OpMembers, lb, func(in map[string]bool) error {
		members = slices.Sorted(maps.Keys(in))
		return nil
	})
	if err != nil {
		return nil, err
	}
	return members, nil
}

// JoinBalancer implements [nstance.Balancer].
func (c *Cloud) JoinBalancer(ctx context.Context, lb nstance.LoadBalancer, machines []nstance.Machine) error {
	return c.balance(ctx, OpJoin, lb, func(in map[string]bool) error {
		for _, m := range machines {
			if c.handles[m.ProviderID] == nil {
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
func (c *Cloud) LeaveBalancer(ctx context.Context, lb nstance.LoadBalancer, machines []nstance.Machine) error {
	return c.balance(ctx, OpLeave, lb, func(in map[string]bool) error {
		for _, m := range machines {
			delete(in, m.ProviderID)
		}
		return nil
	})
}

// balance makes a call about lb. Faults match it by the load balancer's ID, as
// Fault.ID.
func (c *Cloud) balance(ctx context.Context, op Op, lb nstance.LoadBalancer, do func(in map[string]bool) error) error {
	return c.call(ctx, op, nstance.InstanceID(lb.ID), func() error {
		if err := provider.DecodeArgs(lb.Args, &struct{}{}); err != nil {
			return err
		}
		in, ok := c.balancers[lb.ID]
		if !ok {
			return nstance.Errorf(nstance.NotFound, "no load balancer %.64q", lb.ID)
		}
		return do(in)
	})
}

// SetBalancer adds a load balancer, unless it exists, or removes it. An existing one gets
// the members, by their provider IDs, beside those that it has, as an operator at the
// cloud's console would add them.
func (c *Cloud) SetBalancer(id string, exists bool, members ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !exists {
		delete(c.balancers, id)
		return
	}
	if c.balancers[id] == nil {
		c.balancers[id] = map[string]bool{}
	}
	for _, member := range members {
		c.balancers[id][member] = true
	}
}

// AttachedTo returns the members of a load balancer as they are at this moment,
// by their provider IDs, sorted.
func (c *Cloud) AttachedTo(id string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.balancers[id]))
}

// DeletedWhileMember returns the machines that Delete ended while a load balancer still sent
// traffic to them, oldest first, the last thousand.
func (c *Cloud) DeletedWhileMember() []nstance.InstanceID {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.deletedMembers)
}

const maxSevered = 1000

// recordDeletedMember records a machine that is deleted while it is a member. It needs
// c.mu.
func (c *Cloud) recordDeletedMember(m *machine) {
	for _, in := range c.balancers {
		if in[m.view.ProviderID] {
			c.deletedMembers = append(c.deletedMembers[max(0, len(c.deletedMembers)-maxSevered+1):], m.view.ID)
			return
		}
	}
}

// detach removes a machine that is gone from every load balancer. It needs c.mu.
func (c *Cloud) detach(m *machine) {
	for _, in := range c.balancers {
		delete(in, m.view.ProviderID)
	}
}
