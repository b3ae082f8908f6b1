package azure

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v7"

	"github.com/nstance-go/nstance"
)

// Interface describes a network interface behind the first one. It has a private address.
type Interface struct {
	Subnet        string   `json:"subnet" doc:"ARM ID of its subnet, in the same virtual network as the first interface" required:"true"`
	SecurityGroup string   `json:"network_security_group" doc:"ARM ID of its network security group"`
	Groups        []string `json:"application_security_groups" doc:"ARM IDs of its application security groups"`
	Accelerated   bool     `json:"accelerated_networking" doc:"give it direct access to the host's hardware" default:"false"`
	Forwarding    bool     `json:"ip_forwarding" doc:"let it forward packets for other addresses" default:"false"`
}

// The bounds of a machine's network ("Azure networking limits": 20 application security
// groups of one configuration; "Sizes": at most 8 interfaces).
const (
	maxInterfaces = 7
	maxGroups     = 20
)

const (
	securityGroups    = "Microsoft.Network/networkSecurityGroups"
	applicationGroups = "Microsoft.Network/applicationSecurityGroups"
)

func (r *request) checkNetwork() error {
	a := r.args
	if err := checkID("args.network_security_group", securityGroups, a.SecurityGroup); err != nil {
		return err
	}
	if err := checkGroups("args.application_security_groups", a.Groups); err != nil {
		return err
	}
	if n := len(a.Interfaces); n > maxInterfaces {
		return nstance.FieldError("args.interfaces", "use up to "+strconv.Itoa(maxInterfaces), "%d are too many beside the first one", n)
	}
	for i, n := range a.Interfaces {
		field := fmt.Sprintf("args.interfaces[%d]", i)
		m := subnetID.FindStringSubmatch(n.Subnet)
		switch {
		case m == nil || m[4] != "":
			return nstance.FieldError(field+".subnet", "use its ARM ID: /subscriptions/…/virtualNetworks/…/subnets/…", "%q is no ID of a subnet", n.Subnet)
		case !strings.EqualFold(networkOf(n.Subnet), networkOf(r.subnet)):
			return nstance.FieldError(field+".subnet", "use a subnet of the virtual network in subnet_pool", "the interfaces of a machine are in one virtual network")
		}
		if err := checkID(field+".network_security_group", securityGroups, n.SecurityGroup); err != nil {
			return err
		}
		if err := checkGroups(field+".application_security_groups", n.Groups); err != nil {
			return err
		}
	}
	if a.PublicIPv6 && !a.IPv6 {
		return nstance.FieldError("args.public_ipv6", "set args.ipv6", "a public IPv6 address belongs to a private one")
	}
	return nil
}

func networkOf(subnet string) string {
	before, _, _ := strings.Cut(strings.ToLower(subnet), "/subnets/")
	return before
}

func checkGroups(field string, ids []string) error {
	if len(ids) > maxGroups {
		return nstance.FieldError(field, "use up to "+strconv.Itoa(maxGroups), "%d are too many", len(ids))
	}
	for i, id := range ids {
		at := fmt.Sprintf("%s[%d]", field, i)
		if id == "" {
			return nstance.FieldError(at, "use an ARM ID", "is empty")
		}
		if err := checkID(at, applicationGroups, id); err != nil {
			return err
		}
	}
	return nil
}

// nic is interface i of the machine; 0 is the first, which names the parts.
func (r *request) nic(i int) armnetwork.Interface {
	first := Interface{r.subnet, r.args.SecurityGroup, r.args.Groups, r.args.Accelerated, r.args.Forwarding}
	if i == 0 {
		out := r.nicOf(first, r.args.IPv6)
		if all := r.parts(); all.any() {
			out.Tags[tagParts] = new(all.String())
		}
		return out
	}
	return r.nicOf(r.args.Interfaces[i-1], false)
}

// nicName is the name of interface i of a machine; 0 is the first.
func nicName(id string, i int) string {
	if i == 0 {
		return id
	}
	return fmt.Sprintf("%s-nic-%d", id, i)
}

// The names of an interface's IP configurations.
const (
	primaryConfiguration = "primary"
	ipv6Configuration    = "ipv6"
)

func (r *request) nicOf(n Interface, ipv6 bool) armnetwork.Interface {
	p := &armnetwork.InterfacePropertiesFormat{
		EnableAcceleratedNetworking: &n.Accelerated, EnableIPForwarding: &n.Forwarding,
		IPConfigurations: []*armnetwork.InterfaceIPConfiguration{n.configuration(primaryConfiguration, armnetwork.IPVersionIPv4)},
	}
	if ipv6 {
		p.IPConfigurations = append(p.IPConfigurations, n.configuration(ipv6Configuration, armnetwork.IPVersionIPv6))
	}
	if n.SecurityGroup != "" {
		p.NetworkSecurityGroup = &armnetwork.SecurityGroup{ID: new(n.SecurityGroup)}
	}
	return armnetwork.Interface{Location: new(r.o.Location), Tags: r.tags(), Properties: p}
}

// configuration is one address of an interface. IPv6 is never the primary one ("IPv6 for
// Azure virtual networks").
func (n Interface) configuration(name string, version armnetwork.IPVersion) *armnetwork.InterfaceIPConfiguration {
	p := &armnetwork.InterfaceIPConfigurationPropertiesFormat{
		Primary: new(name == primaryConfiguration), Subnet: &armnetwork.Subnet{ID: new(n.Subnet)},
		PrivateIPAllocationMethod: new(armnetwork.IPAllocationMethodDynamic), PrivateIPAddressVersion: &version,
	}
	for _, id := range n.Groups {
		p.ApplicationSecurityGroups = append(p.ApplicationSecurityGroups, &armnetwork.ApplicationSecurityGroup{ID: new(id)})
	}
	return &armnetwork.InterfaceIPConfiguration{Name: &name, Properties: p}
}

// The two public addresses that a machine can have, by the configuration of its first
// interface that they belong to.
type publicIP struct {
	configuration string
	version       armnetwork.IPVersion
}

var (
	publicIPv4 = publicIP{primaryConfiguration, armnetwork.IPVersionIPv4}
	publicIPv6 = publicIP{ipv6Configuration, armnetwork.IPVersionIPv6}
)

func (a publicIP) name(id string) string { return id + "-" + strings.ToLower(string(a.version)) }

func (p parts) addresses() (out []publicIP) {
	if p.ipv4 {
		out = append(out, publicIPv4)
	}
	if p.ipv6 {
		out = append(out, publicIPv6)
	}
	return out
}

func (o Options) publicID(name string) string {
	return "/subscriptions/" + o.Subscription + "/resourceGroups/" + o.ResourceGroup + "/providers/Microsoft.Network/publicIPAddresses/" + name
}

// ensurePublicIP makes a public address unless it is there, waits until interfaces can
// have it, and returns it.
func (p *Provider) ensurePublicIP(ctx context.Context, r *request, a publicIP) (string, error) {
	name := a.name(string(r.spec.ID))
	var address string
	err := p.ensure(ctx, r, part{
		what: "public address " + name,
		get: func(ctx context.Context) (shownPart, error) {
			got, err := p.publics.Get(ctx, p.o.ResourceGroup, name, nil)
			if err != nil || got.Properties == nil {
				return shownPart{tags: got.Tags}, err
			}
			address = deref(got.Properties.IPAddress)
			return shownPart{tags: got.Tags, state: string(deref(got.Properties.ProvisioningState)), other: r.otherPublicIP(&got.PublicIPAddress)}, nil
		},
		put: func(ctx context.Context) (operation, error) {
			return p.publics.BeginCreateOrUpdate(ctx, p.o.ResourceGroup, name, r.publicIP(a), nil)
		},
		remove: func(ctx context.Context) error {
			if err := p.releaseAddresses(ctx, string(r.spec.ID)); err != nil {
				return err
			}
			_, err := p.deletePublicIP(ctx, name, r.machine())
			return err
		},
	})
	return address, err
}

// otherPublicIP says in which zone a public address is, unless the machine can have it. One
// that shows several zones is in all of them.
func (r *request) otherPublicIP(a *armnetwork.PublicIPAddress) string {
	if len(a.Zones) != 1 || r.zone == "" || deref(a.Zones[0]) == r.zone {
		return ""
	}
	return fmt.Sprintf("it is in zone %q", deref(a.Zones[0]))
}

// publicIP is a public address, as it is put. Addresses of the kind Standard are static
// ("Public IP addresses in Azure").
func (r *request) publicIP(a publicIP) armnetwork.PublicIPAddress {
	return armnetwork.PublicIPAddress{
		Location: new(r.o.Location), Tags: r.tags(), SKU: &armnetwork.PublicIPAddressSKU{Name: new(armnetwork.PublicIPAddressSKUNameStandard)},
		Properties: &armnetwork.PublicIPAddressPropertiesFormat{PublicIPAddressVersion: &a.version, PublicIPAllocationMethod: new(armnetwork.IPAllocationMethodStatic)},
	}
}

// bindAddresses gives the public addresses to the configurations of the first interface.
func (p *Provider) bindAddresses(ctx context.Context, r *request) error {
	name := string(r.spec.ID)
	err := p.changeNIC(ctx, p.o.ResourceGroup, name, func(n *armnetwork.Interface) (bool, error) {
		changed := false
		for _, a := range r.parts().addresses() {
			for _, c := range configurations(n) {
				if deref(c.Name) == a.configuration && c.Properties.PublicIPAddress == nil {
					c.Properties.PublicIPAddress = &armnetwork.PublicIPAddress{ID: new(p.o.publicID(a.name(name)))}
					changed = true
				}
			}
		}
		return changed, nil
	})
	if err != nil {
		return createError(before(err))
	}
	return nil
}

// releaseAddresses takes the public addresses from an interface, which would keep them from
// being deleted.
func (p *Provider) releaseAddresses(ctx context.Context, name string) error {
	err := p.changeNIC(ctx, p.o.ResourceGroup, name, func(n *armnetwork.Interface) (bool, error) {
		changed := false
		for _, c := range configurations(n) {
			changed = changed || c.Properties.PublicIPAddress != nil
			c.Properties.PublicIPAddress = nil
		}
		return changed, nil
	})
	if err != nil && nstance.CodeOf(err) != nstance.NotFound { // Azure has deleted the interface meanwhile
		return deleteError(err)
	}
	return nil
}

func (p *Provider) deletePublicIP(ctx context.Context, name string, m nstance.Machine) (bool, error) {
	got, err := p.publics.Get(ctx, p.o.ResourceGroup, name, nil)
	if err != nil {
		return false, unlessGone(err)
	}
	if err := checkMarks("public address "+name, got.Tags, m); err != nil {
		return true, err
	}
	if got.Properties != nil && deref(got.Properties.ProvisioningState) == armnetwork.ProvisioningStateDeleting {
		return true, nil
	}
	_, err = p.publics.BeginDelete(ctx, p.o.ResourceGroup, name, nil)
	return true, unlessGone(err)
}
