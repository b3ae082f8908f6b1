package ec2test

import (
	"fmt"
	"maps"
	"net/netip"
	"time"
)

// A netInterface is an elastic network interface. Everything in it is guarded by
// the cloud's lock.
type netInterface struct {
	id          string
	attachment  string
	subnet      Subnet
	machine     *machine
	deviceIndex int
	card        int
	kind        string // empty: interface
	prefixes    []netip.Prefix
	description string
	groups      []string
	tags        map[string]string
	addresses   []netip.Addr // the primary one first
	attached    time.Time
}

// A network is the interfaces of machines and their addresses.
type network struct {
	o          *Options
	interfaces map[string]*netInterface
	taken      map[string]map[netip.Addr]string // interfaces, by subnet and address
	nextFree   map[string]netip.Addr            // where the search in a subnet goes on
}

func newNetwork(o *Options) *network {
	n := &network{o: o, interfaces: map[string]*netInterface{}, taken: map[string]map[netip.Addr]string{}, nextFree: map[string]netip.Addr{}}
	for _, s := range o.Catalog.Subnets {
		n.taken[s.ID] = map[netip.Addr]string{}
	}
	return n
}

// makeInterfaces gives a machine its network interfaces: after an error some of them.
func (n *network) makeInterfaces(l *launch, m *machine, subnet Subnet) (err error) {
	wanted := l.in.NetworkInterfaces
	if len(wanted) == 0 {
		zero := 0
		wanted = []interfaceInput{{DeviceIndex: &zero, SubnetId: subnet.ID, Groups: l.in.SecurityGroupIds, PrivateIpAddress: l.in.PrivateIpAddress}}
	}
	for _, w := range wanted {
		place := subnet
		if w.SubnetId != "" {
			if place, err = n.o.Catalog.subnetNamed(w.SubnetId); err != nil {
				return err
			}
		}
		if place.Zone != subnet.Zone {
			return badCombination("All network interfaces must be in the same Availability Zone")
		}
		i := &netInterface{
			id: newID("eni"), attachment: newID("eni-attach"), subnet: place, machine: m, deviceIndex: *w.DeviceIndex, card: w.NetworkCardIndex, kind: w.InterfaceType, description: w.Description,
			groups: w.Groups, tags: l.tags["network-interface"], attached: m.created,
		}
		if len(i.groups) == 0 && len(n.o.Catalog.SecurityGroups) > 0 {
			i.groups = n.o.Catalog.SecurityGroups[:1]
		}
		n.interfaces[i.id] = i
		if i.deviceIndex == 0 && i.card == 0 {
			m.interfaces = append([]*netInterface{i}, m.interfaces...)
		} else {
			m.interfaces = append(m.interfaces, i)
		}
		if err := n.addWanted(i, w); err != nil {
			return err
		}
	}
	return nil
}

func (n *network) addWanted(i *netInterface, w interfaceInput) error {
	if i.kind == "efa-only" {
		return nil
	}
	primary := w.PrivateIpAddress
	var secondary []string
	for _, a := range w.PrivateIpAddresses {
		if a.Primary && primary == "" {
			primary = a.PrivateIpAddress
		} else {
			secondary = append(secondary, a.PrivateIpAddress)
		}
	}
	if err := n.addAddress(i, primary); err != nil {
		return err
	}
	for range w.SecondaryPrivateIpAddressCount {
		secondary = append(secondary, "")
	}
	for _, a := range secondary {
		if err := n.addAddress(i, a); err != nil {
			return err
		}
	}
	return n.addPrefixes(i, w.Ipv4PrefixCount)
}

// prefixBits is the length of the IPv4 prefixes that interfaces get: 16 addresses ("Prefix
// delegation for Amazon EC2 network interfaces", EC2 User Guide).
const prefixBits = 28

// addPrefixes gives an interface blocks of its subnet in which every address is free.
func (n *network) addPrefixes(i *netInterface, count int) error {
	taken := n.taken[i.subnet.ID]
	for block := netip.PrefixFrom(i.subnet.Prefix.Masked().Addr(), prefixBits); len(i.prefixes) < count; block = netip.PrefixFrom(after(block), prefixBits) {
		last := after(block)
		if !i.subnet.Prefix.Contains(block.Addr()) || !i.subnet.Prefix.Contains(last) {
			return refuse("InsufficientCidrBlocks", "The specified subnet does not have enough free cidr blocks to satisfy the request.")
		}
		if block.Addr() != i.subnet.Prefix.Masked().Addr() && free(taken, block) {
			i.prefixes = append(i.prefixes, block)
			for a := block.Addr(); block.Contains(a); a = a.Next() {
				taken[a] = i.id
			}
		}
	}
	return nil
}

// after is the first address behind a prefix.
func after(p netip.Prefix) netip.Addr {
	a := p.Addr()
	for p.Contains(a) {
		a = a.Next()
	}
	return a
}

func free(taken map[netip.Addr]string, p netip.Prefix) bool {
	for a := p.Addr(); p.Contains(a); a = a.Next() {
		if taken[a] != "" {
			return false
		}
	}
	return true
}

// addAddress gives an interface an address of its subnet: that one, or any free
// one for "".
func (n *network) addAddress(i *netInterface, wanted string) error {
	taken := n.taken[i.subnet.ID]
	if wanted == "" {
		free, ok := n.freeAddress(i.subnet)
		if !ok {
			return refuse("InsufficientFreeAddressesInSubnet", "The specified subnet does not have enough free addresses to satisfy the request.")
		}
		i.addresses = append(i.addresses, free)
		taken[free] = i.id
		return nil
	}
	a, err := netip.ParseAddr(wanted)
	if err != nil || !i.subnet.Prefix.Contains(a) {
		return invalid("Address %s does not fall within the subnet's address range", wanted)
	}
	if taken[a] != "" {
		return refuse("InvalidIPAddress.InUse", "Address %s is in use.", wanted)
	}
	i.addresses = append(i.addresses, a)
	taken[a] = i.id
	return nil
}

// reservedAddresses are the network, the router, DNS, one for later, and the last
// ("Subnet CIDR blocks", VPC User Guide).
const reservedAddresses = 5

func (n *network) freeAddress(s Subnet) (netip.Addr, bool) {
	first := s.Prefix.Masked().Addr()
	for range reservedAddresses - 1 {
		first = first.Next()
	}
	if n.freeCount(s) <= 0 {
		return netip.Addr{}, false
	}
	for a := n.nextFree[s.ID]; ; a = a.Next() {
		if !a.IsValid() || !s.Prefix.Contains(a.Next()) {
			a = first
		}
		if n.taken[s.ID][a] == "" {
			n.nextFree[s.ID] = a.Next()
			return a, true
		}
	}
}

// freeCount is how many addresses of a subnet are free.
func (n *network) freeCount(s Subnet) int {
	return 1<<(32-s.Prefix.Bits()) - reservedAddresses - len(n.taken[s.ID])
}

func (n *network) deleteInterfaces(m *machine) {
	for _, i := range m.interfaces {
		maps.DeleteFunc(n.taken[i.subnet.ID], func(_ netip.Addr, owner string) bool { return owner == i.id })
		delete(n.interfaces, i.id)
	}
	m.interfaces = nil
}

func privateName(a netip.Addr, region string) string {
	b := a.As4()
	domain := region + ".compute.internal"
	if region == "us-east-1" {
		domain = "ec2.internal"
	}
	return fmt.Sprintf("ip-%d-%d-%d-%d.%s", b[0], b[1], b[2], b[3], domain)
}
