package gcp

import (
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

// BalancerArgs are load_balancers.<name>.args.
type BalancerArgs struct {
	Kind string `json:"kind,omitempty" doc:"what the load balancer's ID names: a zonal network endpoint group of type GCE_VM_IP or GCE_VM_IP_PORT, or an unmanaged instance group" enum:"network_endpoint_group|instance_group" default:"network_endpoint_group"`
	Port int32  `json:"port,omitempty" doc:"port of the endpoints, for type GCE_VM_IP_PORT" default:"that of the group" min:"1" max:"65535"`
}

// The kinds of groups that machines join.
const (
	kindEndpoints = "network_endpoint_group"
	kindInstances = "instance_group"
)

// A group is a load balancer as the configuration names it, in one zone: the cloud's groups
// are zonal.
type group struct {
	p    *Provider
	zone string
	name string
	path string
	kind string
	port int32
}

// groupsIn returns the groups of a load balancer, one of the same name in each of the zones.
func (p *Provider) groupsIn(lb nstance.LoadBalancer, zones []string) ([]*group, error) {
	if len(p.zones) > 1 && strings.Contains(lb.ID, "/") {
		return nil, nstance.FieldError("load_balancers."+lb.Name+".id", "write the name only, set args.kind for an instance group, and make a group of that name in each zone",
			"%.128q is in one zone, and the shard in %d", lb.ID, len(p.zones))
	}
	out := make([]*group, len(zones))
	for i, zone := range zones {
		g, err := p.group(lb, zone)
		if err != nil {
			return nil, err
		}
		out[i] = g
	}
	return out, nil
}

// group reads a load balancer's ID, a name or a path, and its args.
func (p *Provider) group(lb nstance.LoadBalancer, zone string) (*group, error) {
	a := BalancerArgs{Kind: kindEndpoints}
	if strings.Contains(lb.ID, "/instanceGroups/") {
		a.Kind = kindInstances
	}
	if err := provider.DecodeArgs(lb.Args, &a); err != nil {
		return nil, err
	}
	g := &group{p: p, zone: zone, name: lastPart(lb.ID), kind: a.Kind, port: a.Port}
	collection := map[string]string{kindEndpoints: "networkEndpointGroups", kindInstances: "instanceGroups"}[a.Kind]
	switch {
	case collection == "":
		return nil, nstance.FieldError("args.kind", "use "+kindEndpoints+" or "+kindInstances, "%.64q is neither", a.Kind)
	case a.Port < 0 || a.Port > 65535 || a.Port != 0 && a.Kind == kindInstances:
		return nil, nstance.FieldError("args.port", "use 1 to 65535, for network endpoint groups only", "%d makes no sense", a.Port)
	case !namePattern.MatchString(g.name):
		return nil, nstance.FieldError("load_balancers."+lb.Name+".id", "write the name of a group", "%.64q is no name", lb.ID)
	}
	g.path = p.zonePath(zone) + "/" + collection + "/" + g.name
	if i := max(0, strings.Index(lb.ID, "projects/")); strings.Contains(lb.ID, "/") && !strings.HasSuffix("/"+g.path, "/"+lb.ID[i:]) {
		return nil, nstance.FieldError("load_balancers."+lb.Name+".id", "use a group of zone "+zone, "%.128q is in another project or zone, or of another kind", lb.ID)
	}
	return g, nil
}

// BalancerMembers implements [nstance.Balancer]. A zone without such a group has no members;
// it is NotFound when no zone has one.
func (p *Provider) BalancerMembers(ctx context.Context, lb nstance.LoadBalancer) ([]string, error) {
	groups, err := p.groupsIn(lb, p.zones)
	if err != nil {
		return nil, err
	}
	members := make([][]*computepb.NetworkEndpoint, len(groups))
	errs := make([]error, len(groups))
	inZones(p.zones, func(i int, _ string) { members[i], errs[i] = groups[i].members(ctx) })
	absent := 0
	for _, err := range errs {
		switch {
		case err == nil:
		case nstance.CodeOf(err) == nstance.NotFound:
			absent++
		default:
			return nil, err
		}
	}
	if absent == len(groups) {
		return nil, errs[0]
	}
	var out []string
	for i, g := range groups {
		for _, m := range members[i] {
			if handle := p.handle(g.zone, lastPart(m.GetInstance())); !slices.Contains(out, handle) {
				out = append(out, handle)
			}
		}
	}
	return out, nil
}

// JoinBalancer implements [nstance.Balancer]. Each machine joins the group of its zone.
func (p *Provider) JoinBalancer(ctx context.Context, lb nstance.LoadBalancer, machines []nstance.Machine) error {
	return p.eachGroup(lb, machines, func(g *group, here []nstance.Machine) error { return g.join(ctx, here) })
}

// LeaveBalancer implements [nstance.Balancer]. It returns when the cloud has
// taken the machines out.
func (p *Provider) LeaveBalancer(ctx context.Context, lb nstance.LoadBalancer, machines []nstance.Machine) error {
	return p.eachGroup(lb, machines, func(g *group, here []nstance.Machine) error { return g.leave(ctx, here) })
}

// eachGroup calls do with the group of each zone that has some of the machines, at once: a
// zone that does not answer does not keep the others from a change.
func (p *Provider) eachGroup(lb nstance.LoadBalancer, machines []nstance.Machine, do func(*group, []nstance.Machine) error) error {
	in := map[string][]nstance.Machine{}
	for _, m := range machines {
		zone := p.zoneOf(m)
		in[zone] = append(in[zone], m)
	}
	if len(machines) == 0 {
		in[p.zone] = nil // that there is no such group is an error all the same
	}
	zones := slices.Sorted(maps.Keys(in))
	groups, err := p.groupsIn(lb, zones)
	if err != nil {
		return err
	}
	return eachZone(zones, func(zone string) error {
		i, _ := slices.BinarySearch(zones, zone)
		return do(groups[i], in[zone])
	})
}

// join first reads who is a member: to an instance group the cloud adds all machines of a
// call, or none.
func (g *group) join(ctx context.Context, machines []nstance.Machine) error {
	members, err := g.members(ctx)
	if err != nil {
		return err
	}
	var missing []*computepb.NetworkEndpoint
	for _, m := range machines {
		if !slices.ContainsFunc(members, func(e *computepb.NetworkEndpoint) bool { return g.same(e, m) }) {
			missing = append(missing, g.endpoint(m))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return g.change(ctx, missing, g.attach)
}

func (g *group) leave(ctx context.Context, machines []nstance.Machine) error {
	members, err := g.members(ctx)
	if err != nil {
		return err
	}
	present := slices.DeleteFunc(members, func(e *computepb.NetworkEndpoint) bool {
		return !slices.ContainsFunc(machines, func(m nstance.Machine) bool { return string(m.ID) == lastPart(e.GetInstance()) })
	})
	if len(present) == 0 {
		return nil
	}
	return g.change(ctx, present, g.detach)
}

func (g *group) endpoint(m nstance.Machine) *computepb.NetworkEndpoint {
	out := &computepb.NetworkEndpoint{Instance: proto.String(string(m.ID))}
	if g.port != 0 {
		out.Port = proto.Int32(g.port)
	}
	return out
}

// same reports whether an endpoint is what m would join with.
func (g *group) same(e *computepb.NetworkEndpoint, m nstance.Machine) bool {
	return lastPart(e.GetInstance()) == string(m.ID) && (g.port == 0 || e.GetPort() == g.port)
}

// change calls the cloud and waits until it has done it.
func (g *group) change(ctx context.Context, members []*computepb.NetworkEndpoint, call func(context.Context, []*computepb.NetworkEndpoint) (operationHandle, error)) error {
	if err := before(ctx); err != nil {
		return err
	}
	op, err := call(ctx, members)
	if err != nil {
		return g.classify(err, members)
	}
	return g.p.wait(ctx, g.zone, op.Proto())
}

// classify gives an error its code: the group itself may be gone, or one of the
// machines.
func (g *group) classify(err error, members []*computepb.NetworkEndpoint) error {
	out := classify(err, g.path, true)
	for _, m := range members {
		if nstance.CodeOf(out) == nstance.Invalid {
			out = classify(err, g.p.path(g.zone, lastPart(m.GetInstance())), true)
		}
	}
	return out
}

func (g *group) attach(ctx context.Context, members []*computepb.NetworkEndpoint) (operationHandle, error) {
	if g.kind == kindInstances {
		return g.p.groups.AddInstances(ctx, &computepb.AddInstancesInstanceGroupRequest{
			Project: g.p.o.Project, Zone: g.zone, InstanceGroup: g.name,
			InstanceGroupsAddInstancesRequestResource: &computepb.InstanceGroupsAddInstancesRequest{Instances: g.references(members)},
		})
	}
	return g.p.negs.AttachNetworkEndpoints(ctx, &computepb.AttachNetworkEndpointsNetworkEndpointGroupRequest{
		Project: g.p.o.Project, Zone: g.zone, NetworkEndpointGroup: g.name,
		NetworkEndpointGroupsAttachEndpointsRequestResource: &computepb.NetworkEndpointGroupsAttachEndpointsRequest{NetworkEndpoints: members},
	})
}

func (g *group) detach(ctx context.Context, members []*computepb.NetworkEndpoint) (operationHandle, error) {
	if g.kind == kindInstances {
		return g.p.groups.RemoveInstances(ctx, &computepb.RemoveInstancesInstanceGroupRequest{
			Project: g.p.o.Project, Zone: g.zone, InstanceGroup: g.name,
			InstanceGroupsRemoveInstancesRequestResource: &computepb.InstanceGroupsRemoveInstancesRequest{Instances: g.references(members)},
		})
	}
	return g.p.negs.DetachNetworkEndpoints(ctx, &computepb.DetachNetworkEndpointsNetworkEndpointGroupRequest{
		Project: g.p.o.Project, Zone: g.zone, NetworkEndpointGroup: g.name,
		NetworkEndpointGroupsDetachEndpointsRequestResource: &computepb.NetworkEndpointGroupsDetachEndpointsRequest{NetworkEndpoints: members},
	})
}

func (g *group) references(members []*computepb.NetworkEndpoint) []*computepb.InstanceReference {
	var out []*computepb.InstanceReference
	for _, m := range members {
		out = append(out, &computepb.InstanceReference{Instance: proto.String(g.p.path(g.zone, lastPart(m.GetInstance())))})
	}
	return out
}

// members reads who is in the group. Both lists are POSTs, for which the SDK
// sends its own request in place of the body (apiv1 v1.74.1,
// ListNetworkEndpoints and ListInstances), so these requests are made by hand.
func (g *group) members(ctx context.Context) ([]*computepb.NetworkEndpoint, error) {
	read := g.endpointPage
	if g.kind == kindInstances {
		read = g.instancePage
	}
	var all []*computepb.NetworkEndpoint
	query := url.Values{"maxResults": {strconv.Itoa(maxPage)}}
	for {
		if err := before(ctx); err != nil {
			return nil, err
		}
		page, next, is, err := read(ctx, query)
		if err != nil {
			return nil, classify(err, g.path, false)
		}
		if err := checkPage(g.path, query.Get("pageToken"), next, is); err != nil {
			return nil, err
		}
		if all = append(all, page...); next == "" {
			return all, nil
		}
		query.Set("pageToken", next)
	}
}

func (g *group) endpointPage(ctx context.Context, query url.Values) (page []*computepb.NetworkEndpoint, next string, is listAnswer, err error) {
	out := &computepb.NetworkEndpointGroupsListNetworkEndpoints{}
	err = g.p.send(ctx, http.MethodPost, g.path+"/listNetworkEndpoints", query, map[string]string{"healthStatus": "SKIP"}, out)
	for _, e := range out.GetItems() {
		page = append(page, e.GetNetworkEndpoint())
	}
	return page, out.GetNextPageToken(), out, err
}

func (g *group) instancePage(ctx context.Context, query url.Values) (page []*computepb.NetworkEndpoint, next string, is listAnswer, err error) {
	out := &computepb.InstanceGroupsListInstances{}
	err = g.p.send(ctx, http.MethodPost, g.path+"/listInstances", query, map[string]string{"instanceState": "ALL"}, out)
	for _, i := range out.GetItems() {
		page = append(page, &computepb.NetworkEndpoint{Instance: i.Instance})
	}
	return page, out.GetNextPageToken(), out, err
}
