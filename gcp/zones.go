package gcp

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"

	"github.com/nstance-go/nstance"
)

// zoneMark separates a subnet from the zone of its machines, in subnet_pools. Subnets are
// regional (https://cloud.google.com/vpc/docs/subnets): they do not say a zone themselves.
const zoneMark = "?zone="

// allZones returns the zones in which machines may be, sorted, each once.
func (o *Options) allZones(zone string) []string {
	all := append([]string{zone}, o.Zones...)
	slices.Sort(all)
	return slices.Compact(all)
}

// checkZones refuses further zones that one shard cannot have.
func (o *Options) checkZones(zone string) error {
	const field = "shard.provider.options.zones"
	region := zonePattern.FindStringSubmatch(zone)[1]
	for _, z := range o.Zones {
		parts := zonePattern.FindStringSubmatch(z)
		switch {
		case parts == nil:
			return nstance.FieldError(field, "write zones such as "+region+"-b", "%.64q is no zone", z)
		case parts[1] != region:
			return nstance.FieldError(field, "use zones of "+region+", and a shard for each region", "zone %s is not in the region of %s", z, zone)
		}
	}
	return nil
}

// splitSubnet returns the zone of the machines in a subnet as subnet_pools name it, and the
// subnet without it. Without a zone they are in the provider's own.
func (o *Options) splitSubnet(zone, subnet string) (in, name string, err error) {
	const field = "subnet_pool"
	name, in, marked := strings.Cut(subnet, zoneMark)
	zones := o.allZones(zone)
	switch {
	case strings.Contains(name, "?"), marked && name == "":
		return "", "", nstance.FieldError(field, "write SUBNET"+zoneMark+"ZONE", "%.128q is no subnet", subnet)
	case !marked:
		return zone, subnet, nil
	case !slices.Contains(zones, in):
		return "", "", nstance.FieldError(field, "use "+strings.Join(zones, ", ")+", or add it to shard.provider.options.zones", "%.128q is in another zone than those of the shard", subnet)
	}
	return in, name, nil
}

// SubnetZones implements [nstance.SubnetLocator]. It is the entry in the pool that says in
// which zone its machines are. It asks the cloud nothing.
func (p *Provider) SubnetZones(ctx context.Context, subnets []string) (map[string]string, error) {
	if err := before(ctx); err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, s := range subnets {
		if zone, _, err := p.o.splitSubnet(p.zone, s); err == nil {
			out[s] = zone
		}
	}
	return out, nil
}

// inZones calls do for each zone, at once, and returns when all have returned.
func inZones(zones []string, do func(i int, zone string)) {
	if len(zones) == 1 {
		do(0, zones[0])
		return
	}
	var wg sync.WaitGroup
	for i, zone := range zones {
		wg.Go(func() { do(i, zone) })
	}
	wg.Wait()
}

// eachZone is inZones for what may fail. It returns the error of the first zone that has one.
func eachZone(zones []string, do func(zone string) error) error {
	errs := make([]error, len(zones))
	inZones(zones, func(i int, zone string) { errs[i] = do(zone) })
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// find reads a machine, in any zone. It fails with NotFound when every zone has answered
// that it has no such machine. A zone without an answer proves nothing.
func (p *Provider) find(ctx context.Context, name string) (string, *computepb.Instance, error) {
	zones := p.zones
	if last := p.seen.zone(name); last != "" && len(zones) > 1 {
		i, err := p.instance(ctx, last, name)
		if nstance.CodeOf(err) != nstance.NotFound {
			return last, i, err
		}
		zones = slices.DeleteFunc(slices.Clone(zones), func(z string) bool { return z == last })
	}
	found := make([]*computepb.Instance, len(zones))
	errs := make([]error, len(zones))
	ctx, enough := context.WithCancel(ctx)
	defer enough()
	inZones(zones, func(i int, zone string) {
		if found[i], errs[i] = p.instance(ctx, zone, name); errs[i] == nil && found[i].GetLabels()[labelID] == name {
			enough() // a zone that does not answer is not waited for
		}
	})
	best := -1
	for i := range zones {
		if errs[i] == nil && (best < 0 || found[i].GetLabels()[labelID] == name) {
			best = i
		}
	}
	if best >= 0 {
		p.seen.add(name, zones[best])
		return zones[best], found[best], nil
	}
	absent := errs[0]
	for _, err := range errs {
		if nstance.CodeOf(err) != nstance.NotFound {
			return "", nil, err
		}
	}
	return "", nil, absent
}

// otherZoneWait is how long a create waits for the other zones, unless its machine may be in
// one of them: a zone that does not answer keeps no machine from the others.
const otherZoneWait = 2 * time.Second

// checkOtherZones fails with Conflict when another zone than that one has a machine of this
// name: names are unique per zone only. The zone in which the machine was asked for last has
// to prove that it has none, and gets none. Of a machine that another process has asked for,
// the caller has that proof: it asks Get before it repeats a create.
func (p *Provider) checkOtherZones(ctx context.Context, name, zone string) error {
	others := slices.DeleteFunc(slices.Clone(p.zones), func(z string) bool { return z == zone })
	if len(others) == 0 {
		return nil
	}
	last := p.seen.zone(name)
	return eachZone(others, func(z string) error {
		if z == last {
			return p.proveAbsence(ctx, name, z)
		}
		short, cancel := context.WithTimeout(ctx, otherZoneWait)
		defer cancel()
		_, err := p.instance(short, z, name)
		switch {
		case err == nil:
			return existsIn(name, z)
		case nstance.CodeOf(err) != nstance.NotFound:
			p.o.Log.Warn("zone not asked whether it has the machine", "instance_id", name, "zone", z, "code", nstance.CodeOf(err), "err", err)
		}
		return nil
	})
}

// proveAbsence fails unless a zone has no machine of that name, and is not making one.
func (p *Provider) proveAbsence(ctx context.Context, name, zone string) error {
	_, err := p.instance(ctx, zone, name)
	if err == nil {
		return existsIn(name, zone)
	}
	if nstance.CodeOf(err) != nstance.NotFound {
		return unproven(name, zone, err)
	}
	h, err := p.history(ctx, zone, name)
	switch {
	case err != nil:
		return unproven(name, zone, err)
	case h.starting():
		return nstance.Errorf(nstance.Ambiguous, "machine %s is still being made in zone %s", name, zone)
	}
	return nil
}

func existsIn(name, zone string) error {
	return nstance.Errorf(nstance.Conflict, "machine %s exists in zone %s", name, zone)
}

// unproven is Ambiguous: the caller looks for the machine before it repeats the create.
func unproven(name, zone string, err error) error {
	return nstance.Errorf(nstance.Ambiguous, "nothing was sent: machine %s may be in zone %s: %v", name, zone, err)
}

// handleZone returns the zone that the handle of m names. Fails with Conflict when it is the
// handle of another machine, or of another zone than the provider's: there, absence would
// prove nothing.
func (p *Provider) handleZone(m nstance.Machine) (string, error) {
	for _, zone := range p.zones {
		if m.ProviderID == p.handle(zone, string(m.ID)) {
			return zone, nil
		}
	}
	return "", nstance.Errorf(nstance.Conflict, "machine %s has the handle %.128q, which is not in %s", m.ID, m.ProviderID, p.account())
}

// zoneOf returns the zone of m as far as it is known, else the provider's own.
func (p *Provider) zoneOf(m nstance.Machine) string {
	if zone, err := p.handleZone(m); err == nil {
		return zone
	}
	for _, zone := range []string{m.Zone, p.seen.zone(string(m.ID))} {
		if slices.Contains(p.zones, zone) {
			return zone
		}
	}
	return p.zone
}

// maxSeen bounds each of the two halves of the memory of zones.
const maxSeen = 10_000

// A zoneMemory remembers in which zone each of the latest machines was asked for or found. It
// is safe for concurrent use.
type zoneMemory struct {
	mu            sync.Mutex
	recent, older map[string]string // zones, by the machine's name
}

func (s *zoneMemory) add(name, zone string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.recent == nil || len(s.recent) >= maxSeen {
		s.recent, s.older = map[string]string{}, s.recent
	}
	s.recent[name] = zone
}

// zone returns the zone of a machine, or "".
func (s *zoneMemory) zone(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if zone, ok := s.recent[name]; ok {
		return zone
	}
	return s.older[name]
}
