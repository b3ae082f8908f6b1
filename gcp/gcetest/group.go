package gcetest

import (
	"cmp"
	"net/http"
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

// A balancer has the groups that load balancers send traffic to.
type balancer struct {
	o          *Options
	operations *operationLog
	fleet      *fleet
	groups     map[string]*group // by key
}

func newBalancer(o *Options, operations *operationLog, fleet *fleet) *balancer {
	b := &balancer{o: o, operations: operations, fleet: fleet, groups: map[string]*group{}}
	for _, g := range o.Groups {
		g.Zone = cmp.Or(g.Zone, o.Zones[0])
		b.groups[g.key()] = &group{Group: g}
	}
	return b
}

// remove takes a machine that is gone out of its groups.
func (b *balancer) remove(m *machine) {
	for _, g := range b.groups {
		g.drop(m.Name, m.zone)
	}
}

// accept begins the operation of a group's change.
func (b *balancer) accept(q *call, kind string, g *group) *operation {
	op := b.operations.beginAt(q, kind, "projects/"+b.o.Project+"/zones/"+g.key(), "4000")
	b.fleet.timers.After(b.o.Delays.Stop, func() { b.operations.finish(op, nil) })
	return op
}

// group returns the group that a call names, and reads the call's body.
func (b *balancer) group(q *call, collection string, in any) (*group, *apiError) {
	if err := decode(q, in); err != nil {
		return nil, err
	}
	key := q.zone + "/" + collection + "/" + q.name
	if b.groups[key] == nil {
		return nil, notFound("projects/" + b.o.Project + "/zones/" + key)
	}
	return b.groups[key], nil
}

// maxEndpoints is how many endpoints one call may name (networkEndpointGroups
// attachNetworkEndpoints, quota of the API).
const maxEndpoints = 500

func (b *balancer) endpoints(q *call) (*group, []*endpoint, *apiError) {
	var in struct {
		NetworkEndpoints []*endpoint `json:"networkEndpoints,omitempty"`
	}
	g, err := b.group(q, "networkEndpointGroups", &in)
	if err != nil {
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

func (b *balancer) attach(q *call) (any, *apiError) {
	g, in, err := b.endpoints(q)
	if err != nil {
		return nil, err
	}
	if err := b.o.permit(q, "compute.instances.use"); err != nil {
		return nil, err
	}
	for _, e := range in {
		m := b.fleet.machines[q.zone+"/"+e.Instance]
		if m == nil {
			return nil, notFound("projects/" + b.o.Project + "/zones/" + q.zone + "/instances/" + e.Instance)
		}
		if e.IPAddress != "" && e.IPAddress != m.address.String() {
			return nil, invalidField("networkEndpoints.ipAddress", e.IPAddress, "The address does not belong to the instance.")
		}
		e.IPAddress = m.address.String()
		if !slices.ContainsFunc(g.members, e.equal) {
			g.members = append(g.members, e)
		}
	}
	return b.accept(q, "attachNetworkEndpoints", g), nil
}

func (e *endpoint) equal(o *endpoint) bool { return e.Instance == o.Instance && e.Port == o.Port }

func (b *balancer) detach(q *call) (any, *apiError) {
	g, in, err := b.endpoints(q)
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
	return b.accept(q, "detachNetworkEndpoints", g), nil
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

func (b *balancer) listEndpoints(q *call) (any, *apiError) {
	var in struct {
		HealthStatus string `json:"healthStatus,omitempty"`
	}
	g, err := b.group(q, "networkEndpointGroups", &in)
	if err != nil {
		return nil, err
	}
	var all []resource
	for _, e := range g.members {
		all = append(all, &item{Endpoint: e})
	}
	out, err := b.o.list(q, "compute#networkEndpointGroupsListNetworkEndpoints", all)
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

// named returns the names that a request to an instance group gives.
func (b *balancer) named(q *call) (*group, []string, *apiError) {
	var in struct {
		Instances []struct {
			Instance string `json:"instance"`
		} `json:"instances,omitempty"`
	}
	g, err := b.group(q, "instanceGroups", &in)
	if err != nil {
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

func (b *balancer) addInstances(q *call) (any, *apiError) {
	g, names, err := b.named(q)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		m := b.fleet.machines[q.zone+"/"+name]
		if m == nil {
			return nil, notFound("projects/" + b.o.Project + "/zones/" + q.zone + "/instances/" + name)
		}
		if g.has(name) {
			return nil, refuse(http.StatusBadRequest, "memberAlreadyExists", "Member '%s' already exists in the instance group.", m.SelfLink)
		}
		for _, other := range b.groups {
			if other.Type == "" && other != g && other.has(name) {
				return nil, refuse(http.StatusBadRequest, "instanceInMultipleLoadBalancedIgs", "Instance '%s' is in another load balanced instance group.", name)
			}
		}
	}
	for _, name := range names {
		g.members = append(g.members, &endpoint{Instance: b.fleet.machines[q.zone+"/"+name].SelfLink})
	}
	return b.accept(q, "compute.instanceGroups.addInstances", g), nil
}

func (g *group) has(name string) bool {
	return slices.ContainsFunc(g.members, func(e *endpoint) bool { return lastPart(e.Instance) == name })
}

func (b *balancer) removeInstances(q *call) (any, *apiError) {
	g, names, err := b.named(q)
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
	return b.accept(q, "compute.instanceGroups.removeInstances", g), nil
}

func (b *balancer) listMembers(q *call) (any, *apiError) {
	var in struct {
		InstanceState string `json:"instanceState,omitempty"`
	}
	g, err := b.group(q, "instanceGroups", &in)
	if err != nil {
		return nil, err
	}
	var all []resource
	for _, e := range g.members {
		all = append(all, &item{Instance: e.Instance, Status: b.fleet.machines[g.Zone+"/"+lastPart(e.Instance)].Status})
	}
	return b.o.list(q, "compute#instanceGroupsListInstances", all)
}
