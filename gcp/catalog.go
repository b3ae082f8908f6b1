package gcp

import (
	"context"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
)

// FreeAddresses implements [nstance.SubnetCounter] with the free addresses of a
// subnet's primary range, one call for each subnet, in however many zones its machines are.
func (p *Provider) FreeAddresses(ctx context.Context, subnets []string) (map[string]int, error) {
	out, read := map[string]int{}, map[string]*computepb.Subnetwork{}
	for _, name := range subnets {
		_, subnet, err := p.o.splitSubnet(p.zone, name)
		if err != nil {
			return nil, err
		}
		path := p.o.subnetPath(p.zone, subnet)
		s, known := read[path]
		if !known {
			s, err = p.subnet(ctx, path, true)
			if err != nil && nstance.CodeOf(err) != nstance.NotFound {
				return nil, err
			}
			if err != nil {
				s = nil
			}
			read[path] = s
		}
		for _, u := range s.GetUtilizationDetails().GetIpv4Utilizations() {
			if u.GetRangeName() == "" {
				out[name] = int(u.GetTotalFreeIp())
			}
		}
	}
	return out, nil
}

// subnet reads a subnet by its path.
func (p *Provider) subnet(ctx context.Context, path string, utilization bool) (*computepb.Subnetwork, error) {
	if err := before(ctx); err != nil {
		return nil, err
	}
	parts := strings.Split(path, "/")
	if len(parts) != 6 || parts[0] != "projects" || parts[2] != "regions" || parts[4] != "subnetworks" {
		return nil, nstance.FieldError("subnet_pools", "write a name, or projects/P/regions/R/subnetworks/S", "%.128q is no subnet", path)
	}
	q := &computepb.GetSubnetworkRequest{Project: parts[1], Region: parts[3], Subnetwork: parts[5]}
	if utilization {
		q.Views = proto.String("WITH_UTILIZATION")
	}
	s, err := p.subnets.Get(ctx, q)
	return s, classify(shown(path, s, err), path, false)
}

// TypeArchs implements [nstance.TypeLister], one call for each name, and more for a
// name that a zone does not have. The cloud leaves out the architecture of types older than the field: these are amd64.
func (p *Provider) TypeArchs(ctx context.Context, names []string) (map[string][]nstance.Arch, error) {
	out := map[string][]nstance.Arch{}
	for _, name := range names {
		if err := before(ctx); err != nil {
			return nil, err
		}
		if !namePattern.MatchString(name) {
			continue
		}
		t, err := p.machineType(ctx, name)
		if nstance.CodeOf(err) == nstance.NotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		arch, known := architectures[t.GetArchitecture()]
		if !known {
			arch = nstance.AMD64
		}
		out[name] = []nstance.Arch{arch}
	}
	return out, nil
}

// machineType reads a machine type, in the first zone that has it. It fails with NotFound when
// every zone has answered that it has none.
func (p *Provider) machineType(ctx context.Context, name string) (*computepb.MachineType, error) {
	var unread, absent error
	for _, zone := range p.zones {
		t, err := p.types.Get(ctx, &computepb.GetMachineTypeRequest{Project: p.o.Project, Zone: zone, MachineType: name})
		path := p.zonePath(zone) + "/machineTypes/" + name
		switch err = classify(shown(path, t, err), path, false); {
		case err == nil:
			return t, nil
		case nstance.CodeOf(err) == nstance.NotFound:
			absent = err
		default:
			unread = err
		}
	}
	if unread != nil {
		return nil, unread
	}
	return nil, absent
}
