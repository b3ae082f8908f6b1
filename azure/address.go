package azure

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v7"

	"github.com/nstance-go/nstance"
)

// TakeAddress implements [nstance.AddressMover]: the address becomes a secondary IP
// configuration of this server's network interface. Azure cannot move one: it is
// taken from the interface that has it, and in a second write given to this one;
// in between nothing has it. Interfaces are looked for in the resource group of
// this server's. The guest must have the address configured as well.
func (p *Provider) TakeAddress(ctx context.Context, address string) error {
	at, err := p.mover(ctx, address)
	if err != nil || at.held {
		return err
	}
	holder, err := p.holder(ctx, at)
	if err != nil {
		return err
	}
	if holder != "" {
		if err := p.changeNIC(ctx, at.group, holder, at.drop); err != nil && nstance.CodeOf(err) != nstance.NotFound {
			return moved(err)
		}
	}
	return moved(p.changeNIC(ctx, at.group, at.name, at.add))
}

// HoldsAddress implements [nstance.AddressMover].
func (p *Provider) HoldsAddress(ctx context.Context, address string) (bool, error) {
	at, err := p.mover(ctx, address)
	if err != nil {
		return false, err
	}
	return at.held, nil
}

// moved says what a write without an answer leaves open.
func moved(err error) error {
	switch {
	case err == nil:
		return nil
	case nstance.CodeOf(err) == nstance.NotFound: // the server's own interface
		return nstance.Errorf(nstance.Unavailable, "this server's network interface: %w", err)
	}
	return err
}

// A move is one address and this server's interface.
type move struct {
	address     netip.Addr
	group, name string
	subnet      string // that the address is in
	held        bool   // by this server already
}

// mover looks at this server's interface. An address outside its subnet does not
// exist here.
func (p *Provider) mover(ctx context.Context, address string) (move, error) {
	a, err := netip.ParseAddr(address)
	if err != nil || !a.Is4() {
		return move{}, nstance.FieldError("address", "use an IPv4 address of this server's subnet", "%.64q is not an IPv4 address", address)
	}
	m := nicID.FindStringSubmatch(p.o.Interface)
	if m == nil {
		return move{}, nstance.FieldError("options.network_interface", "give the ARM ID of this server's network interface", "is not set: the address cannot move")
	}
	at := move{address: a, group: m[1], name: m[2]}
	got, err := p.nics.Get(ctx, at.group, at.name, nil)
	if isGone(err) {
		return at, nstance.FieldError("options.network_interface", "give the ARM ID of this server's network interface", "%s does not exist", p.o.Interface)
	}
	if err != nil {
		return at, readError(err)
	}
	for _, c := range configurations(&got.Interface) {
		at.held = at.held || deref(c.Properties.PrivateIPAddress) == a.String()
		if at.subnet == "" && c.Properties.Subnet != nil {
			at.subnet = deref(c.Properties.Subnet.ID)
		}
	}
	if at.held {
		return at, nil
	}
	return at, p.checkPrefix(ctx, at)
}

// checkPrefix refuses an address that is not in the subnet.
func (p *Provider) checkPrefix(ctx context.Context, at move) error {
	m := subnetParts.FindStringSubmatch(at.subnet)
	if m == nil {
		return nstance.Errorf(nstance.Unavailable, "network interface %s shows no subnet", at.name)
	}
	got, err := p.subnets.Get(ctx, m[1], m[2], m[3], nil)
	if err != nil {
		return moved(readError(err))
	}
	prefixes := []*string{}
	if got.Properties != nil {
		prefixes = append(got.Properties.AddressPrefixes, got.Properties.AddressPrefix)
	}
	for _, text := range prefixes {
		if prefix, err := netip.ParsePrefix(deref(text)); err == nil && prefix.Contains(at.address) {
			return nil
		}
	}
	return nstance.Errorf(nstance.NotFound, "%s is not an address of subnet %s", at.address, at.subnet)
}

// holder returns the interface that has the address; "": none.
func (p *Provider) holder(ctx context.Context, at move) (string, error) {
	pager, last := p.nics.NewListPager(at.group, nil), ""
	for pager.More() {
		page, err := pager.NextPage(ctx)
		if err == nil {
			err = checkPage(page.Value, deref(page.NextLink), last)
		}
		if err != nil {
			return "", readError(err)
		}
		last = deref(page.NextLink)
		for _, n := range page.Value {
			if strings.EqualFold(deref(n.Name), at.name) || !slices.ContainsFunc(configurations(n), at.isIt) {
				continue
			}
			return deref(n.Name), nil
		}
	}
	return "", nil
}

func (m move) isIt(c *armnetwork.InterfaceIPConfiguration) bool {
	return c.Properties != nil && deref(c.Properties.PrivateIPAddress) == m.address.String()
}

// drop takes the address from an interface. A primary one belongs to its machine.
func (m move) drop(n *armnetwork.Interface) (bool, error) {
	for _, c := range configurations(n) {
		if m.isIt(c) && deref(c.Properties.Primary) {
			return false, nstance.FieldError("address", "use an address that no machine has of its own", "%s is the primary address of network interface %s", m.address, deref(n.Name))
		}
	}
	left := slices.DeleteFunc(slices.Clone(n.Properties.IPConfigurations), m.isIt)
	changed := len(left) < len(n.Properties.IPConfigurations)
	n.Properties.IPConfigurations = left
	return changed, nil
}

// add gives the address to this server's interface.
func (m move) add(n *armnetwork.Interface) (bool, error) {
	if slices.ContainsFunc(configurations(n), m.isIt) {
		return false, nil
	}
	if n.Properties == nil {
		return false, nstance.Errorf(nstance.Unavailable, "Azure shows nothing of network interface %s", m.name)
	}
	n.Properties.IPConfigurations = append(n.Properties.IPConfigurations, &armnetwork.InterfaceIPConfiguration{
		Name: new("leader-" + strings.ReplaceAll(m.address.String(), ".", "-")),
		Properties: &armnetwork.InterfaceIPConfigurationPropertiesFormat{
			Primary: new(false), Subnet: &armnetwork.Subnet{ID: new(m.subnet)},
			PrivateIPAddress: new(m.address.String()), PrivateIPAllocationMethod: new(armnetwork.IPAllocationMethodStatic),
		},
	})
	return true, nil
}
