package simcloud

import (
	"context"
	"slices"

	"github.com/nstance-go/nstance"
)

var (
	_ nstance.SubnetCounter = (*Cloud)(nil)
	_ nstance.SubnetLocator = (*Cloud)(nil)
	_ nstance.ZoneShifter   = (*Cloud)(nil)
	_ nstance.TypeLister    = (*Cloud)(nil)
	_ nstance.PriceLister   = (*Cloud)(nil)
	_ nstance.ZoneScorer    = (*Cloud)(nil)
)

// subnets are the subnets of the account and the zones that they are in.
type subnets struct {
	*core
	calls  *calls
	taken  map[string]int      // addresses, by subnet
	shifts []nstance.ZoneShift // nil: there was never one
}

// FreeAddresses implements [nstance.SubnetCounter] for the subnets that
// Options.Subnets names.
func (s *subnets) FreeAddresses(ctx context.Context, names []string) (map[string]int, error) {
	return ask(ctx, s.calls, opFreeAddresses, "", func() (map[string]int, error) {
		free := map[string]int{}
		for _, name := range names {
			if size, ok := s.o.Subnets[name]; ok {
				free[name] = max(size-s.taken[name], 0)
			}
		}
		return free, nil
	})
}

// SubnetZones implements [nstance.SubnetLocator] for the subnets that Options.Zones
// names.
func (s *subnets) SubnetZones(ctx context.Context, names []string) (map[string]string, error) {
	return ask(ctx, s.calls, opSubnetZones, "", func() (map[string]string, error) {
		zones := map[string]string{}
		for _, name := range names {
			if zone, ok := s.o.Zones[name]; ok {
				zones[name] = zone
			}
		}
		return zones, nil
	})
}

// ShiftedZones implements [nstance.ZoneShifter]. A cloud without any shift so far answers
// at once, without a call: what a seed leads to does not depend on who asks.
func (s *subnets) ShiftedZones(ctx context.Context) ([]nstance.ZoneShift, error) {
	s.mu.Lock()
	none := s.shifts == nil
	s.mu.Unlock()
	if none {
		return nil, nil
	}
	return ask(ctx, s.calls, OpShiftedZones, "", func() ([]nstance.ZoneShift, error) { return slices.Clone(s.shifts), nil })
}

// SetShiftedZones replaces the zones that are shifted away from.
func (s *subnets) SetShiftedZones(shifts ...nstance.ZoneShift) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shifts = append([]nstance.ZoneShift{}, shifts...)
}

// TypeArchs implements [nstance.TypeLister].
func (c *Cloud) TypeArchs(ctx context.Context, names []string) (map[string][]nstance.Arch, error) {
	return ask(ctx, &c.calls, opTypeArchs, "", func() (map[string][]nstance.Arch, error) {
		archs := map[string][]nstance.Arch{}
		for _, name := range names {
			if c.o.Types == nil {
				archs[name] = []nstance.Arch{nstance.AMD64, nstance.ARM64}
			} else if a, ok := c.o.Types[name]; ok {
				archs[name] = slices.Clone(a)
			}
		}
		return archs, nil
	})
}

// checkShape fails when the machine type is unknown or does not run the spec's
// architecture, or the subnet is full. It needs the lock.
func (f *fleet) checkShape(s nstance.MachineSpec) error {
	if archs, ok := f.o.Types[s.InstanceType]; f.o.Types != nil {
		if !ok {
			return nstance.FieldError("instance_type", "use one of Options.Types", "no instance type %.64q", s.InstanceType)
		}
		if s.Arch != "" && !slices.Contains(archs, s.Arch) {
			return nstance.FieldError("instance_type", "use another type", "%.64q does not run %s", s.InstanceType, s.Arch)
		}
	}
	if size, ok := f.o.Subnets[s.Subnet]; ok && f.subnets.taken[s.Subnet] >= size {
		return nstance.Errorf(nstance.Capacity, "subnet %.64q has no address left", s.Subnet)
	}
	return nil
}
