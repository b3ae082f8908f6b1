package armtest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	azfake "github.com/Azure/azure-sdk-for-go/sdk/azcore/fake"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v7"
)

// A nic is one network interface. The cloud's lock guards it.
type nic struct {
	id        string
	serial    int
	model     armnetwork.Interface
	addresses []netip.Addr // of its configurations, in their order
	vm        *vm
	state     string    // of its last operation
	reserved  time.Time // until then only for the machine whose create has failed
}

// A nicSet is the network interfaces of the subscription.
type nicSet struct {
	subnets *subnetSet
	serial  int
	byName  map[string]*nic   // in lower case
	pools   map[string]string // backend address pools: their IDs by lower-case ID
}

// A nicCalls answers calls for network interfaces.
type nicCalls struct {
	*call
	nics    *nicSet
	publics *publicSet
}

func (s *nicSet) byID(id *string) *nic {
	n := s.byName[strings.ToLower(path.Base(deref(id)))]
	if n == nil || !strings.EqualFold(n.id, deref(id)) {
		return nil
	}
	return n
}

func (s *nicSet) of(v *vm) (out []*nic) {
	for _, ref := range v.model.Properties.NetworkProfile.NetworkInterfaces {
		if n := s.byID(ref.ID); n != nil {
			out = append(out, n)
		}
	}
	return out
}

func (s *nicSet) remove(n *nic) {
	s.freeAddresses(n)
	delete(s.byName, strings.ToLower(deref(n.model.Name)))
}

func (s *nicSet) freeAddresses(n *nic) {
	for _, a := range n.addresses {
		for _, from := range s.subnets.byID {
			from.free(a)
		}
	}
}

func (k nicCalls) get(_ context.Context, _, name string, _ *armnetwork.InterfacesClientGetOptions) (azfake.Responder[armnetwork.InterfacesClientGetResponse], azfake.ErrorResponder) {
	n := k.nics.byName[strings.ToLower(name)]
	if n == nil {
		return found(armnetwork.InterfacesClientGetResponse{}, k.notFound("Microsoft.Network/networkInterfaces", name))
	}
	return found(armnetwork.InterfacesClientGetResponse{Interface: n.show()}, nil)
}

func (k nicCalls) list(_ string, _ *armnetwork.InterfacesClientListOptions) (p azfake.PagerResponder[armnetwork.InterfacesClientListResponse]) {
	var all []*nic
	for _, n := range k.nics.byName {
		if strings.Contains(strings.ToLower(n.id), "/resourcegroups/"+strings.ToLower(k.path["group"])+"/") {
			all = append(all, n)
		}
	}
	slices.SortFunc(all, func(a, b *nic) int { return cmp.Compare(a.serial, b.serial) })
	all, next := cut(k.call, all, func(n *nic) int { return n.serial })
	out := armnetwork.InterfacesClientListResponse{InterfaceListResult: armnetwork.InterfaceListResult{NextLink: next}}
	for _, n := range all {
		out.Value = append(out.Value, new(n.show()))
	}
	p.AddPage(http.StatusOK, out, nil)
	return p
}

func (n *nic) changing() bool { return n.state == updating || n.state == deleting }

// show is what the cloud answers. Its ETag changes with everything that it shows.
func (n *nic) show() armnetwork.Interface {
	out, p := n.model, *n.model.Properties
	p.ProvisioningState = new(armnetwork.ProvisioningState(n.state))
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
	b, err := json.Marshal(out)
	if err != nil {
		panic(err)
	}
	out.Etag = new(fmt.Sprintf("W/\"%x\"", sha256.Sum256(b)))
	return out
}

func (k nicCalls) put(_ context.Context, _, name string, m armnetwork.Interface, _ *armnetwork.InterfacesClientBeginCreateOrUpdateOptions) (azfake.PollerResponder[armnetwork.InterfacesClientCreateOrUpdateResponse], azfake.ErrorResponder) {
	status, old := http.StatusOK, k.nics.byName[strings.ToLower(name)]
	if old == nil {
		status = http.StatusCreated
	}
	n, err := k.replace(name, m, old)
	if err != nil {
		return answered(0, armnetwork.InterfacesClientCreateOrUpdateResponse{}, err)
	}
	return answered(status, armnetwork.InterfacesClientCreateOrUpdateResponse{Interface: n.show()}, nil)
}

// replace makes an interface, or puts the whole of another one in its place.
func (k nicCalls) replace(name string, m armnetwork.Interface, old *nic) (*nic, *Refusal) {
	if old != nil && k.r.Header.Get("If-None-Match") == "*" {
		return nil, refuse(http.StatusPreconditionFailed, "PreconditionFailed", "The condition '*' set on if-none-match is not satisfied.")
	}
	if match := k.r.Header.Get("If-Match"); match != "" && match != "*" && (old == nil || match != *old.show().Etag) {
		return nil, refuse(http.StatusPreconditionFailed, "PreconditionFailed", "Precondition failed.")
	}
	if err := k.check(&m, old); err != nil {
		return nil, err
	}
	n := &nic{id: k.id("Microsoft.Network/networkInterfaces", name), serial: k.nics.serial, model: m}
	k.nics.serial++
	if old != nil {
		n.serial, n.id, n.vm, n.reserved = old.serial, old.id, old.vm, old.reserved
	}
	if err := k.assign(n, old); err != nil {
		return nil, err
	}
	n.model.Etag = nil
	n.model.ID, n.model.Name, n.model.Type = new(n.id), new(name), new("Microsoft.Network/networkInterfaces")
	k.nics.byName[strings.ToLower(name)] = n
	k.beginPut(&n.state)
	return n, nil
}

func (k nicCalls) check(m *armnetwork.Interface, old *nic) *Refusal {
	switch {
	case m.Location == nil || !strings.EqualFold(*m.Location, k.o.Location):
		return refuse(http.StatusBadRequest, "LocationRequired", "The location property is required for this definition.")
	case m.Properties == nil || len(m.Properties.IPConfigurations) == 0:
		return refuse(http.StatusBadRequest, "InvalidIPConfigCount", "A network interface needs at least one IP configuration.")
	case old != nil && old.changing():
		return refuse(http.StatusTooManyRequests, "RetryableErrorDueToAnotherOperation", "Another operation on this resource is in progress.")
	case old != nil && old.vm != nil && old.vm.hibernate:
		return refuse(http.StatusConflict, "OperationNotAllowed", "The network interface of a hibernated virtual machine cannot be changed.")
	}
	if err := checkTags(m.Tags); err != nil {
		return err
	}
	if g := m.Properties.NetworkSecurityGroup; g != nil {
		if !k.o.exists(deref(g.ID)) {
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

func (k nicCalls) checkConfiguration(config *armnetwork.InterfaceIPConfiguration) *Refusal {
	if config.Name == nil || config.Properties == nil || config.Properties.Subnet == nil {
		return refuse(http.StatusBadRequest, "InvalidRequestFormat", "An IP configuration needs a name and a subnet.")
	}
	id := deref(config.Properties.Subnet.ID)
	if k.nics.subnets.byID[strings.ToLower(id)] == nil {
		return refuse(http.StatusBadRequest, "InvalidResourceReference", "Resource %s referenced by resource was not found.", id)
	}
	if err := k.linked(network+"virtualNetworks/subnets/join/action", id); err != nil {
		return err
	}
	for _, g := range config.Properties.ApplicationSecurityGroups {
		if !k.o.exists(deref(g.ID)) {
			return refuse(http.StatusBadRequest, "InvalidResourceReference", "Resource %s referenced by resource was not found.", deref(g.ID))
		}
		if err := k.linked(network+"applicationSecurityGroups/joinIpConfiguration/action", deref(g.ID)); err != nil {
			return err
		}
	}
	for _, pool := range config.Properties.LoadBalancerBackendAddressPools {
		if k.nics.pools[strings.ToLower(deref(pool.ID))] == "" {
			return refuse(http.StatusBadRequest, "InvalidResourceReference", "Resource %s referenced by resource was not found.", deref(pool.ID))
		}
		if err := k.linked(network+"loadBalancers/backendAddressPools/join/action", deref(pool.ID)); err != nil {
			return err
		}
	}
	return nil
}

// assign gives the interface its addresses: a configuration keeps the one that it
// has.
func (k nicCalls) assign(n, old *nic) *Refusal {
	if old != nil {
		k.nics.freeAddresses(old)
	}
	for _, config := range n.model.Properties.IPConfigurations {
		a, err := k.nics.pick(n, old, config)
		if err != nil {
			k.nics.freeAddresses(n)
			if old != nil {
				k.nics.holdAddresses(old)
			}
			return err
		}
		n.addresses = append(n.addresses, a)
		k.nics.subnets.byID[strings.ToLower(*config.Properties.Subnet.ID)].hold(a)
	}
	return nil
}

func (s *nicSet) holdAddresses(n *nic) {
	for i, config := range n.model.Properties.IPConfigurations {
		s.subnets.byID[strings.ToLower(*config.Properties.Subnet.ID)].hold(n.addresses[i])
	}
}

func (s *nicSet) pick(n, old *nic, config *armnetwork.InterfaceIPConfiguration) (netip.Addr, *Refusal) {
	in := s.subnets.byID[strings.ToLower(*config.Properties.Subnet.ID)]
	if wanted := config.Properties.PrivateIPAddress; wanted != nil && deref(config.Properties.PrivateIPAllocationMethod) == armnetwork.IPAllocationMethodStatic {
		a, err := netip.ParseAddr(*wanted)
		switch {
		case err != nil || !in.prefix.Contains(a):
			return a, refuse(http.StatusBadRequest, "PrivateIPAddressNotInSubnet", "Private static IP address %s does not belong to the range of subnet prefix %s.", *wanted, in.prefix)
		case in.used[a]:
			return a, refuse(http.StatusBadRequest, "PrivateIPAddressIsAllocated", "IP configuration %s is using the private IP address %s which is already allocated to resource %s.", n.id, a, s.holder(a))
		}
		return a, nil
	}
	if old != nil {
		i := slices.IndexFunc(old.model.Properties.IPConfigurations, func(other *armnetwork.InterfaceIPConfiguration) bool { return deref(other.Name) == *config.Name })
		if i >= 0 && (in.prefix.Contains(old.addresses[i]) || in.prefix6.Contains(old.addresses[i])) {
			return old.addresses[i], nil
		}
	}
	if deref(config.Properties.PrivateIPAddressVersion) == armnetwork.IPVersionIPv6 {
		return in.next6()
	}
	return in.next()
}

// holder returns the configuration that has an address.
func (s *nicSet) holder(a netip.Addr) string {
	for _, n := range s.byName {
		if i := slices.Index(n.addresses, a); i >= 0 {
			return n.id + "/ipConfigurations/" + deref(n.model.Properties.IPConfigurations[i].Name)
		}
	}
	return ""
}

// publicHolder returns the configuration of an interface, other than except, that has a
// public address; "": none.
func (s *nicSet) publicHolder(a *public, except *nic) string {
	for _, n := range s.byName {
		for _, config := range n.model.Properties.IPConfigurations {
			if held := config.Properties.PublicIPAddress; held != nil && strings.EqualFold(deref(held.ID), a.id) && n != except {
				return n.id + "/ipConfigurations/" + deref(config.Name)
			}
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

func (k nicCalls) delete(_ context.Context, _, name string, _ *armnetwork.InterfacesClientBeginDeleteOptions) (azfake.PollerResponder[armnetwork.InterfacesClientDeleteResponse], azfake.ErrorResponder) {
	n := k.nics.byName[strings.ToLower(name)]
	switch {
	case n == nil:
		return accepted[armnetwork.InterfacesClientDeleteResponse](http.StatusNoContent, nil)
	case n.vm != nil:
		return accepted[armnetwork.InterfacesClientDeleteResponse](0, refuse(http.StatusBadRequest, "NicInUse", "Network Interface %s is used by existing resource %s.", n.id, n.vm.id))
	case time.Now().Before(n.reserved):
		return accepted[armnetwork.InterfacesClientDeleteResponse](0, refuse(http.StatusBadRequest, "NicReservedForAnotherVm", "Nic(s) in request is reserved for another Virtual Machine for 180 seconds."))
	}
	n.state = deleting
	k.beginNetwork(func() { k.nics.remove(n) })
	return accepted[armnetwork.InterfacesClientDeleteResponse](http.StatusAccepted, nil)
}

// checkBinding refuses a public address that a configuration cannot have.
func (k nicCalls) checkBinding(config *armnetwork.InterfaceIPConfiguration, old *nic) *Refusal {
	wanted := config.Properties.PublicIPAddress
	if wanted == nil {
		return nil
	}
	id := deref(wanted.ID)
	var a *public
	for _, p := range k.publics.byName {
		if strings.EqualFold(p.id, id) {
			a = p
		}
	}
	if a == nil {
		return refuse(http.StatusBadRequest, "InvalidResourceReference", "Resource %s referenced by resource was not found.", id)
	}
	if err := k.linked(network+"publicIPAddresses/join/action", id); err != nil {
		return err
	}
	six := deref(config.Properties.PrivateIPAddressVersion) == armnetwork.IPVersionIPv6
	switch holder := k.nics.publicHolder(a, old); {
	case a.state != succeeded:
		return &Refusal{Status: http.StatusTooManyRequests, Code: "RetryableError", Message: "A retryable error occurred.",
			Details: []Detail{{"ReferencedResourceNotProvisioned", "Cannot proceed with operation because resource is not in Succeeded state."}}}
	case holder != "":
		return refuse(http.StatusBadRequest, "PublicIPAddressInUse", "Resource %s is referencing public IP address %s that is already allocated to resource %s.", deref(config.Name), id, holder)
	case six != a.address.Is6():
		return refuse(http.StatusBadRequest, "InvalidRequestFormat", "The versions of the private and the public address of %s differ.", deref(config.Name))
	}
	return nil
}

func (k nicCalls) getPool(_ context.Context, _, balancer, pool string, _ *armnetwork.LoadBalancerBackendAddressPoolsClientGetOptions) (azfake.Responder[armnetwork.LoadBalancerBackendAddressPoolsClientGetResponse], azfake.ErrorResponder) {
	id := k.nics.pools[strings.ToLower(k.r.URL.Path)]
	if id == "" {
		return found(armnetwork.LoadBalancerBackendAddressPoolsClientGetResponse{}, refuse(http.StatusNotFound, "NotFound",
			"Resource %s of load balancer %s not found.", pool, balancer))
	}
	p := &armnetwork.BackendAddressPoolPropertiesFormat{}
	for _, n := range k.nics.byName {
		for _, config := range n.show().Properties.IPConfigurations {
			if slices.ContainsFunc(config.Properties.LoadBalancerBackendAddressPools, func(b *armnetwork.BackendAddressPool) bool { return strings.EqualFold(deref(b.ID), id) }) {
				p.BackendIPConfigurations = append(p.BackendIPConfigurations, &armnetwork.InterfaceIPConfiguration{ID: config.ID})
			}
		}
	}
	return found(armnetwork.LoadBalancerBackendAddressPoolsClientGetResponse{BackendAddressPool: armnetwork.BackendAddressPool{ID: &id, Name: &pool, Properties: p}}, nil)
}
