package ec2test

import (
	"slices"
	"time"
)

const rootDevice = "/dev/xvda"

func (c *Cloud) runInstances(on call, in *runInput) (*reservation, error) {
	l, err := c.check(in)
	if err != nil {
		return nil, err
	}
	machines, err := c.replay(l)
	if err != nil {
		return nil, err
	}
	if len(machines) > 0 {
		return c.reservationOf(machines, !c.o.NoTagsUnasked), nil
	}
	if err := c.checkPrice(on, l); err != nil {
		return nil, err
	}
	machines, err = c.launchMany(on, l)
	if err != nil {
		return nil, err
	}
	c.bind(l, machines)
	out := c.reservationOf(machines, true) // pending, also where machines start at once
	for _, m := range machines {
		var failure *StateReason
		if len(c.bootFailures) > 0 {
			failure, c.bootFailures = &c.bootFailures[0], c.bootFailures[1:]
		}
		c.begin(m, failure)
	}
	return out, nil
}

// launchMany makes as many machines as there is capacity for, up to MaxCount,
// or none if that is below MinCount.
func (c *Cloud) launchMany(on call, l *launch) ([]*machine, error) {
	id := newID("r")
	var machines []*machine
	for n := range l.in.MaxCount {
		m, err := c.launchOne(on, l, id, n)
		if err == nil {
			machines = append(machines, m)
			continue
		}
		if n >= l.in.MinCount {
			break
		}
		for _, m := range machines {
			c.unmake(m)
		}
		return nil, err
	}
	return machines, nil
}

func (c *Cloud) launchOne(on call, l *launch, reservation string, n int) (*machine, error) {
	m := &machine{
		id: newID("i"), reservation: reservation, launchIndex: n, launch: l.in, kind: l.kind, image: l.image, volume: newID("vol"),
		tags: l.tags["instance"], volumeTags: l.tags["volume"], userData: l.userData, created: on.now, launched: on.now, step: 1,
	}
	if err := c.reserve(l, m); err != nil {
		return nil, err
	}
	if m.spot = l.request; m.spot == nil && l.in.spot() {
		m.spot = newSpotRequest(on, l)
	}
	subnet, err := c.place(l, m)
	if err != nil {
		return nil, err
	}
	m.zone, m.holdsCapacity = subnet.Zone, true
	if err := c.makeInterfaces(l, m, subnet); err != nil {
		c.release(m)
		return nil, err
	}
	if m.spot != nil {
		m.spot.fulfill(m)
		c.spotRequests[m.spot.id] = m.spot
	}
	c.machines[m.id] = m
	return m, nil
}

// place finds a subnet with capacity for the machine and takes it.
func (c *Cloud) place(l *launch, m *machine) (Subnet, error) {
	candidates := c.o.Catalog.Subnets
	if l.subnet.ID != "" {
		candidates = []Subnet{l.subnet}
	}
	for _, s := range candidates {
		if l.zone != "" && s.Zone != l.zone || l.kind.Zones != nil && !slices.Contains(l.kind.Zones, s.Zone) {
			continue
		}
		m.zone = s.Zone
		if c.o.Capacity.Take(m.shape()) {
			return s, nil
		}
	}
	if len(candidates) == 0 {
		return Subnet{}, refuse("VPCIdNotSpecified", "No default VPC for this user")
	}
	if l.in.spot() {
		return Subnet{}, refuse("InsufficientInstanceCapacity", "There is no Spot capacity available that matches your request.")
	}
	return Subnet{}, refuse("InsufficientInstanceCapacity", "We currently do not have sufficient %s capacity in the Availability Zone you requested (%s). "+
		"Our system will be working on provisioning additional capacity.", l.kind.Name, l.zone)
}

// unmake takes back a machine of a launch that failed.
func (c *Cloud) unmake(m *machine) {
	c.release(m)
	for _, i := range m.interfaces {
		c.deleteInterface(i)
	}
	if m.spot != nil {
		delete(c.spotRequests, m.spot.id)
	}
	delete(c.machines, m.id)
}

type reservation struct {
	ID       string        `xml:"reservationId"`
	Owner    string        `xml:"ownerId"`
	Machines []machineItem `xml:"instancesSet>item"`
}

func (c *Cloud) reservationOf(machines []*machine, tags bool) *reservation {
	out := &reservation{ID: machines[0].reservation, Owner: c.o.Account}
	for _, m := range machines {
		out.Machines = append(out.Machines, c.item(m, tags))
	}
	return out
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
