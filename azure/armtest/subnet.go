package armtest

import (
	"context"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	azfake "github.com/Azure/azure-sdk-for-go/sdk/azcore/fake"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v7"
)

// A subnet hands out addresses. The first four of each are Azure's own.
type subnet struct {
	id      string
	size    int // of IPv4
	prefix  netip.Prefix
	prefix6 netip.Prefix // invalid: it has no IPv6
	used    map[netip.Addr]bool
	used6   map[netip.Addr]bool
}

// A subnetSet is the subnets of the subscription.
type subnetSet struct{ byID map[string]*subnet } // in lower case

// A subnetCalls answers calls for them.
type subnetCalls struct {
	*call
	subnets *subnetSet
}

func newSubnetSet(o *Options) *subnetSet {
	out := &subnetSet{map[string]*subnet{}}
	for i, id := range slices.Sorted(maps.Keys(o.Subnets)) {
		out.byID[strings.ToLower(id)] = newSubnet(id, o.Subnets[id], i)
	}
	for i, id := range o.DualStack {
		if s := out.byID[strings.ToLower(id)]; s != nil {
			s.prefix6 = netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0, 0, byte(i + 1)}), 64)
		}
	}
	return out
}

func newSubnet(id string, size, index int) *subnet {
	base := netip.AddrFrom4([4]byte{10, byte(index + 1), 0, 0})
	return &subnet{id: id, size: size, prefix: netip.PrefixFrom(base, 16), used: map[netip.Addr]bool{}, used6: map[netip.Addr]bool{}}
}

// next returns an address that is free.
func (s *subnet) next() (netip.Addr, *Refusal) {
	full := refuse(http.StatusBadRequest, "SubnetIsFull", "Subnet %s does not have enough capacity for 1 IP addresses.", s.id)
	if len(s.used) >= s.size {
		return netip.Addr{}, full
	}
	a := s.prefix.Addr()
	for range 4 {
		a = a.Next()
	}
	for s.used[a] {
		a = a.Next()
	}
	if !s.prefix.Contains(a) {
		return a, full
	}
	return a, nil
}

// next6 returns an IPv6 address that is free.
func (s *subnet) next6() (netip.Addr, *Refusal) {
	if !s.prefix6.IsValid() {
		return netip.Addr{}, refuse(http.StatusBadRequest, "InvalidRequestFormat", "Subnet %s has no IPv6 address prefix.", s.id)
	}
	a := s.prefix6.Addr()
	for range 4 {
		a = a.Next()
	}
	for s.used6[a] {
		a = a.Next()
	}
	return a, nil
}

// hold takes an address; free gives it back.
func (s *subnet) hold(a netip.Addr) {
	if a.Is6() {
		s.used6[a] = true
		return
	}
	s.used[a] = true
}

func (s *subnet) free(a netip.Addr) {
	delete(s.used, a)
	delete(s.used6, a)
}

// Prefix returns the addresses of a subnet, so that a test can choose one.
func (c *Cloud) Prefix(id string) netip.Prefix {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.nics.subnets.byID[strings.ToLower(id)]; s != nil {
		return s.prefix
	}
	return netip.Prefix{}
}

func (k subnetCalls) get(_ context.Context, _, _, name string, _ *armnetwork.SubnetsClientGetOptions) (azfake.Responder[armnetwork.SubnetsClientGetResponse], azfake.ErrorResponder) {
	s := k.subnets.byID[strings.ToLower(k.r.URL.Path)]
	if s == nil {
		return found(armnetwork.SubnetsClientGetResponse{}, refuse(http.StatusNotFound, "NotFound", "Resource %s not found.", name))
	}
	return found(armnetwork.SubnetsClientGetResponse{Subnet: armnetwork.Subnet{
		ID: new(s.id), Name: &name, Properties: &armnetwork.SubnetPropertiesFormat{AddressPrefix: new(s.prefix.String())},
	}}, nil)
}

func (k subnetCalls) listUsage(_, name string, _ *armnetwork.VirtualNetworksClientListUsageOptions) (p azfake.PagerResponder[armnetwork.VirtualNetworksClientListUsageResponse]) {
	var own []*subnet
	prefix := strings.ToLower(k.id("Microsoft.Network/virtualNetworks", name) + "/subnets/")
	for id, s := range k.subnets.byID {
		if strings.HasPrefix(id, prefix) {
			own = append(own, s)
		}
	}
	if len(own) == 0 {
		p.AddError(refuse(http.StatusNotFound, "ResourceNotFound", "The Resource 'Microsoft.Network/virtualNetworks/%s' was not found.", name))
		return p
	}
	slices.SortFunc(own, func(a, b *subnet) int { return strings.Compare(a.id, b.id) })
	out := armnetwork.VirtualNetworksClientListUsageResponse{}
	for _, s := range own {
		current := float64(len(s.used))
		if s.size < 0 {
			current = -1
		}
		out.Value = append(out.Value, &armnetwork.VirtualNetworkUsage{
			ID: new(s.id), CurrentValue: &current, Limit: new(float64(s.size)), Unit: new("Count"),
			Name: &armnetwork.VirtualNetworkUsageName{Value: new("SubnetSpace"), LocalizedValue: new("Subnet size and usage")},
		})
	}
	p.AddPage(http.StatusOK, out, nil)
	return p
}
