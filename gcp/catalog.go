package gcp

import (
	"context"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
)

// FreeAddresses implements [nstance.SubnetCounter] with the free addresses of a
// subnet's primary range, one call for each subnet.
func (p *Provider) FreeAddresses(ctx context.Context, subnets []string) (map[string]int, error) {
	out := map[string]int{}
	for _, name := range subnets {
		s, err := p.subnet(ctx, p.o.subnetPath(p.zone, name), true)
		if nstance.CodeOf(err) == nstance.NotFound {
			continue
		}
		if err != nil {
			return nil, err
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
	return s, classify(err, path, false)
}

// TypeArchs implements [nstance.TypeLister], one call for each name. The cloud
// leaves out the architecture of types older than the field: these are amd64.
func (p *Provider) TypeArchs(ctx context.Context, names []string) (map[string][]nstance.Arch, error) {
	out := map[string][]nstance.Arch{}
	for _, name := range names {
		if err := before(ctx); err != nil {
			return nil, err
		}
		if !namePattern.MatchString(name) {
			continue
		}
		t, err := p.types.Get(ctx, &computepb.GetMachineTypeRequest{Project: p.o.Project, Zone: p.zone, MachineType: name})
		err = classify(err, "projects/"+p.o.Project+"/zones/"+p.zone+"/machineTypes/"+name, false)
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
