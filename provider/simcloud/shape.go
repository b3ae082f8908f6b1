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

// FreeAddresses implements [nstance.SubnetCounter] for the subnets that
// Options.Subnets names.
func (c *Cloud) FreeAddresses(ctx context.Context, subnets []string) (free map[string]int, err error) {
	err = c.call(ctx, opFreeAddresses, "", func() error {
		free = map[string]int{}
		for _, s := range subnets {
			if size, ok := c.o.Subnets[s]; ok {
				free[s] = max(size-c.taken[s], 0)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return free, nil
}

// SubnetZones implements [nstance.SubnetLocator] for the subnets that Options.Zones
// names.
func (c *Cloud) SubnetZones(ctx context.Context, subnets []string) (zones map[string]string, err error) {
	err = c.call(ctx, opSubnetZones, "", func() error {
		zones = map[string]string{}
		for _, s := range subnets {
			if zone, ok := c.o.Zones[s]; ok {
				zones[s] = zone
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return zones, nil
}

// ShiftedZones implements [nstance.ZoneShifter]. A cloud without any shift so far answers
// at once, without a call: what a seed leads to does not depend on who asks.
func (c *Cloud) ShiftedZones(ctx context.Context) (shifts []nstance.ZoneShift, err error) {
	c.mu.Lock()
	none := c.shifts == nil
	c.mu.Unlock()
	if none {
		return nil, nil
	}
	err = c.call(ctx, OpShiftedZones, "", func() error {
		shifts = slices.Clone(c.shifts)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return shifts, nil
}

// SetShiftedZones replaces the zones that are shifted away from.
func (c *Cloud) SetShiftedZones(shifts ...nstance.ZoneShift) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shifts = append([]nstance.ZoneShift{}, shifts...)
}

// TypeArchs implements [nstance.TypeLister].
func (c *Cloud) TypeArchs(ctx context.Context, names []string) (archs map[string][]nstance.Arch, err error) {
	err = c.call(ctx, opTypeArchs, "", func() error {
		archs = map[string][]nstance.Arch{}
		for _, name := range names {
			if c.o.Types == nil {
				archs[name] = []nstance.Arch{nstance.AMD64, nstance.ARM64}
			} else if a, ok := c.o.Types[name]; ok {
				archs[name] = slices.Clone(a)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return archs, nil
}

// checkShape fails when the machine type is unknown or does not run the spec's
// architecture, or the subnet is full. It needs c.mu.
func (c *Cloud) checkShape(s nstance.MachineSpec) error {
	if archs, ok := c.o.Types[s.InstanceType]; c.o.Types != nil {
		if !ok {
			return nstance.FieldError("instance_type", "use one of Options.Types", "no instance type %.64q", s.InstanceType)
		}
		if s.Arch != "" && !slices.Contains(archs, s.Arch) {
			return nstance.FieldError("instance_type", "use another type", "%.64q does not run %s", s.InstanceType, s.Arch)
		}
	}
	if size, ok := c.o.Subnets[s.Subnet]; ok && c.taken[s.Subnet] >= size {
		return nstance.Errorf(nstance.Capacity, "subnet %.64q has no address left", s.Subnet)
	}
	return nil
}
