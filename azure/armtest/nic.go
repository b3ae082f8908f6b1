package armtest

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	azfake "github.com/Azure/azure-sdk-for-go/sdk/azcore/fake"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v7"
)

// A nic is one network interface. The cloud's lock guards it.
type nic struct {
	id        string
	serial    int
	model     armnetwork.Interface
	addresses []netip.Addr // of its configurations, in their order
	vm        *vm
	pending   bool      // its operation has not ended
	reserved  time.Time // until then only for the machine whose create has failed
}

func (c *Cloud) nicByID(id *string) *nic {
	n := c.nics[strings.ToLower(path.Base(deref(id)))]
	if n == nil || !strings.EqualFold(n.id, deref(id)) {
		return nil
	}
	return n
}

func (c *Cloud) nicsOf(v *vm) (out []*nic) {
	for _, ref := range v.model.Properties.NetworkProfile.NetworkInterfaces {
		if n := c.nicByID(ref.ID); n != nil {
			out = append(out, n)
		}
	}
	return out
}

// attach binds the interfaces and the disks of a new machine. It needs the lock.
func (c *Cloud) attach(v *vm) {
	for _, n := range c.nicsOf(v) {
		n.vm = v
	}
	c.attachDisks(v)
}

// detach frees them, or deletes them as their delete options say. The default is
// to keep them. It needs the lock.
func (c *Cloud) detach(v *vm, keep bool) {
	for _, ref := range v.model.Properties.NetworkProfile.NetworkInterfaces {
		n := c.nicByID(ref.ID)
		if n == nil {
			continue
		}
		n.vm = nil
		if !keep && ref.Properties != nil && deref(ref.Properties.DeleteOption) == armcompute.DeleteOptionsDelete {
			c.dropNIC(n)
		}
	}
	c.detachDisks(v, keep)
}

func (c *Cloud) dropNIC(n *nic) {
	c.freeAddresses(n)
	delete(c.nics, strings.ToLower(deref(n.model.Name)))
}

func (c *Cloud) freeAddresses(n *nic) {
	for _, a := range n.addresses {
		for _, s := range c.subnets {
			s.free(a)
		}
	}
}

func (k *call) getNIC(_ context.Context, _, name string, _ *armnetwork.InterfacesClientGetOptions) (azfake.Responder[armnetwork.InterfacesClientGetResponse], azfake.ErrorResponder) {
	k.c.mu.Lock()
	defer k.c.mu.Unlock()
	n := k.c.nics[strings.ToLower(name)]
	if n == nil {
		return found(armnetwork.InterfacesClientGetResponse{}, k.noNIC(name))
	}
	return found(armnetwork.InterfacesClientGetResponse{Interface: n.show()}, nil)
}

func (k *call) listNICs(_ string, _ *armnetwork.InterfacesClientListOptions) (p azfake.PagerResponder[armnetwork.InterfacesClientListResponse]) {
	k.c.mu.Lock()
	defer k.c.mu.Unlock()
	var all []*nic
	for _, n := range k.c.nics {
		if strings.Contains(strings.ToLower(n.id), "/resourcegroups/"+strings.ToLower(k.path["group"])+"/") {
			all = append(all, n)
		}
	}
	slices.SortFunc(all, func(a, b *nic) int { return cmp.Compare(a.serial, b.serial) })
	all, next := cut(k, all, func(n *nic) int { return n.serial })
	out := armnetwork.InterfacesClientListResponse{InterfaceListResult: armnetwork.InterfaceListResult{NextLink: next}}
	for _, n := range all {
		out.Value = append(out.Value, new(n.show()))
	}
	p.AddPage(http.StatusOK, out, nil)
	return p
}

func (k *call) noNIC(name string) *Refusal {
	return refuse(http.StatusNotFound, "ResourceNotFound",
		"The Resource 'Microsoft.Network/networkInterfaces/%s' under resource group '%s' was not found.", name, k.path["group"])
}

func (n *nic) show() armnetwork.Interface {
	out, p := n.model, *n.model.Properties
	p.ProvisioningState = new(armnetwork.ProvisioningStateSucceeded)
	if n.pending {
		p.ProvisioningState = new(armnetwork.ProvisioningStateUpdating)
	}
	if n.vm != nil {
		p.VirtualMachine = &armnetwork.SubResource{ID: new(n.vm.id)}
	}
	p.IPConfigurations = nil
	for i, config := range n.model.Properties.IPConfigurations {
		shown, q := *config, *config.Properties
		q.PrivateIPAddress = new(n.addresses[i].String())
		shown.ID, shown.Properties = new(n.id+"/ipConfigurations/"+deref(config.Name)), &q
		p.IPConfigurations = append(p.IPConfigurations, &shown)
	}
	out.Properties = &p
	return out
}

func (k *call) putNIC(_ context.Context, _, name string, m armnetwork.Interface, _ *armnetwork.InterfacesClientBeginCreateOrUpdateOptions) (azfake.PollerResponder[armnetwork.InterfacesClientCreateOrUpdateResponse], azfake.ErrorResponder) {
	var out armnetwork.Interface
	var err *Refusal
	status := http.StatusOK
	k.c.update(func() {
		old := k.c.nics[strings.ToLower(name)]
		if old == nil {
			status = http.StatusCreated
		}
		var n *nic
		if n, err = k.replaceNIC(name, m, old); err == nil {
			out = n.show()
		}
	})
	return answered(status, armnetwork.InterfacesClientCreateOrUpdateResponse{Interface: out}, err)
}

// replaceNIC makes an interface, or puts the whole of another one in its place. It
// needs the lock.
func (k *call) replaceNIC(name string, m armnetwork.Interface, old *nic) (*nic, *Refusal) {
	c := k.c
	if old != nil && k.r.Header.Get("If-None-Match") == "*" {
		return nil, refuse(http.StatusPreconditionFailed, "PreconditionFailed", "The condition '*' set on if-none-match is not satisfied.")
	}
	if err := k.checkNIC(&m, old); err != nil {
		return nil, err
	}
	n := &nic{id: fmt.Sprintf("/subscriptions/%s/resourceGroups/%s/providers/Microsoft.Network/networkInterfaces/%s", c.o.Subscription, k.path["group"], name), model: m}
	c.serial++
	n.serial = c.serial
	if old != nil {
		n.serial, n.id, n.vm, n.reserved = old.serial, old.id, old.vm, old.reserved
	}
	if err := k.assign(n, old); err != nil {
		return nil, err
	}
	n.model.ID, n.model.Name, n.model.Type = new(n.id), new(name), new("Microsoft.Network/networkInterfaces")
	c.nics[strings.ToLower(name)] = n
	op := k.begin()
	n.pending = true
	c.after(c.o.Network, func() {
		n.pending = false
		op.end(opSucceeded, nil)
	})
	return n, nil
}

func (k *call) checkNIC(m *armnetwork.Interface, old *nic) *Refusal {
	switch {
	case m.Location == nil || !strings.EqualFold(*m.Location, k.c.o.Location):
		return refuse(http.StatusBadRequest, "LocationRequired", "The location property is required for this definition.")
	case m.Properties == nil || len(m.Properties.IPConfigurations) == 0:
		return refuse(http.StatusBadRequest, "InvalidIPConfigCount", "A network interface needs at least one IP configuration.")
	case old != nil && old.pending:
		return refuse(http.StatusTooManyRequests, "RetryableErrorDueToAnotherOperation", "Another operation on this resource is in progress.")
	case old != nil && old.vm != nil && old.vm.hibernate:
		return refuse(http.StatusConflict, "OperationNotAllowed", "The network interface of a hibernated virtual machine cannot be changed.")
	}
	if err := checkTags(m.Tags); err != nil {
		return err
	}
	if g := m.Properties.NetworkSecurityGroup; g != nil {
		if !k.c.exists(deref(g.ID)) {
			return refuse(http.StatusBadRequest, "InvalidResourceReference", "Resource %s referenced by resource was not found.", deref(g.ID))
		}
		if err := k.linked(network+"networkSecurityGroups/join/action", deref(g.ID)); err != nil {
			return err
		}
	}
	for i, config := range m.Properties.IPConfigurations {
		if err := k.checkConfiguration(config); err != nil {
			return err
		}
		if err := k.checkBinding(config, old); err != nil {
			return err
		}
		if i == 0 && deref(config.Properties.PrivateIPAddressVersion) == armnetwork.IPVersionIPv6 {
			return refuse(http.StatusBadRequest, "InvalidRequestFormat", "The primary IP configuration of a network interface must be IPv4.")
		}
	}
	return nil
}

func (k *call) checkConfiguration(config *armnetwork.InterfaceIPConfiguration) *Refusal {
	if config.Name == nil || config.Properties == nil || config.Properties.Subnet == nil {
		return refuse(http.StatusBadRequest, "InvalidRequestFormat", "An IP configuration needs a name and a subnet.")
	}
	id := deref(config.Properties.Subnet.ID)
	if k.c.subnets[strings.ToLower(id)] == nil {
		return refuse(http.StatusBadRequest, "InvalidResourceReference", "Resource %s referenced by resource was not found.", id)
	}
	if err := k.linked(network+"virtualNetworks/subnets/join/action", id); err != nil {
		return err
	}
	for _, g := range config.Properties.ApplicationSecurityGroups {
		if !k.c.exists(deref(g.ID)) {
			return refuse(http.StatusBadRequest, "InvalidResourceReference", "Resource %s referenced by resource was not found.", deref(g.ID))
		}
		if err := k.linked(network+"applicationSecurityGroups/joinIpConfiguration/action", deref(g.ID)); err != nil {
			return err
		}
	}
	for _, pool := range config.Properties.LoadBalancerBackendAddressPools {
		if k.c.pools[strings.ToLower(deref(pool.ID))] == "" {
			return refuse(http.StatusBadRequest, "InvalidResourceReference", "Resource %s referenced by resource was not found.", deref(pool.ID))
		}
		if err := k.linked(network+"loadBalancers/backendAddressPools/join/action", deref(pool.ID)); err != nil {
			return err
		}
	}
	return nil
}

// assign gives the interface its addresses: a configuration keeps the one that it
// has. It needs the lock.
func (k *call) assign(n, old *nic) *Refusal {
	c := k.c
	if old != nil {
		c.freeAddresses(old)
	}
	for _, config := range n.model.Properties.IPConfigurations {
		a, err := c.pick(n, old, config)
		if err != nil {
			c.freeAddresses(n)
			if old != nil {
				c.holdAddresses(old)
			}
			return err
		}
		n.addresses = append(n.addresses, a)
		c.subnets[strings.ToLower(*config.Properties.Subnet.ID)].hold(a)
	}
	return nil
}

func (c *Cloud) holdAddresses(n *nic) {
	for i, config := range n.model.Properties.IPConfigurations {
		c.subnets[strings.ToLower(*config.Properties.Subnet.ID)].hold(n.addresses[i])
	}
}

func (c *Cloud) pick(n, old *nic, config *armnetwork.InterfaceIPConfiguration) (netip.Addr, *Refusal) {
	s := c.subnets[strings.ToLower(*config.Properties.Subnet.ID)]
	if wanted := config.Properties.PrivateIPAddress; wanted != nil && deref(config.Properties.PrivateIPAllocationMethod) == armnetwork.IPAllocationMethodStatic {
		a, err := netip.ParseAddr(*wanted)
		switch {
		case err != nil || !s.prefix.Contains(a):
			return a, refuse(http.StatusBadRequest, "PrivateIPAddressNotInSubnet", "Private static IP address %s does not belong to the range of subnet prefix %s.", *wanted, s.prefix)
		case s.used[a]:
			return a, refuse(http.StatusBadRequest, "PrivateIPAddressIsAllocated", "IP configuration %s is using the private IP address %s which is already allocated to resource %s.", n.id, a, c.holder(a))
		}
		return a, nil
	}
	if old != nil {
		i := slices.IndexFunc(old.model.Properties.IPConfigurations, func(other *armnetwork.InterfaceIPConfiguration) bool { return deref(other.Name) == *config.Name })
		if i >= 0 && (s.prefix.Contains(old.addresses[i]) || s.prefix6.Contains(old.addresses[i])) {
			return old.addresses[i], nil
		}
	}
	if deref(config.Properties.PrivateIPAddressVersion) == armnetwork.IPVersionIPv6 {
		return s.next6()
	}
	return s.next()
}

// holder returns the configuration that has an address.
func (c *Cloud) holder(a netip.Addr) string {
	for _, n := range c.nics {
		if i := slices.Index(n.addresses, a); i >= 0 {
			return n.id + "/ipConfigurations/" + deref(n.model.Properties.IPConfigurations[i].Name)
		}
	}
	return ""
}

func (n *nic) leavePool(id string) {
	for _, config := range n.model.Properties.IPConfigurations {
		config.Properties.LoadBalancerBackendAddressPools = slices.DeleteFunc(config.Properties.LoadBalancerBackendAddressPools,
			func(p *armnetwork.BackendAddressPool) bool { return strings.EqualFold(deref(p.ID), id) })
	}
}

func (k *call) deleteNIC(_ context.Context, _, name string, _ *armnetwork.InterfacesClientBeginDeleteOptions) (azfake.PollerResponder[armnetwork.InterfacesClientDeleteResponse], azfake.ErrorResponder) {
	status := http.StatusAccepted
	var err *Refusal
	k.c.update(func() {
		n := k.c.nics[strings.ToLower(name)]
		switch {
		case n == nil:
			status = http.StatusNoContent
		case n.vm != nil:
			err = refuse(http.StatusBadRequest, "NicInUse", "Network Interface %s is used by existing resource %s.", n.id, n.vm.id)
		case time.Now().Before(n.reserved):
			err = refuse(http.StatusBadRequest, "NicReservedForAnotherVm", "Nic(s) in request is reserved for another Virtual Machine for 180 seconds.")
		default:
			op := k.begin()
			n.pending = true
			k.c.after(k.c.o.Network, func() { k.c.dropNIC(n); op.end(opSucceeded, nil) })
		}
	})
	return accepted[armnetwork.InterfacesClientDeleteResponse](status, err)
}
