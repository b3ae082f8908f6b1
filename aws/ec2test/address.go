package ec2test

import (
	"maps"
	"net/netip"
	"slices"
)

type interfacesInput struct {
	listInput
	NetworkInterfaceIds []string `q:"NetworkInterfaceId"`
	IncludeManaged      bool     `q:"IncludeManagedResources"`
}

type interfacesOutput struct {
	Interfaces []taggedInterface `xml:"networkInterfaceSet>item"`
	NextToken  string            `xml:"nextToken,omitempty"`
}

type taggedInterface struct {
	interfaceItem
	Tags []tagItem `xml:"tagSet>item"`
}

func (n *network) describe(_ call, in *interfacesInput) (*interfacesOutput, error) {
	var all []entry[taggedInterface]
	for _, i := range n.interfaces {
		var addresses []string
		for _, a := range i.addresses {
			addresses = append(addresses, a.String())
		}
		all = append(all, entry[taggedInterface]{i.id, filterable{
			"network-interface-id": {i.id}, "subnet-id": {i.subnet.ID}, "vpc-id": {n.o.Catalog.VPC}, "availability-zone": {i.subnet.Zone},
			"private-ip-address": addresses[:1], "addresses.private-ip-address": addresses, "attachment.instance-id": {i.machine.id}, "group-id": i.groups,
			"status": {"in-use"},
		}, i.tags, taggedInterface{i.item(n.o), tagItems(i.tags)}})
	}
	items, next, err := list(n.o, in.listInput, listing{
		filters: []string{
			"network-interface-id", "subnet-id", "vpc-id", "availability-zone", "private-ip-address", "addresses.private-ip-address",
			"attachment.instance-id", "group-id", "status",
		},
		asked: in.NetworkInterfaceIds, notFound: unknownInterface, least: minPage, most: maxPage,
	}, all)
	return &interfacesOutput{items, next}, err
}

func unknownInterface(id string) error {
	return refuse("InvalidNetworkInterfaceID.NotFound", "The networkInterface ID '%s' does not exist", id)
}

type assignInput struct {
	NetworkInterfaceId             string   `q:",required"`
	PrivateIpAddresses             []string `q:"PrivateIpAddress"`
	SecondaryPrivateIpAddressCount int
	AllowReassignment              bool
}

type assignOutput struct {
	Interface string            `xml:"networkInterfaceId"`
	Assigned  []assignedAddress `xml:"assignedPrivateIpAddressesSet>item"`
}

type assignedAddress struct {
	Address string `xml:"privateIpAddress"`
}

// assign gives an interface secondary addresses. One that
// another interface of the subnet has as a secondary address moves if that is
// allowed.
func (n *network) assign(_ call, in *assignInput) (*assignOutput, error) {
	i := n.interfaces[in.NetworkInterfaceId]
	if i == nil {
		return nil, unknownInterface(in.NetworkInterfaceId)
	}
	if len(in.PrivateIpAddresses) > 0 && in.SecondaryPrivateIpAddressCount > 0 {
		return nil, badCombination("The parameter secondaryPrivateIpAddressCount cannot be used with the parameter privateIpAddresses")
	}
	if len(in.PrivateIpAddresses)+in.SecondaryPrivateIpAddressCount == 0 {
		return nil, missing("PrivateIpAddress")
	}
	wanted := slices.Concat(in.PrivateIpAddresses, make([]string, in.SecondaryPrivateIpAddressCount))
	more := 0
	for _, a := range wanted {
		isNew, err := n.checkAssign(i, a, in.AllowReassignment)
		if err != nil {
			return nil, err
		}
		if isNew {
			more++
		}
	}
	if len(i.addresses)+more > i.machine.kind.AddressesPerInterface {
		return nil, refuse("PrivateIpAddressLimitExceeded", "Number of private addresses will exceed limit.")
	}
	out := &assignOutput{Interface: i.id}
	for _, a := range wanted {
		if parsed, err := netip.ParseAddr(a); err == nil {
			n.unassign(parsed, i.subnet)
		}
		if err := n.addAddress(i, a); err != nil {
			return nil, err
		}
		out.Assigned = append(out.Assigned, assignedAddress{i.addresses[len(i.addresses)-1].String()})
	}
	return out, nil
}

// checkAssign reports whether an interface gets an address that it does not have.
func (n *network) checkAssign(i *netInterface, wanted string, reassign bool) (isNew bool, err error) {
	if wanted == "" {
		return true, nil
	}
	a, err := netip.ParseAddr(wanted)
	if err != nil {
		return false, invalid("Value (%s) for parameter privateIpAddress is invalid. Invalid IPv4 address", wanted)
	}
	if !i.subnet.Prefix.Contains(a) {
		return false, invalid("Address does not fall within the subnet's address range")
	}
	owner := n.interfaces[n.taken[i.subnet.ID][a]]
	switch {
	case owner == nil:
		return true, nil
	case owner.addresses[0] == a:
		return false, invalid("The primary private IP address %s cannot be assigned", wanted)
	case owner != i && !reassign:
		return false, refuse("Resource.AlreadyAssigned", "The address %s is already assigned.", wanted)
	}
	return owner != i, nil
}

// unassign takes a secondary address from the interface that has it.
func (n *network) unassign(a netip.Addr, s Subnet) {
	if owner := n.interfaces[n.taken[s.ID][a]]; owner != nil {
		owner.addresses = slices.DeleteFunc(owner.addresses, func(has netip.Addr) bool { return has == a })
		delete(n.taken[s.ID], a)
	}
}

type unassignInput struct {
	NetworkInterfaceId string   `q:",required"`
	PrivateIpAddresses []string `q:"PrivateIpAddress,required"`
}

func (n *network) unassignPrivateIPAddresses(_ call, in *unassignInput) (*returned, error) {
	i := n.interfaces[in.NetworkInterfaceId]
	if i == nil {
		return nil, unknownInterface(in.NetworkInterfaceId)
	}
	secondary := map[netip.Addr]bool{}
	for _, wanted := range in.PrivateIpAddresses {
		a, err := netip.ParseAddr(wanted)
		if err != nil || !slices.Contains(i.addresses[1:], a) {
			return nil, invalid("Some of [%s] are not assigned to interface %s", wanted, i.id)
		}
		secondary[a] = true
	}
	for a := range maps.Keys(secondary) {
		n.unassign(a, i.subnet)
	}
	return &returned{true}, nil
}
