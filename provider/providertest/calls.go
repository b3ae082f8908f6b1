package providertest

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/conformance"
	"github.com/nstance-go/nstance/provider"
)

// recorded is a provider whose calls are bounded and recorded.
type recorded struct {
	provider nstance.Provider
	calls    *conformance.Calls
}

// A described machine is a machine in the words of a failure.
type described nstance.Machine

func (m described) String() string {
	if m.ID == "" && m.ProviderID == "" {
		return "no machine"
	}
	return fmt.Sprintf("%s machine %q (group %q, status %q)", m.ID, m.ProviderID, m.Group, m.Status)
}

func ownerWords(o nstance.Owner) string {
	return fmt.Sprintf("installation %q, cluster %q, shard %q, tenant %q", o.Installation, o.Cluster, o.Shard, o.Tenant)
}

func machineWords(m nstance.Machine) string {
	return fmt.Sprintf("%s %s, provider ID %q", m.Group, m.ID, m.ProviderID)
}

// Create repeats a spec whose Create was ambiguous once, as the callers of a provider do.
func (r recorded) Create(ctx context.Context, s nstance.MachineSpec) (nstance.Machine, error) {
	m, err := r.createOnce(ctx, s)
	if errors.Is(err, nstance.Ambiguous) && ctx.Err() == nil {
		return r.createOnce(ctx, s)
	}
	return m, err
}

func (r recorded) createOnce(ctx context.Context, s nstance.MachineSpec) (nstance.Machine, error) {
	m, err := conformance.Call(ctx, r.calls, fmt.Sprintf("Create(%s %s)", s.Group, s.ID), func(ctx context.Context) (described, error) {
		m, err := r.provider.Create(ctx, s)
		return described(m), err
	})
	return nstance.Machine(m), err
}

func (r recorded) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	m, err := conformance.Call(ctx, r.calls, fmt.Sprintf("Get(%s)", id), func(ctx context.Context) (described, error) {
		m, err := r.provider.Get(ctx, id)
		if err == nil && m.ID != id {
			err = nstance.Errorf(nstance.Internal, "Get(%s) answered another machine: %s", id, described(m))
		}
		return described(m), err
	})
	return nstance.Machine(m), err
}

func (r recorded) List(ctx context.Context, o nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return conformance.Sequence(ctx, r.calls, "List("+ownerWords(o)+")", func(ctx context.Context) iter.Seq2[nstance.Machine, error] {
		return r.provider.List(ctx, o)
	})
}

func (r recorded) Delete(ctx context.Context, m nstance.Machine) error {
	return r.act(ctx, "Delete("+machineWords(m)+")", func(ctx context.Context) error { return r.provider.Delete(ctx, m) })
}

// act makes a call that returns only an error.
func (r recorded) act(ctx context.Context, name string, do func(context.Context) error) error {
	_, err := conformance.Call(ctx, r.calls, name, func(ctx context.Context) (conformance.None, error) { return conformance.None{}, do(ctx) })
	return err
}

// recordedMover is a mover whose calls are bounded and recorded, as made by machine.
type recordedMover struct {
	recorded
	mover   nstance.AddressMover
	machine string
}

func (r recordedMover) TakeAddress(ctx context.Context, address string) error {
	return r.act(ctx, fmt.Sprintf("TakeAddress(%q) of %s", address, r.machine), func(ctx context.Context) error { return r.mover.TakeAddress(ctx, address) })
}

func (r recordedMover) HoldsAddress(ctx context.Context, address string) (bool, error) {
	return conformance.Call(ctx, r.calls, fmt.Sprintf("HoldsAddress(%q) of %s", address, r.machine), func(ctx context.Context) (bool, error) {
		return r.mover.HoldsAddress(ctx, address)
	})
}

// recordedAbilities has the abilities of a provider, each call bounded and recorded.
// Only those that the provider has may be called.
type recordedAbilities struct {
	recorded
	can provider.Abilities
}

// recordAbilities returns the abilities of r's provider.
func recordAbilities(r recorded) provider.Abilities {
	can := provider.AbilitiesOf(r.provider)
	all := recordedAbilities{r, can}
	if can.Account != nil {
		can.Account = all
	}
	if can.Images != nil {
		can.Images = all
	}
	if can.Subnets != nil {
		can.Subnets = all
	}
	if can.Types != nil {
		can.Types = all
	}
	if can.Prices != nil {
		can.Prices = all
	}
	if can.Parking != nil {
		can.Parking = all
	}
	if can.Balancers != nil {
		can.Balancers = all
	}
	return can
}

func (r recordedAbilities) Account(ctx context.Context) (string, error) {
	return conformance.Call(ctx, r.calls, "Account()", r.can.Account.Account)
}

func (r recordedAbilities) ResolveImage(ctx context.Context, q nstance.ImageQuery) (string, error) {
	return conformance.Call(ctx, r.calls, fmt.Sprintf("ResolveImage(%+v)", q), func(ctx context.Context) (string, error) {
		return r.can.Images.ResolveImage(ctx, q)
	})
}

func (r recordedAbilities) FreeAddresses(ctx context.Context, subnets []string) (map[string]int, error) {
	return conformance.Call(ctx, r.calls, fmt.Sprintf("FreeAddresses(%q)", subnets), func(ctx context.Context) (map[string]int, error) {
		return r.can.Subnets.FreeAddresses(ctx, subnets)
	})
}

func (r recordedAbilities) TypeArchs(ctx context.Context, names []string) (map[string][]nstance.Arch, error) {
	return conformance.Call(ctx, r.calls, fmt.Sprintf("TypeArchs(%q)", names), func(ctx context.Context) (map[string][]nstance.Arch, error) {
		return r.can.Types.TypeArchs(ctx, names)
	})
}

func (r recordedAbilities) Prices(ctx context.Context, names []string) ([]nstance.Price, error) {
	return conformance.Call(ctx, r.calls, fmt.Sprintf("Prices(%q)", names), func(ctx context.Context) ([]nstance.Price, error) {
		return r.can.Prices.Prices(ctx, names)
	})
}

func (r recordedAbilities) BalancerMembers(ctx context.Context, lb nstance.LoadBalancer) ([]string, error) {
	return conformance.Call(ctx, r.calls, fmt.Sprintf("BalancerMembers(%s)", lb.ID), func(ctx context.Context) ([]string, error) {
		return r.can.Balancers.BalancerMembers(ctx, lb)
	})
}

func (r recordedAbilities) JoinBalancer(ctx context.Context, lb nstance.LoadBalancer, machines []nstance.Machine) error {
	return r.act(ctx, fmt.Sprintf("JoinBalancer(%s, %s)", lb.ID, providerIDs(machines)), func(ctx context.Context) error {
		return r.can.Balancers.JoinBalancer(ctx, lb, machines)
	})
}

func (r recordedAbilities) LeaveBalancer(ctx context.Context, lb nstance.LoadBalancer, machines []nstance.Machine) error {
	return r.act(ctx, fmt.Sprintf("LeaveBalancer(%s, %s)", lb.ID, providerIDs(machines)), func(ctx context.Context) error {
		return r.can.Balancers.LeaveBalancer(ctx, lb, machines)
	})
}

func (r recordedAbilities) ParkModes() []nstance.ParkMode { return r.can.Parking.ParkModes() }

func (r recordedAbilities) Park(ctx context.Context, m nstance.Machine, mode nstance.ParkMode) error {
	return r.act(ctx, fmt.Sprintf("Park(%s, %s)", machineWords(m), mode), func(ctx context.Context) error { return r.can.Parking.Park(ctx, m, mode) })
}

func (r recordedAbilities) Wake(ctx context.Context, m nstance.Machine) error {
	return r.act(ctx, "Wake("+machineWords(m)+")", func(ctx context.Context) error { return r.can.Parking.Wake(ctx, m) })
}

func providerIDs(machines []nstance.Machine) (ids []string) {
	for _, m := range machines {
		ids = append(ids, m.ProviderID)
	}
	return ids
}
