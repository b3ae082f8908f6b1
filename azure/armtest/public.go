package armtest

import (
	"context"
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
	state   string // of its last operation
}

// The ranges that public addresses are taken from (RFC 5737, RFC 3849).
var (
	publicRange4 = netip.MustParseAddr("203.0.113.0")
	publicRange6 = netip.MustParseAddr("2001:db8:ffff::")
)

// A publicSet is the public addresses of the subscription.
type publicSet struct {
	serial int
	byName map[string]*public // in lower case
}

// A publicCalls answers calls for public addresses.
type publicCalls struct {
	*call
	publics *publicSet
	nics    *nicSet
}

func (k publicCalls) get(_ context.Context, _, name string, _ *armnetwork.PublicIPAddressesClientGetOptions) (azfake.Responder[armnetwork.PublicIPAddressesClientGetResponse], azfake.ErrorResponder) {
	a := k.publics.byName[strings.ToLower(name)]
	if a == nil {
		return found(armnetwork.PublicIPAddressesClientGetResponse{}, k.notFound("Microsoft.Network/publicIPAddresses", name))
	}
	return found(armnetwork.PublicIPAddressesClientGetResponse{PublicIPAddress: k.show(a)}, nil)
}

func (k publicCalls) show(a *public) armnetwork.PublicIPAddress {
	out, p := a.model, *a.model.Properties
	p.IPAddress, p.ProvisioningState = new(a.address.String()), new(armnetwork.ProvisioningState(a.state))
	if holder := k.nics.publicHolder(a, nil); holder != "" {
		p.IPConfiguration = &armnetwork.IPConfiguration{ID: &holder}
	}
	out.Properties = &p
	return out
}

func (k publicCalls) put(_ context.Context, _, name string, m armnetwork.PublicIPAddress, _ *armnetwork.PublicIPAddressesClientBeginCreateOrUpdateOptions) (azfake.PollerResponder[armnetwork.PublicIPAddressesClientCreateOrUpdateResponse], azfake.ErrorResponder) {
	if err := k.check(name, &m); err != nil {
		return answered(0, armnetwork.PublicIPAddressesClientCreateOrUpdateResponse{}, err)
	}
	a := &public{id: k.id("Microsoft.Network/publicIPAddresses", name), model: m, address: publicRange4}
	if deref(m.Properties.PublicIPAddressVersion) == armnetwork.IPVersionIPv6 {
		a.address = publicRange6
	}
	k.publics.serial++
	for range k.publics.serial % 250 {
		a.address = a.address.Next()
	}
	a.model.ID, a.model.Name, a.model.Type = new(a.id), new(name), new("Microsoft.Network/publicIPAddresses")
	k.publics.byName[strings.ToLower(name)] = a
	k.beginPut(&a.state)
	return answered(http.StatusCreated, armnetwork.PublicIPAddressesClientCreateOrUpdateResponse{PublicIPAddress: k.show(a)}, nil)
}

// check refuses what Azure refuses of a public address ("Public IP addresses in
// Azure": the kind Basic was retired in September 2025).
func (k publicCalls) check(name string, m *armnetwork.PublicIPAddress) *Refusal {
	p, old := m.Properties, k.publics.byName[strings.ToLower(name)]
	switch {
	case m.Location == nil || !strings.EqualFold(*m.Location, k.o.Location):
		return refuse(http.StatusBadRequest, "LocationRequired", "The location property is required for this definition.")
	case old != nil && old.state != failed:
		return refuse(http.StatusBadRequest, "InvalidRequestFormat", "This cloud changes no public address.")
	case m.SKU == nil || deref(m.SKU.Name) != armnetwork.PublicIPAddressSKUNameStandard:
		return refuse(http.StatusBadRequest, "IPv4BasicSkuPublicIpCountLimitReached", "Cannot create more than 0 IPv4 Basic SKU public IP addresses for this subscription in this region.")
	case p == nil || deref(p.PublicIPAllocationMethod) != armnetwork.IPAllocationMethodStatic:
		return refuse(http.StatusBadRequest, "StandardSkuPublicIPAddressesMustBeStatic", "Standard sku publicIp %s must have AllocationMethod set to Static.", name)
	}
	return checkTags(m.Tags)
}

func (k publicCalls) delete(_ context.Context, _, name string, _ *armnetwork.PublicIPAddressesClientBeginDeleteOptions) (azfake.PollerResponder[armnetwork.PublicIPAddressesClientDeleteResponse], azfake.ErrorResponder) {
	a := k.publics.byName[strings.ToLower(name)]
	if a == nil {
		return accepted[armnetwork.PublicIPAddressesClientDeleteResponse](http.StatusNoContent, nil)
	}
	if holder := k.nics.publicHolder(a, nil); holder != "" {
		return accepted[armnetwork.PublicIPAddressesClientDeleteResponse](0, refuse(http.StatusBadRequest, "PublicIPAddressCannotBeDeleted", "Public IP address %s can not be deleted since it is still allocated to resource %s.", a.id, holder))
	}
	a.state = deleting
	k.beginNetwork(func() { delete(k.publics.byName, strings.ToLower(name)) })
	return accepted[armnetwork.PublicIPAddressesClientDeleteResponse](http.StatusAccepted, nil)
}
