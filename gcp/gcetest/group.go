package gcetest

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// A Group is what a load balancer sends traffic to: a zonal network endpoint
// group, or an unmanaged instance group.
type Group struct {
	Name string
	Zone string // the first zone
	Type string // GCE_VM_IP, GCE_VM_IP_PORT; empty: an instance group
	Port int    // of GCE_VM_IP_PORT
}

func (g Group) key() string { return g.Zone + "/" + g.collection() + "/" + g.Name }

func (g Group) collection() string {
	if g.Type == "" {
		return "instanceGroups"
	}
	return "networkEndpointGroups"
}

type group struct {
	Group
	members []*endpoint // in the order in which they came
}

type endpoint struct {
	Instance  string `json:"instance,omitempty"` // its name, or its URL in an instance group
	IPAddress string `json:"ipAddress,omitempty"`
	Port      int    `json:"port,omitempty"`
}

func (g *group) drop(name, zone string) {
	g.members = slices.DeleteFunc(g.members, func(e *endpoint) bool { return g.Zone == zone && lastPart(e.Instance) == name })
}

func (c *Cloud) group(q *call, collection string) (*group, *apiError) {
	g := c.groups[q.zone+"/"+collection+"/"+q.name]
	if g == nil {
		return nil, notFound("projects/" + c.o.Project + "/zones/" + q.zone + "/" + collection + "/" + q.name)
	}
	return g, nil
}

func (c *Cloud) groupPath(g *group) string {
	return "projects/" + c.o.Project + "/zones/" + g.Zone + "/" + g.collection() + "/" + g.Name
}

type endpointsRequest struct {
	NetworkEndpoints []*endpoint `json:"networkEndpoints,omitempty"`
}

// maxEndpoints is how many endpoints one call may name (networkEndpointGroups
// attachNetworkEndpoints, quota of the API).
const maxEndpoints = 500

func (c *Cloud) endpoints(q *call) (*group, []*endpoint, *apiError) {
	g, err := c.group(q, "networkEndpointGroups")
	if err != nil {
		return nil, nil, err
	}
	var in endpointsRequest
	if err := decode(q, &in); err != nil {
		return nil, nil, err
	}
	if n := len(in.NetworkEndpoints); n == 0 || n > maxEndpoints {
		return nil, nil, invalidField("networkEndpoints", "", "%d network endpoints.", n)
	}
	for _, e := range in.NetworkEndpoints {
		if g.Type == "GCE_VM_IP" && e.Port != 0 {
			return nil, nil, invalidField("networkEndpoints.port", "", "Port must not be specified for a network endpoint of type GCE_VM_IP.")
		}
		if e.Port == 0 {
			e.Port = g.Port
		}
		if e.Instance == "" {
			return nil, nil, invalidField("networkEndpoints.instance", "", "Instance must be specified.")
		}
		e.Instance = lastPart(e.Instance)
	}
	return g, in.NetworkEndpoints, nil
}

func (c *Cloud) attach(q *call) (any, *apiError) {
	g, in, err := c.endpoints(q)
	if err != nil {
		return nil, err
	}
	if err := c.permit(q, "compute.instances.use"); err != nil {
		return nil, err
	}
	for _, e := range in {
		m := c.instances[q.zone+"/"+e.Instance]
		if m == nil {
			return nil, notFound("projects/" + c.o.Project + "/zones/" + q.zone + "/instances/" + e.Instance)
		}
		if e.IPAddress != "" && e.IPAddress != m.address.String() {
			return nil, invalidField("networkEndpoints.ipAddress", e.IPAddress, "The address does not belong to the instance.")
		}
		e.IPAddress = m.address.String()
		if !slices.ContainsFunc(g.members, e.equal) {
			g.members = append(g.members, e)
		}
	}
	op := c.beginAt(q, "attachNetworkEndpoints", c.groupPath(g), "4000")
	c.timers.After(c.o.Delays.Stop, func() { c.finish(op) })
	return op, nil
}

func (e *endpoint) equal(o *endpoint) bool { return e.Instance == o.Instance && e.Port == o.Port }

func (c *Cloud) detach(q *call) (any, *apiError) {
	g, in, err := c.endpoints(q)
	if err != nil {
		return nil, err
	}
	for _, e := range in {
		if !slices.ContainsFunc(g.members, e.equal) {
			return nil, refuse(http.StatusBadRequest, "invalid", "Invalid value for field 'networkEndpoints': network endpoint %s is not found in the network endpoint group.", e.Instance)
		}
	}
	for _, e := range in {
		g.members = slices.DeleteFunc(g.members, e.equal)
	}
	op := c.beginAt(q, "detachNetworkEndpoints", c.groupPath(g), "4000")
	c.timers.After(c.o.Delays.Stop, func() { c.finish(op) })
	return op, nil
}

// An item is one entry of a list of members.
type item struct {
	Endpoint *endpoint `json:"networkEndpoint,omitempty"`
	Instance string    `json:"instance,omitempty"`
	Status   string    `json:"status,omitempty"`
}

func (i *item) listName() string {
	if i.Endpoint != nil {
		return i.Endpoint.Instance
	}
	return lastPart(i.Instance)
}

func (*item) field(string) (string, bool) { return "", false }

func (c *Cloud) listEndpoints(q *call) (any, *apiError) {
	var in struct {
		HealthStatus string `json:"healthStatus,omitempty"`
	}
	if err := decode(q, &in); err != nil {
		return nil, err
	}
	g, err := c.group(q, "networkEndpointGroups")
	if err != nil {
		return nil, err
	}
	var all []resource
	for _, e := range g.members {
		all = append(all, &item{Endpoint: e})
	}
	out, err := c.list(q, "compute#networkEndpointGroupsListNetworkEndpoints", all)
	return withoutLink(out), err
}

// withoutLink drops the link that lists of endpoints do not have.
func withoutLink(out any) any {
	if p, ok := out.(page); ok {
		p.SelfLink = ""
		return p
	}
	return out
}

type instancesRequest struct {
	Instances []struct {
		Instance string `json:"instance"`
	} `json:"instances,omitempty"`
}

// named returns the names that a request to an instance group gives.
func (c *Cloud) named(q *call) (*group, []string, *apiError) {
	g, err := c.group(q, "instanceGroups")
	if err != nil {
		return nil, nil, err
	}
	var in instancesRequest
	if err := decode(q, &in); err != nil {
		return nil, nil, err
	}
	var out []string
	for _, i := range in.Instances {
		if !strings.HasSuffix(i.Instance, "/zones/"+q.zone+"/instances/"+lastPart(i.Instance)) {
			return nil, nil, invalidField("instances.instance", i.Instance, "The URL is malformed.")
		}
		out = append(out, lastPart(i.Instance))
	}
	return g, out, nil
}

func (c *Cloud) addInstances(q *call) (any, *apiError) {
	g, names, err := c.named(q)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		m := c.instances[q.zone+"/"+name]
		if m == nil {
			return nil, notFound("projects/" + c.o.Project + "/zones/" + q.zone + "/instances/" + name)
		}
		if g.has(name) {
			return nil, refuse(http.StatusBadRequest, "memberAlreadyExists", "Member '%s' already exists in the instance group.", m.SelfLink)
		}
		for _, other := range c.groups {
			if other.Type == "" && other != g && other.has(name) {
				return nil, refuse(http.StatusBadRequest, "instanceInMultipleLoadBalancedIgs", "Instance '%s' is in another load balanced instance group.", name)
			}
		}
	}
	for _, name := range names {
		g.members = append(g.members, &endpoint{Instance: c.instances[q.zone+"/"+name].SelfLink})
	}
	op := c.beginAt(q, "compute.instanceGroups.addInstances", c.groupPath(g), "4000")
	c.timers.After(c.o.Delays.Stop, func() { c.finish(op) })
	return op, nil
}

func (g *group) has(name string) bool {
	return slices.ContainsFunc(g.members, func(e *endpoint) bool { return lastPart(e.Instance) == name })
}

func (c *Cloud) removeInstances(q *call) (any, *apiError) {
	g, names, err := c.named(q)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if !g.has(name) {
			return nil, refuse(http.StatusBadRequest, "memberNotFound", "Member '%s' does not exist in the instance group.", name)
		}
	}
	for _, name := range names {
		g.drop(name, g.Zone)
	}
	op := c.beginAt(q, "compute.instanceGroups.removeInstances", c.groupPath(g), "4000")
	c.timers.After(c.o.Delays.Stop, func() { c.finish(op) })
	return op, nil
}

func (c *Cloud) listMembers(q *call) (any, *apiError) {
	var in struct {
		InstanceState string `json:"instanceState,omitempty"`
	}
	if err := decode(q, &in); err != nil {
		return nil, err
	}
	g, err := c.group(q, "instanceGroups")
	if err != nil {
		return nil, err
	}
	var all []resource
	for _, e := range g.members {
		all = append(all, &item{Instance: e.Instance, Status: c.instances[g.Zone+"/"+lastPart(e.Instance)].Status})
	}
	return c.list(q, "compute#instanceGroupsListInstances", all)
}

// updateNIC changes the alias addresses of a network interface.
func (c *Cloud) updateNIC(q *call) (any, *apiError) {
	m, err := c.find(q)
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
	op := c.begin(q, m, "updateNetworkInterface")
	if in.AliasIPRanges == nil { // a patch without the field changes nothing
		c.finish(op)
		return op, nil
	}
	for _, r := range *in.AliasIPRanges {
		p, bad := netip.ParsePrefix(r.IPCidrRange)
		if bad != nil || !m.subnets[0].Range.Contains(p.Addr()) {
			return nil, invalidField("resource.aliasIpRanges[0].ipCidrRange", r.IPCidrRange, "The range is not in the subnetwork.")
		}
		if holder, taken := m.subnets[0].used[p.Addr()]; taken && holder != m.key() {
			c.fail(op, &OperationError{"IP_IN_USE_BY_ANOTHER_RESOURCE", "IP '" + p.Addr().String() + "' is already being used by another resource."})
			return op, nil
		}
	}
	c.timers.After(max(c.o.Delays.Stop, 0), func() {
		for a, holder := range m.subnets[0].used {
			if holder == m.key() && a != m.address {
				delete(m.subnets[0].used, a)
			}
		}
		for _, r := range *in.AliasIPRanges {
			m.subnets[0].used[netip.MustParsePrefix(r.IPCidrRange).Addr()] = m.key()
		}
		n.AliasIPRanges, n.Fingerprint = in.AliasIPRanges, c.print()
		c.finish(op)
	})
	return op, nil
}
