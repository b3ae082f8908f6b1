package armtest

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	azfake "github.com/Azure/azure-sdk-for-go/sdk/azcore/fake"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v7"
)

// A public is one public address. The cloud's lock guards it.
type public struct {
	id      string
	model   armnetwork.PublicIPAddress
	address netip.Addr
	pending bool // its operation has not ended
}

// The ranges that public addresses are taken from (RFC 5737, RFC 3849).
var (
	publicRange4 = netip.MustParseAddr("203.0.113.0")
	publicRange6 = netip.MustParseAddr("2001:db8:ffff::")
)

func (k *call) getPublic(_ context.Context, _, name string, _ *armnetwork.PublicIPAddressesClientGetOptions) (azfake.Responder[armnetwork.PublicIPAddressesClientGetResponse], azfake.ErrorResponder) {
	k.c.mu.Lock()
	defer k.c.mu.Unlock()
	a := k.c.publics[strings.ToLower(name)]
	if a == nil {
		return found(armnetwork.PublicIPAddressesClientGetResponse{}, refuse(http.StatusNotFound, "ResourceNotFound",
			"The Resource 'Microsoft.Network/publicIPAddresses/%s' under resource group '%s' was not found.", name, k.path["group"]))
	}
	return found(armnetwork.PublicIPAddressesClientGetResponse{PublicIPAddress: k.c.showPublic(a)}, nil)
}

// showPublic needs the lock.
func (c *Cloud) showPublic(a *public) armnetwork.PublicIPAddress {
	out, p := a.model, *a.model.Properties
	p.IPAddress, p.ProvisioningState = new(a.address.String()), new(armnetwork.ProvisioningStateSucceeded)
	if a.pending {
		p.ProvisioningState = new(armnetwork.ProvisioningStateUpdating)
	}
	if holder := c.publicHolder(a, nil); holder != "" {
		p.IPConfiguration = &armnetwork.IPConfiguration{ID: &holder}
	}
	out.Properties = &p
	return out
}

// publicHolder returns the configuration of an interface, other than except, that has a
// public address; "": none. It needs the lock.
func (c *Cloud) publicHolder(a *public, except *nic) string {
	for _, n := range c.nics {
		for _, config := range n.model.Properties.IPConfigurations {
			if held := config.Properties.PublicIPAddress; held != nil && strings.EqualFold(deref(held.ID), a.id) && n != except {
				return n.id + "/ipConfigurations/" + deref(config.Name)
			}
		}
	}
	return ""
}

func (k *call) putPublic(_ context.Context, _, name string, m armnetwork.PublicIPAddress, _ *armnetwork.PublicIPAddressesClientBeginCreateOrUpdateOptions) (azfake.PollerResponder[armnetwork.PublicIPAddressesClientCreateOrUpdateResponse], azfake.ErrorResponder) {
	var out armnetwork.PublicIPAddress
	var err *Refusal
	k.c.update(func() {
		if err = k.checkPublic(name, &m); err != nil {
			return
		}
		c := k.c
		c.serial++
		a := &public{id: fmt.Sprintf("/subscriptions/%s/resourceGroups/%s/providers/Microsoft.Network/publicIPAddresses/%s", c.o.Subscription, k.path["group"], name), model: m, pending: true}
		a.address = publicRange4
		if deref(m.Properties.PublicIPAddressVersion) == armnetwork.IPVersionIPv6 {
			a.address = publicRange6
		}
		for range c.serial % 250 {
			a.address = a.address.Next()
		}
		a.model.ID, a.model.Name, a.model.Type = new(a.id), new(name), new("Microsoft.Network/publicIPAddresses")
		c.publics[strings.ToLower(name)] = a
		op := k.begin()
		c.after(c.o.Network, func() { a.pending = false; op.end(opSucceeded, nil) })
		out = c.showPublic(a)
	})
	return answered(http.StatusCreated, armnetwork.PublicIPAddressesClientCreateOrUpdateResponse{PublicIPAddress: out}, err)
}

// checkPublic refuses what Azure refuses of a public address ("Public IP addresses in
// Azure": the kind Basic was retired in September 2025).
func (k *call) checkPublic(name string, m *armnetwork.PublicIPAddress) *Refusal {
	p := m.Properties
	switch {
	case m.Location == nil || !strings.EqualFold(*m.Location, k.c.o.Location):
		return refuse(http.StatusBadRequest, "LocationRequired", "The location property is required for this definition.")
	case k.c.publics[strings.ToLower(name)] != nil:
		return refuse(http.StatusBadRequest, "InvalidRequestFormat", "This cloud changes no public address.")
	case m.SKU == nil || deref(m.SKU.Name) != armnetwork.PublicIPAddressSKUNameStandard:
		return refuse(http.StatusBadRequest, "IPv4BasicSkuPublicIpCountLimitReached", "Cannot create more than 0 IPv4 Basic SKU public IP addresses for this subscription in this region.")
	case p == nil || deref(p.PublicIPAllocationMethod) != armnetwork.IPAllocationMethodStatic:
		return refuse(http.StatusBadRequest, "StandardSkuPublicIPAddressesMustBeStatic", "Standard sku publicIp %s must have AllocationMethod set to Static.", name)
	}
	return checkTags(m.Tags)
}

func (k *call) deletePublic(_ context.Context, _, name string, _ *armnetwork.PublicIPAddressesClientBeginDeleteOptions) (azfake.PollerResponder[armnetwork.PublicIPAddressesClientDeleteResponse], azfake.ErrorResponder) {
	status := http.StatusAccepted
	var err *Refusal
	k.c.update(func() {
		a := k.c.publics[strings.ToLower(name)]
		if a == nil {
			status = http.StatusNoContent
			return
		}
		if holder := k.c.publicHolder(a, nil); holder != "" {
			err = refuse(http.StatusBadRequest, "PublicIPAddressCannotBeDeleted", "Public IP address %s can not be deleted since it is still allocated to resource %s.", a.id, holder)
			return
		}
		op := k.begin()
		k.c.after(k.c.o.Network, func() { delete(k.c.publics, strings.ToLower(name)); op.end(opSucceeded, nil) })
	})
	return accepted[armnetwork.PublicIPAddressesClientDeleteResponse](status, err)
}

// checkBinding refuses a public address that a configuration cannot have.
func (k *call) checkBinding(config *armnetwork.InterfaceIPConfiguration, old *nic) *Refusal {
	wanted := config.Properties.PublicIPAddress
	if wanted == nil {
		return nil
	}
	id := deref(wanted.ID)
	var a *public
	for _, p := range k.c.publics {
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
	switch holder := k.c.publicHolder(a, old); {
	case a.pending:
		return &Refusal{Status: http.StatusTooManyRequests, Code: "RetryableError", Message: "A retryable error occurred.",
			Details: []Detail{{"ReferencedResourceNotProvisioned", "Cannot proceed with operation because resource is not in Succeeded state."}}}
	case holder != "":
		return refuse(http.StatusBadRequest, "PublicIPAddressInUse", "Resource %s is referencing public IP address %s that is already allocated to resource %s.", deref(config.Name), id, holder)
	case six != a.address.Is6():
		return refuse(http.StatusBadRequest, "InvalidRequestFormat", "The versions of the private and the public address of %s differ.", deref(config.Name))
	}
	return nil
}
