package gcp

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
)

// An Interface is a further network interface of a machine.
type Interface struct {
	Network      string       `json:"network,omitempty" doc:"name or path of its network"`
	Subnet       string       `json:"subnet,omitempty" doc:"name or path of its subnet, in place of network"`
	NICType      string       `json:"nic_type,omitempty" doc:"kind of network interface" enum:"GVNIC|VIRTIO_NET"`
	ExternalIP   bool         `json:"external_ip,omitempty" doc:"give it a public IPv4 address" default:"false"`
	NetworkTier  string       `json:"network_tier,omitempty" doc:"network tier of the public IPv4 address" enum:"PREMIUM|STANDARD" default:"the project's"`
	StackType    string       `json:"stack_type,omitempty" doc:"which addresses it has; those of its subnet must include them" enum:"IPV4_ONLY|IPV4_IPV6|IPV6_ONLY" default:"IPV4_ONLY"`
	ExternalIPv6 bool         `json:"external_ipv6,omitempty" doc:"give it a public IPv6 address; its subnet must have external ones" default:"false"`
	AliasRanges  []AliasRange `json:"alias_ranges,omitempty" doc:"alias ranges, such as addresses for pods"`
}

// An AliasRange is a range of further addresses of a network interface.
type AliasRange struct {
	Range string `json:"range" doc:"its length, such as /24; the cloud chooses a free range of the subnet" required:"true"`
	Name  string `json:"name,omitempty" doc:"name of the subnet's secondary range that it is part of" default:"the subnet's primary range"`
}

// The stack types of a network interface.
const (
	stackIPv4 = "IPV4_ONLY"
	stackIPv6 = "IPV6_ONLY"
)

// lengthPattern is a length of a range: one address is a range too. An address would be
// that of one machine only.
var lengthPattern = regexp.MustCompile(`^/([1-9]|[12][0-9]|3[0-2])$`)

// firstInterface is what args say of the first network interface, which is in subnet unless
// that is empty.
func (a *Args) firstInterface(subnet string) Interface {
	return Interface{
		Network: a.Network, Subnet: subnet, NICType: a.NICType, ExternalIP: a.ExternalIP, NetworkTier: a.NetworkTier,
		StackType: a.StackType, ExternalIPv6: a.ExternalIPv6, AliasRanges: a.AliasRanges,
	}
}

// checkInterfaces refuses network interfaces that no machine can have.
func (a *Args) checkInterfaces() error {
	first := a.firstInterface("")
	if err := first.check("args."); err != nil {
		return err
	}
	for i, n := range a.Interfaces {
		at := fmt.Sprintf("args.interfaces[%d].", i)
		if (n.Network == "") == (n.Subnet == "") {
			return nstance.FieldError(at+"network", "give either network or subnet", "interface %d has neither or both", i)
		}
		if strings.Contains(n.Subnet, "?") {
			return nstance.FieldError(at+"subnet", "write its name or path; the entry of subnet_pools names the zone", "%.128q is no subnet", n.Subnet)
		}
		if err := n.check(at); err != nil {
			return err
		}
	}
	return nil
}

func (n *Interface) check(at string) error {
	for i, r := range n.AliasRanges {
		switch field := fmt.Sprintf("%salias_ranges[%d].", at, i); {
		case !lengthPattern.MatchString(r.Range):
			return nstance.FieldError(field+"range", "write a length, such as /24", "%.64q is none; machines cannot share a range", r.Range)
		case r.Name != "" && !namePattern.MatchString(r.Name):
			return nstance.FieldError(field+"name", "write the name of a secondary range", "%.64q is no such name", r.Name)
		}
	}
	switch {
	case n.NetworkTier != "" && !n.ExternalIP:
		return nstance.FieldError(at+"network_tier", "set "+at+"external_ip too", "there is no public IPv4 address")
	case n.ExternalIP && n.StackType == stackIPv6:
		return nstance.FieldError(at+"external_ip", "remove it, or use the stack type IPV4_IPV6", "an interface of the stack type IPV6_ONLY has no IPv4 address")
	case len(n.AliasRanges) > 0 && n.StackType == stackIPv6:
		return nstance.FieldError(at+"alias_ranges", "remove them, or use the stack type IPV4_IPV6", "an interface of the stack type IPV6_ONLY has no IPv4 address")
	case n.ExternalIPv6 && cmp.Or(n.StackType, stackIPv4) == stackIPv4:
		return nstance.FieldError(at+"external_ipv6", "set "+at+"stack_type IPV4_IPV6", "an interface of the stack type IPV4_ONLY has no IPv6 address")
	}
	return nil
}

// maxInterfaces is how many network interfaces any machine may have, without dynamic ones
// (https://cloud.google.com/vpc/docs/create-use-multiple-interfaces#max-interfaces).
const maxInterfaces = 10

// checkInterfaceCount refuses more network interfaces than a machine type may have: one for
// each vCPU, but at least two. Where its name does not say its vCPUs, the cloud judges.
func (a *Args) checkInterfaceCount(machineType string) error {
	limit := maxInterfaces
	if cpus := cpusOf(machineType); cpus > 0 {
		limit = min(max(cpus, 2), maxInterfaces)
	}
	if n := 1 + len(a.Interfaces); n > limit {
		return nstance.FieldError("args.interfaces", "remove some, or use a larger machine type", "%d network interfaces are more than the %d of %s", n, limit, machineType)
	}
	return nil
}

// nics returns the network interfaces to ask for.
func (a *Args) nics(o *Options, zone, subnet string) []*computepb.NetworkInterface {
	first := a.firstInterface(subnet)
	out := []*computepb.NetworkInterface{first.nic(o, zone)}
	for _, n := range a.Interfaces {
		out = append(out, n.nic(o, zone))
	}
	return out
}

func (n *Interface) nic(o *Options, zone string) *computepb.NetworkInterface {
	out := &computepb.NetworkInterface{}
	switch {
	case n.Subnet != "":
		out.Subnetwork = proto.String(o.subnetPath(zone, n.Subnet))
	case strings.Contains(n.Network, "/"):
		out.Network = proto.String(n.Network)
	default:
		out.Network = proto.String("projects/" + o.Project + "/global/networks/" + cmp.Or(n.Network, "default"))
	}
	if n.NICType != "" {
		out.NicType = proto.String(n.NICType)
	}
	if n.StackType != "" {
		out.StackType = proto.String(n.StackType)
	}
	if n.ExternalIP {
		access := &computepb.AccessConfig{Name: proto.String("External NAT"), Type: proto.String("ONE_TO_ONE_NAT")}
		if n.NetworkTier != "" {
			access.NetworkTier = proto.String(n.NetworkTier)
		}
		out.AccessConfigs = []*computepb.AccessConfig{access}
	}
	if n.ExternalIPv6 {
		out.Ipv6AccessConfigs = []*computepb.AccessConfig{{
			Name: proto.String("External IPv6"), Type: proto.String("DIRECT_IPV6"), NetworkTier: proto.String("PREMIUM"),
		}}
	}
	for _, r := range n.AliasRanges {
		alias := &computepb.AliasIpRange{IpCidrRange: proto.String(r.Range)}
		if r.Name != "" {
			alias.SubnetworkRangeName = proto.String(r.Name)
		}
		out.AliasIpRanges = append(out.AliasIpRanges, alias)
	}
	return out
}
