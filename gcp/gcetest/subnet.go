package gcetest

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// A Subnet is a subnetwork.
type Subnet struct {
	Name    string
	Network string // default
	Region  string // that of the first zone
	Range   netip.Prefix

	Secondary map[string]netip.Prefix // further ranges, by name
	StackType string                  // IPV4_ONLY, IPV4_IPV6 or IPV6_ONLY
	IPv6      string                  // INTERNAL or EXTERNAL, where the stack type has IPv6
}

// reserved is how many addresses of a subnet the cloud keeps for itself: the
// first two and the last two ("Subnets", VPC documentation).
const reserved = 4

type subnet struct {
	Subnet
	path   string
	used   map[netip.Addr]string
	blocks map[netip.Prefix]string // alias ranges, by holder
	hosts  int                     // how many IPv6 addresses were given out
}

// A network is the subnets of the project.
type network struct {
	o          *Options
	sequence   *sequence
	operations *operationLog
	fleet      *fleet
	subnets    map[string]*subnet // by region/name
}

func newNetwork(o *Options, sequence *sequence, operations *operationLog, fleet *fleet) *network {
	w := &network{o: o, sequence: sequence, operations: operations, fleet: fleet, subnets: map[string]*subnet{}}
	for _, s := range o.Subnets {
		s.Region, s.Network, s.StackType = cmp.Or(s.Region, region(o.Zones[0])), cmp.Or(s.Network, "default"), cmp.Or(s.StackType, "IPV4_ONLY")
		w.subnets[s.Region+"/"+s.Name] = &subnet{
			Subnet: s, path: "projects/" + o.Project + "/regions/" + s.Region + "/subnetworks/" + s.Name,
			used: map[netip.Addr]string{}, blocks: map[netip.Prefix]string{},
		}
	}
	return w
}

// allocate gives an address to a holder, or reports that there is none.
func (s *subnet) allocate(holder string) (netip.Addr, bool) {
	if s.free() <= 0 {
		return netip.Addr{}, false
	}
	for a := s.Range.Masked().Addr().Next().Next(); s.Range.Contains(a); a = a.Next() {
		if _, taken := s.used[a]; !taken && !s.inBlock(a) {
			s.used[a] = holder
			return a, true
		}
	}
	return netip.Addr{}, false
}

func (s *subnet) inBlock(a netip.Addr) bool {
	for b := range s.blocks {
		if b.Contains(a) {
			return true
		}
	}
	return false
}

// free returns how many addresses of the primary range are free.
func (s *subnet) free() int {
	out := 1<<(s.Range.Addr().BitLen()-s.Range.Bits()) - reserved - len(s.used)
	for b := range s.blocks {
		if s.Range.Overlaps(b) {
			out -= 1 << (b.Addr().BitLen() - b.Bits())
		}
	}
	return max(out, 0)
}

// allocateBlock gives a range of that length to a holder, or reports that there is none.
func (s *subnet) allocateBlock(within netip.Prefix, bits int, holder string) (netip.Prefix, bool) {
	last := lastAddr(within)
	for b := netip.PrefixFrom(within.Masked().Addr(), bits); within.Contains(b.Addr()); b = netip.PrefixFrom(lastAddr(b).Next(), bits) {
		free := within != s.Range || b.Addr() != within.Masked().Addr() && lastAddr(b) != last
		for other := range s.blocks {
			free = free && !other.Overlaps(b)
		}
		for a := range s.used {
			free = free && !b.Contains(a)
		}
		if free {
			s.blocks[b] = holder
			return b, true
		}
	}
	return netip.Prefix{}, false
}

func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	return netip.AddrFrom4(b)
}

// release gives back what a holder has.
func (s *subnet) release(holder string) {
	maps.DeleteFunc(s.used, func(_ netip.Addr, h string) bool { return h == holder })
	maps.DeleteFunc(s.blocks, func(_ netip.Prefix, h string) bool { return h == holder })
}

func (s *subnet) exhausted() *OperationError {
	return &OperationError{"IP_SPACE_EXHAUSTED", "IP space of '" + s.path + "' is exhausted."}
}

// connect gives a network interface its addresses.
func (s *subnet) connect(m *machine, n *nic) *OperationError {
	if n.StackType != "IPV6_ONLY" {
		address, ok := s.allocate(m.key())
		if !ok {
			return s.exhausted()
		}
		n.NetworkIP = address.String()
		if n == m.NetworkInterfaces[0] {
			m.address = address
		}
	}
	if n.StackType != "" && n.StackType != "IPV4_ONLY" {
		s.hosts++
		n.IPv6Type = s.IPv6
		if s.IPv6 == "EXTERNAL" {
			for _, a := range n.IPv6Access {
				a.IPv6, a.IPv6Prefix = fmt.Sprintf("2600:1900:4000:0:0:%x::", s.hosts), 96
			}
		} else {
			n.IPv6Address, n.IPv6Prefix = fmt.Sprintf("fd20:1:2:3:0:%x::", s.hosts), 96
		}
	}
	if n.AliasIPRanges == nil {
		return nil
	}
	for i, r := range *n.AliasIPRanges {
		bits, _ := strconv.Atoi(strings.TrimPrefix(r.IPCidrRange, "/")) // checkAliases has read it
		block, ok := s.allocateBlock(s.named(r.SubnetworkRangeName), bits, m.key())
		if !ok {
			return s.exhausted()
		}
		(*n.AliasIPRanges)[i].IPCidrRange = block.String()
	}
	return nil
}

// named returns a range of the subnet; "" is the primary one.
func (s *subnet) named(name string) netip.Prefix {
	if name == "" {
		return s.Range
	}
	return s.Secondary[name]
}

// maxNICs is how many network interfaces a machine may have: one for each vCPU, at least
// two, at most ten ("Multiple network interfaces", VPC documentation).
func maxNICs(machineType string) int { return min(max(vCPUs(machineType), 2), 10) }

func (w *network) check(m *machine) *apiError {
	name := lastPart(m.MachineType)
	if n := len(m.NetworkInterfaces); n == 0 || n > maxNICs(name) {
		return invalidField("resource.networkInterfaces", "", "Invalid number of network interfaces: %d. Instances of type %s have 1 to %d.", n, name, maxNICs(name))
	}
	m.subnets = nil
	for i, n := range m.NetworkInterfaces {
		s, err := w.subnetOf(m, n, i)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(m.subnets, func(other *subnet) bool { return other.Network == s.Network }) {
			return invalidField(fmt.Sprintf("resource.networkInterfaces[%d]", i), "", "Networks must be distinct for NICs attached to a VM.")
		}
		if err := cmp.Or(s.checkStack(n, i), s.checkAliases(n, i)); err != nil {
			return err
		}
		m.subnets = append(m.subnets, s)
		n.Subnetwork = base + s.path
		n.Network = base + "projects/" + w.o.Project + "/global/networks/" + s.Network
	}
	return nil
}

// subnetOf finds the subnet that a network interface names, or that its network has in the
// region.
func (w *network) subnetOf(m *machine, n *nic, index int) (*subnet, *apiError) {
	home := region(m.zone)
	if path := n.Subnetwork; path != "" {
		if !strings.HasSuffix(path, "regions/"+home+"/subnetworks/"+lastPart(path)) {
			return nil, invalidField(fmt.Sprintf("resource.networkInterfaces[%d].subnetwork", index), path, "The referenced subnetwork resource cannot be found in the region of the zone.")
		}
		if s := w.subnets[home+"/"+lastPart(path)]; s != nil {
			return s, nil
		}
		return nil, notFound("projects/" + w.o.Project + "/regions/" + home + "/subnetworks/" + lastPart(path))
	}
	network := cmp.Or(lastPart(n.Network), "default")
	for _, key := range slices.Sorted(maps.Keys(w.subnets)) {
		if s := w.subnets[key]; s.Region == home && s.Network == network {
			return s, nil
		}
	}
	return nil, notFound("projects/" + w.o.Project + "/global/networks/" + network)
}

// checkStack refuses addresses that a subnet does not have.
func (s *subnet) checkStack(n *nic, index int) *apiError {
	at := fmt.Sprintf("resource.networkInterfaces[%d].", index)
	stack := cmp.Or(n.StackType, "IPV4_ONLY")
	for _, a := range n.AccessConfigs {
		if a.Type != "ONE_TO_ONE_NAT" || !slices.Contains([]string{"", "PREMIUM", "STANDARD"}, a.NetworkTier) {
			return invalidField(at+"accessConfigs", a.Type, "Unknown type or network tier.")
		}
	}
	for _, a := range n.IPv6Access {
		if a.Type != "DIRECT_IPV6" || a.NetworkTier != "PREMIUM" {
			return invalidField(at+"ipv6AccessConfigs", a.Type, "Must be of type DIRECT_IPV6 and of the network tier PREMIUM.")
		}
	}
	switch {
	case !slices.Contains([]string{"IPV4_ONLY", "IPV4_IPV6", "IPV6_ONLY"}, stack):
		return invalidField(at+"stackType", stack, "Unknown value.")
	case s.StackType == "IPV4_ONLY" && stack != "IPV4_ONLY", s.StackType == "IPV6_ONLY" && stack != "IPV6_ONLY":
		return invalidField(at+"stackType", stack, "The stack type of the subnetwork is %s.", s.StackType)
	case len(n.AccessConfigs) > 1 || len(n.IPv6Access) > 1:
		return invalidField(at+"accessConfigs", "", "At most one access config is permitted.")
	case len(n.AccessConfigs) > 0 && stack == "IPV6_ONLY":
		return invalidField(at+"accessConfigs", "", "An interface of the stack type IPV6_ONLY has none.")
	case len(n.IPv6Access) > 0 && (stack == "IPV4_ONLY" || s.IPv6 != "EXTERNAL"):
		return invalidField(at+"ipv6AccessConfigs", "", "The subnetwork has no external IPv6 addresses, or the interface no IPv6.")
	}
	return nil
}

// checkAliases refuses alias ranges that are no lengths, longer than their range, or of a
// range that the subnet does not have.
func (s *subnet) checkAliases(n *nic, index int) *apiError {
	if n.AliasIPRanges == nil {
		return nil
	}
	for i, r := range *n.AliasIPRanges {
		at := fmt.Sprintf("resource.networkInterfaces[%d].aliasIpRanges[%d].", index, i)
		whole := s.named(r.SubnetworkRangeName)
		if !whole.IsValid() {
			return invalidField(at+"subnetworkRangeName", r.SubnetworkRangeName, "The subnetwork has no such secondary range.")
		}
		text, isLength := strings.CutPrefix(r.IPCidrRange, "/")
		bits, err := strconv.Atoi(text)
		if !isLength || err != nil || bits < whole.Bits() || bits > 32 {
			return invalidField(at+"ipCidrRange", r.IPCidrRange, "Must be a length such as /24 that fits into the range; others are not known here.")
		}
		if n.StackType == "IPV6_ONLY" {
			return invalidField(at+"ipCidrRange", r.IPCidrRange, "An interface of the stack type IPV6_ONLY has no alias ranges.")
		}
	}
	return nil
}

func (w *network) get(q *call) (any, *apiError) {
	s := w.subnets[q.r.PathValue("region")+"/"+q.name]
	if s == nil {
		return nil, notFound("projects/" + w.o.Project + "/regions/" + q.r.PathValue("region") + "/subnetworks/" + q.name)
	}
	out := map[string]any{
		"kind": "compute#subnetwork", "id": "3000", "name": s.Name, "ipCidrRange": s.Range.String(), "selfLink": base + s.path, "stackType": s.StackType,
		"network": base + "projects/" + w.o.Project + "/global/networks/" + s.Network, "region": base + "projects/" + w.o.Project + "/regions/" + s.Region,
	}
	var secondary []map[string]any
	for _, name := range slices.Sorted(maps.Keys(s.Secondary)) {
		secondary = append(secondary, map[string]any{"rangeName": name, "ipCidrRange": s.Secondary[name].String()})
	}
	if secondary != nil {
		out["secondaryIpRanges"] = secondary
	}
	switch views := q.query.Get("views"); views {
	case "", "DEFAULT":
	case "WITH_UTILIZATION":
		out["utilizationDetails"] = map[string]any{"ipv4Utilizations": []map[string]any{{
			"totalFreeIp": fmt.Sprint(s.free()), "totalAllocatedIp": fmt.Sprint(len(s.used)),
		}}}
	default:
		return nil, invalidField("views", views, "Unknown value.")
	}
	return out, nil
}

// updateNIC changes the alias addresses of a network interface.
func (w *network) updateNIC(q *call) (any, *apiError) {
	m, err := w.fleet.find(q)
	if err != nil {
		return nil, err
	}
	var in nic
	if err := decode(q, &in); err != nil {
		return nil, err
	}
	n := m.NetworkInterfaces[0]
	switch {
	case q.query.Get("networkInterface") != n.Name:
		return nil, invalidField("networkInterface", q.query.Get("networkInterface"), "The network interface does not exist.")
	case in.Fingerprint == "":
		return nil, refuse(http.StatusBadRequest, "required", "Required field 'resource.fingerprint' not specified")
	case in.Fingerprint != n.Fingerprint:
		return nil, refuse(http.StatusPreconditionFailed, "conditionNotMet", "Supplied fingerprint does not match current network interface fingerprint.")
	}
	op := w.operations.begin(q, m, "updateNetworkInterface")
	if in.AliasIPRanges == nil { // a patch without the field changes nothing
		w.operations.finish(op, nil)
		return op, nil
	}
	for _, r := range *in.AliasIPRanges {
		p, bad := netip.ParsePrefix(r.IPCidrRange)
		if bad != nil || !m.subnets[0].Range.Contains(p.Addr()) {
			return nil, invalidField("resource.aliasIpRanges[0].ipCidrRange", r.IPCidrRange, "The range is not in the subnetwork.")
		}
		if holder, taken := m.subnets[0].used[p.Addr()]; taken && holder != m.key() {
			w.operations.finish(op, &OperationError{"IP_IN_USE_BY_ANOTHER_RESOURCE", "IP '" + p.Addr().String() + "' is already being used by another resource."})
			return op, nil
		}
	}
	w.fleet.timers.After(max(w.o.Delays.Stop, 0), func() {
		for a, holder := range m.subnets[0].used {
			if holder == m.key() && a != m.address {
				delete(m.subnets[0].used, a)
			}
		}
		for _, r := range *in.AliasIPRanges {
			m.subnets[0].used[netip.MustParsePrefix(r.IPCidrRange).Addr()] = m.key()
		}
		n.AliasIPRanges, n.Fingerprint = in.AliasIPRanges, w.sequence.print()
		w.operations.finish(op, nil)
	})
	return op, nil
}
