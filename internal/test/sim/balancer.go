package sim

import (
	"context"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// leaveWithin limits how long a deletion waits for a load balancer that cannot be
// changed.
const leaveWithin = 30 * time.Second

var _ nstance.Balancer = linkedProvider{}

// balancers are the load balancers that groups may name.
var balancers = []nstance.LoadBalancer{{Name: "front", ID: "lb-1"}, {Name: "back", ID: "lb-2"}}

// balancersOf returns the load balancers of a group.
func balancersOf(key nstance.GroupKey) []string {
	if key == web {
		return []string{"front"}
	}
	return []string{"back"}
}

// BalancerMembers implements [nstance.Balancer].
func (p linkedProvider) BalancerMembers(ctx context.Context, lb nstance.LoadBalancer) (ids []string, err error) {
	lerr := p.l.carry(ctx, func() { ids, err = p.cloud.BalancerMembers(ctx, lb) })
	if lerr != nil {
		return nil, readLost(lerr)
	}
	return ids, err
}

// JoinBalancer implements [nstance.Balancer].
func (p linkedProvider) JoinBalancer(ctx context.Context, lb nstance.LoadBalancer, machines []nstance.Machine) error {
	return p.balance(ctx, "a join", func(ctx context.Context) error {
		err := p.cloud.JoinBalancer(ctx, lb, machines)
		if t, _ := p.p.last(); t.Err() != nil {
			p.c.recordLateJoins(machines)
		}
		return err
	})
}

// LeaveBalancer implements [nstance.Balancer].
func (p linkedProvider) LeaveBalancer(ctx context.Context, lb nstance.LoadBalancer, machines []nstance.Machine) error {
	return p.balance(ctx, "a leave", func(ctx context.Context) error { return p.cloud.LeaveBalancer(ctx, lb, machines) })
}

func (p linkedProvider) balance(ctx context.Context, what string, do func(context.Context) error) (err error) {
	p.c.checkTermAtSend(p.p, what)
	lerr := p.l.carry(ctx, func() {
		err = do(context.WithoutCancel(ctx))
		p.c.logTrace("%s for %s: %v", what, p.p.name, err)
	})
	if lerr != nil {
		return lerr
	}
	return err
}

// disturbBalancer makes calls for a load balancer fail, deletes and recreates it, or removes
// it from a group for a while.
func (a act) disturbBalancer() {
	key, long := a.group(), a.seconds(5, 90)
	lb := balancers[a.rng.IntN(len(balancers))].ID
	ops := []simcloud.Op{simcloud.OpMembers, simcloud.OpJoin, simcloud.OpLeave}
	lost, times := a.rng.IntN(2) == 1, 1+a.rng.IntN(5)
	switch a.rng.IntN(4) {
	case 0:
		a.cloud.SetBalancer(lb, false)
		a.sleep(long)
		a.cloud.SetBalancer(lb, true)
	case 1:
		a.setGroup(key, func(g *nstance.Group) { g.Definition.LoadBalancers = nil })
		a.sleep(long)
		a.setGroup(key, func(g *nstance.Group) { g.Definition.LoadBalancers = balancersOf(key) })
	default:
		for _, op := range ops {
			a.cloud.Inject(simcloud.Fault{Op: op, ID: nstance.InstanceID(lb), Lost: lost, Times: times})
		}
	}
}

// recordLateJoins records machines that may have joined by a call that was sent before the
// end of a term and landed after it: the next leader cannot see it.
func (c *checker) recordLateJoins(machines []nstance.Machine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range machines {
		c.joinedLate[m.ProviderID] = true
	}
}

// checkDeleteBalanced checks at the delete call of a running machine that no load balancer sends
// traffic to it, or that the time to leave is over.
func (c *checker) checkDeleteBalanced(m nstance.Machine) {
	marked := c.w.store.markedSince(m.ID)
	c.mu.Lock()
	late := c.joinedLate[m.ProviderID]
	c.mu.Unlock()
	if late || time.Since(marked) >= leaveWithin {
		return
	}
	for _, lb := range balancers {
		if slices.Contains(c.w.cloud.AttachedTo(lb.ID), m.ProviderID) {
			c.violated("balancer", "machine %s is deleted %v after its mark while load balancer %s sends traffic to it", m.ID, time.Since(marked), lb.Name)
		}
	}
}

// checkBalancers checks the members of all load balancers at the end.
func (c *checker) checkBalancers(machines []nstance.Machine) {
	for _, lb := range balancers {
		in := c.w.cloud.AttachedTo(lb.ID)
		for _, m := range machines {
			key := nstance.GroupKey{Tenant: m.Owner.Tenant, Group: m.Group}
			named := slices.Contains(c.w.currentGroup(key).Definition.LoadBalancers, lb.Name) && !c.isIdle(m.ID)
			if member := slices.Contains(in, m.ProviderID); member != named {
				c.violated("balancer", "machine %s of group %s in load balancer %s: %t, desired: %t", m.ID, key, lb.Name, member, named)
			}
		}
		if slices.ContainsFunc(in, func(id string) bool {
			return !slices.ContainsFunc(machines, func(m nstance.Machine) bool { return m.ProviderID == id })
		}) {
			c.violated("balancer", "load balancer %s has members that are gone: %v", lb.Name, in)
		}
	}
}

// drillBalancer reclaims a machine while its load balancer cannot be changed. The
// machine is deleted, but not before the time to leave is over.
func (d *driver) drillBalancer(key nstance.GroupKey) {
	for _, op := range []simcloud.Op{simcloud.OpMembers, simcloud.OpLeave} {
		d.cloud.Inject(simcloud.Fault{Op: op, ID: nstance.InstanceID(balancers[0].ID), Times: -1})
	}
	d.setGroup(key, func(g *nstance.Group) { g.DrainTimeout = drainTimeout / 6 })
	id := d.machines(key)[0].ID
	_ = d.cloud.Reclaim(id, 10*time.Minute)
	d.pass(drainTimeout/6 + leaveWithin + 2*time.Minute)
	if _, err := d.cloud.Truth(id); err == nil {
		d.check.violated("balancer", "%s cannot be deleted while its load balancer does not answer", id)
	}
	d.cloud.ClearFaults()
	d.setGroup(key, func(g *nstance.Group) { g.DrainTimeout = drainTimeout })
	d.pass(7 * time.Minute)
	d.check.checkSettled()
}
