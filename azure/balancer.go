package azure

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v7"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

var poolID = regexp.MustCompile(`(?i)^/subscriptions/([^/]+)/resourceGroups/([^/]+)/providers/Microsoft\.Network/loadBalancers/([^/]+)/backendAddressPools/([^/]+)$`)

var nicConfigurationID = regexp.MustCompile(`(?i)^(/subscriptions/([^/]+)/resourceGroups/([^/]+)/providers/Microsoft\.Network/networkInterfaces/([^/]+))/ipConfigurations/[^/]+$`)

// nicWidth is how many interfaces are changed at a time.
const nicWidth = 16

// A pool is a backend address pool of a load balancer.
type pool struct{ id, group, balancer, name string }

func (p *Provider) pool(lb nstance.LoadBalancer) (pool, error) {
	var none struct{}
	if err := provider.DecodeArgs(lb.Args, &none); err != nil {
		return pool{}, err
	}
	m := poolID.FindStringSubmatch(lb.ID)
	if m == nil || !strings.EqualFold(m[1], p.o.Subscription) {
		return pool{}, nstance.FieldError("load_balancers."+lb.Name+".id", "use the ARM ID of a backend address pool of this subscription", "%q is none", lb.ID)
	}
	return pool{lb.ID, m[2], m[3], m[4]}, nil
}

// readPool returns the IP configurations in a pool. Without the load balancer
// there is no pool.
func (p *Provider) readPool(ctx context.Context, at pool) ([]*armnetwork.InterfaceIPConfiguration, error) {
	got, err := p.pools.Get(ctx, at.group, at.balancer, at.name, nil)
	if isGone(err) || parentGone(err) {
		return nil, nstance.Errorf(nstance.NotFound, "no backend address pool %s", at.id)
	}
	if err != nil {
		return nil, readError(err)
	}
	if got.Properties == nil {
		return nil, nil
	}
	return got.Properties.BackendIPConfigurations, nil
}

func parentGone(err error) bool {
	e, ok := errors.AsType[*azcore.ResponseError](err)
	return ok && answerOf(e).Code == "ParentResourceNotFound"
}

// BalancerMembers implements [nstance.Balancer]. What is in the pool and is no
// interface of this resource group is named by its interface.
func (p *Provider) BalancerMembers(ctx context.Context, lb nstance.LoadBalancer) ([]string, error) {
	at, err := p.pool(lb)
	if err != nil {
		return nil, err
	}
	configurations, err := p.readPool(ctx, at)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, c := range configurations {
		m := nicConfigurationID.FindStringSubmatch(deref(c.ID))
		switch {
		case m == nil:
			out = append(out, deref(c.ID))
		case strings.EqualFold(m[2], p.o.Subscription) && strings.EqualFold(m[3], p.o.ResourceGroup):
			out = append(out, p.o.handle(strings.ToLower(m[4])))
		default:
			out = append(out, m[1])
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// JoinBalancer implements [nstance.Balancer]: membership is written in each
// machine's interface.
func (p *Provider) JoinBalancer(ctx context.Context, lb nstance.LoadBalancer, machines []nstance.Machine) error {
	errs, err := p.eachNIC(ctx, lb, machines, joinPool)
	if err != nil {
		return err
	}
	return errors.Join(errs...)
}

// LeaveBalancer implements [nstance.Balancer].
func (p *Provider) LeaveBalancer(ctx context.Context, lb nstance.LoadBalancer, machines []nstance.Machine) error {
	errs, err := p.eachNIC(ctx, lb, machines, leavePool)
	if err != nil {
		return err
	}
	for i := range errs {
		if nstance.CodeOf(errs[i]) == nstance.NotFound {
			errs[i] = nil
		}
	}
	return errors.Join(errs...)
}

// eachNIC changes the interfaces of machines, several at a time, for a pool that
// exists.
func (p *Provider) eachNIC(ctx context.Context, lb nstance.LoadBalancer, machines []nstance.Machine, change func(*armnetwork.Interface, string) (bool, error)) ([]error, error) {
	at, err := p.pool(lb)
	if err != nil {
		return nil, err
	}
	if _, err := p.readPool(ctx, at); err != nil {
		return nil, err
	}
	var wg sync.WaitGroup
	errs := make([]error, len(machines))
	width := make(chan struct{}, nicWidth)
	for i, m := range machines {
		wg.Go(func() {
			width <- struct{}{}
			defer func() { <-width }()
			errs[i] = p.changeNIC(ctx, p.o.ResourceGroup, string(m.ID), func(n *armnetwork.Interface) (bool, error) {
				if err := checkMarks("network interface "+string(m.ID), n.Tags, m); err != nil {
					return false, err
				}
				return change(n, at.id)
			})
		})
	}
	wg.Wait()
	return errs, nil
}

// joinPool puts the primary configuration of an interface into a pool.
func joinPool(n *armnetwork.Interface, id string) (bool, error) {
	for _, c := range configurations(n) {
		if !deref(c.Properties.Primary) && len(n.Properties.IPConfigurations) > 1 {
			continue
		}
		if slices.ContainsFunc(c.Properties.LoadBalancerBackendAddressPools, samePool(id)) {
			return false, nil
		}
		c.Properties.LoadBalancerBackendAddressPools = append(c.Properties.LoadBalancerBackendAddressPools, &armnetwork.BackendAddressPool{ID: &id})
		return true, nil
	}
	return false, nstance.Errorf(nstance.Invalid, "network interface %s has no primary IP configuration", deref(n.Name))
}

// leavePool takes every configuration of an interface out of a pool.
func leavePool(n *armnetwork.Interface, id string) (bool, error) {
	changed := false
	for _, c := range configurations(n) {
		pools := c.Properties.LoadBalancerBackendAddressPools
		left := slices.DeleteFunc(slices.Clone(pools), samePool(id))
		changed = changed || len(left) < len(pools)
		c.Properties.LoadBalancerBackendAddressPools = left
	}
	return changed, nil
}

func samePool(id string) func(*armnetwork.BackendAddressPool) bool {
	return func(p *armnetwork.BackendAddressPool) bool { return strings.EqualFold(deref(p.ID), id) }
}

// configurations returns the IP configurations of an interface that say something.
func configurations(n *armnetwork.Interface) (out []*armnetwork.InterfaceIPConfiguration) {
	if n.Properties == nil {
		return nil
	}
	for _, c := range n.Properties.IPConfigurations {
		if c.Properties != nil {
			out = append(out, c)
		}
	}
	return out
}
