package gcp

import (
	"context"
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

// A group is a load balancer as the configuration names it.
type group struct {
	p    *Provider
	name string
	path string
	kind string
	port int32
}

// group reads a load balancer's ID, a name or a path, and its args.
func (p *Provider) group(lb nstance.LoadBalancer) (*group, error) {
	a := BalancerArgs{Kind: kindEndpoints}
	if strings.Contains(lb.ID, "/instanceGroups/") {
		a.Kind = kindInstances
	}
	if err := provider.DecodeArgs(lb.Args, &a); err != nil {
		return nil, err
	}
	g := &group{p: p, name: lastPart(lb.ID), kind: a.Kind, port: a.Port}
	collection := map[string]string{kindEndpoints: "networkEndpointGroups", kindInstances: "instanceGroups"}[a.Kind]
	switch {
	case collection == "":
		return nil, nstance.FieldError("args.kind", "use "+kindEndpoints+" or "+kindInstances, "%.64q is neither", a.Kind)
	case a.Port < 0 || a.Port > 65535 || a.Port != 0 && a.Kind == kindInstances:
		return nil, nstance.FieldError("args.port", "use 1 to 65535, for network endpoint groups only", "%d makes no sense", a.Port)
	case !namePattern.MatchString(g.name):
		return nil, nstance.FieldError("load_balancers."+lb.Name+".id", "write the name of a group", "%.64q is no name", lb.ID)
	}
	g.path = "projects/" + p.o.Project + "/zones/" + p.zone + "/" + collection + "/" + g.name
	if i := max(0, strings.Index(lb.ID, "projects/")); strings.Contains(lb.ID, "/") && !strings.HasSuffix("/"+g.path, "/"+lb.ID[i:]) {
		return nil, nstance.FieldError("load_balancers."+lb.Name+".id", "use a group of zone "+p.zone, "%.128q is in another project or zone, or of another kind", lb.ID)
	}
	return g, nil
}

// BalancerMembers implements [nstance.Balancer].
func (p *Provider) BalancerMembers(ctx context.Context, lb nstance.LoadBalancer) ([]string, error) {
	g, err := p.group(lb)
	if err != nil {
		return nil, err
	}
	members, err := g.members(ctx)
	var out []string
	for _, m := range members {
		if handle := p.handle(lastPart(m.GetInstance())); !slices.Contains(out, handle) {
			out = append(out, handle)
		}
	}
	return out, err
}

// JoinBalancer implements [nstance.Balancer]. It first reads who is a member: to
// an instance group the cloud adds all machines of a call, or none.
func (p *Provider) JoinBalancer(ctx context.Context, lb nstance.LoadBalancer, machines []nstance.Machine) error {
	g, err := p.group(lb)
	if err != nil {
		return err
	}
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

// LeaveBalancer implements [nstance.Balancer]. It returns when the cloud has
// taken the machines out.
func (p *Provider) LeaveBalancer(ctx context.Context, lb nstance.LoadBalancer, machines []nstance.Machine) error {
	g, err := p.group(lb)
	if err != nil {
		return err
	}
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
	return g.p.wait(ctx, g.p.zone, op.Proto())
}

// classify gives an error its code: the group itself may be gone, or one of the
// machines.
func (g *group) classify(err error, members []*computepb.NetworkEndpoint) error {
	out := classify(err, g.path, true)
	for _, m := range members {
		if nstance.CodeOf(out) == nstance.Invalid {
			out = classify(err, g.p.path(lastPart(m.GetInstance())), true)
		}
	}
	return out
}

func (g *group) attach(ctx context.Context, members []*computepb.NetworkEndpoint) (operationHandle, error) {
	if g.kind == kindInstances {
		return g.p.groups.AddInstances(ctx, &computepb.AddInstancesInstanceGroupRequest{
			Project: g.p.o.Project, Zone: g.p.zone, InstanceGroup: g.name,
			InstanceGroupsAddInstancesRequestResource: &computepb.InstanceGroupsAddInstancesRequest{Instances: g.references(members)},
		})
	}
	return g.p.negs.AttachNetworkEndpoints(ctx, &computepb.AttachNetworkEndpointsNetworkEndpointGroupRequest{
		Project: g.p.o.Project, Zone: g.p.zone, NetworkEndpointGroup: g.name,
		NetworkEndpointGroupsAttachEndpointsRequestResource: &computepb.NetworkEndpointGroupsAttachEndpointsRequest{NetworkEndpoints: members},
	})
}

func (g *group) detach(ctx context.Context, members []*computepb.NetworkEndpoint) (operationHandle, error) {
	if g.kind == kindInstances {
		return g.p.groups.RemoveInstances(ctx, &computepb.RemoveInstancesInstanceGroupRequest{
			Project: g.p.o.Project, Zone: g.p.zone, InstanceGroup: g.name,
			InstanceGroupsRemoveInstancesRequestResource: &computepb.InstanceGroupsRemoveInstancesRequest{Instances: g.references(members)},
		})
	}
	return g.p.negs.DetachNetworkEndpoints(ctx, &computepb.DetachNetworkEndpointsNetworkEndpointGroupRequest{
		Project: g.p.o.Project, Zone: g.p.zone, NetworkEndpointGroup: g.name,
		NetworkEndpointGroupsDetachEndpointsRequestResource: &computepb.NetworkEndpointGroupsDetachEndpointsRequest{NetworkEndpoints: members},
	})
}

func (g *group) references(members []*computepb.NetworkEndpoint) []*computepb.InstanceReference {
	var out []*computepb.InstanceReference
	for _, m := range members {
		out = append(out, &computepb.InstanceReference{Instance: proto.String(g.p.path(lastPart(m.GetInstance())))})
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
		page, next, warning, err := read(ctx, query)
		if err != nil {
			return nil, classify(err, g.path, false)
		}
		if warning != "" && warning != noResults {
			return nil, incomplete(g.path, warning)
		}
		if all = append(all, page...); next == "" {
			return all, nil
		}
		query.Set("pageToken", next)
	}
}

func (g *group) endpointPage(ctx context.Context, query url.Values) (page []*computepb.NetworkEndpoint, next, warning string, err error) {
	out := &computepb.NetworkEndpointGroupsListNetworkEndpoints{}
	err = g.p.send(ctx, http.MethodPost, g.path+"/listNetworkEndpoints", query, map[string]string{"healthStatus": "SKIP"}, out)
	for _, e := range out.GetItems() {
		page = append(page, e.GetNetworkEndpoint())
	}
	return page, out.GetNextPageToken(), out.GetWarning().GetCode(), err
}

func (g *group) instancePage(ctx context.Context, query url.Values) (page []*computepb.NetworkEndpoint, next, warning string, err error) {
	out := &computepb.InstanceGroupsListInstances{}
	err = g.p.send(ctx, http.MethodPost, g.path+"/listInstances", query, map[string]string{"instanceState": "ALL"}, out)
	for _, i := range out.GetItems() {
		page = append(page, &computepb.NetworkEndpoint{Instance: i.Instance})
	}
	return page, out.GetNextPageToken(), out.GetWarning().GetCode(), err
}
