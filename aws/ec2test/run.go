package ec2test

import (
	"slices"
	"time"
)

const rootDevice = "/dev/xvda"

// A launcher launches machines.
type launcher struct {
	o            *Options
	fleet        *fleet
	tokens       *clientTokens
	bootFailures []StateReason // of the next machines
}

func (r *launcher) runInstances(on call, in *runInput) (*reservation, error) {
	l, err := r.check(in)
	if err != nil {
		return nil, err
	}
	machines, err := r.tokens.replay(l)
	if err != nil {
		return nil, err
	}
	if len(machines) > 0 {
		return r.fleet.reservations(machines, !r.o.NoTagsUnasked)[0], nil
	}
	if err := r.fleet.spot.checkPrice(on, l); err != nil {
		return nil, err
	}
	machines, err = r.launchMany(on, l)
	if err != nil {
		return nil, err
	}
	r.tokens.bind(l, machines)
	out := r.fleet.reservations(machines, true)[0] // pending, also where machines start at once
	for _, m := range machines {
		var failure *StateReason
		if len(r.bootFailures) > 0 {
			failure, r.bootFailures = &r.bootFailures[0], r.bootFailures[1:]
		}
		r.fleet.begin(m, failure)
	}
	return out, nil
}

// launchMany makes as many machines as there is capacity for, up to MaxCount,
// or none if that is below MinCount.
func (r *launcher) launchMany(on call, l *launch) ([]*machine, error) {
	id := newID("r")
	var machines []*machine
	for n := range l.in.MaxCount {
		m, err := r.launchOne(on, l, id, n)
		if err == nil {
			machines = append(machines, m)
			continue
		}
		if n >= l.in.MinCount {
			break
		}
		for _, m := range machines {
			r.unmake(m)
		}
		return nil, err
	}
	return machines, nil
}

func (r *launcher) launchOne(on call, l *launch, reservation string, n int) (*machine, error) {
	m := &machine{
		id: newID("i"), reservation: reservation, launchIndex: n, launch: l.in, kind: l.kind, image: l.image, volume: newID("vol"),
		tags: l.tags["instance"], volumeTags: l.tags["volume"], userData: l.userData, created: on.now, launched: on.now, step: 1,
	}
	if err := r.reserve(l, m); err != nil {
		return nil, err
	}
	if m.spot = l.request; m.spot == nil && l.in.spot() {
		m.spot = newSpotRequest(on, l)
	}
	subnet, err := r.place(l, m)
	if err != nil {
		return nil, err
	}
	m.zone, m.holdsCapacity = subnet.Zone, true
	if err := r.fleet.network.makeInterfaces(l, m, subnet); err != nil {
		r.fleet.release(m)
		r.fleet.network.deleteInterfaces(m)
		return nil, err
	}
	if m.spot != nil {
		m.spot.fulfill(m)
		r.fleet.spot.requests[m.spot.id] = m.spot
	}
	r.fleet.machines[m.id] = m
	return m, nil
}

// place finds a subnet with capacity for the machine and takes it.
func (r *launcher) place(l *launch, m *machine) (Subnet, error) {
	candidates := r.o.Catalog.Subnets
	if l.subnet.ID != "" {
		candidates = []Subnet{l.subnet}
	}
	for _, s := range candidates {
		if l.zone != "" && s.Zone != l.zone || l.kind.Zones != nil && !slices.Contains(l.kind.Zones, s.Zone) {
			continue
		}
		m.zone = s.Zone
		if r.o.Capacity.Take(m.shape()) {
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
func (r *launcher) unmake(m *machine) {
	r.fleet.release(m)
	r.fleet.network.deleteInterfaces(m)
	if m.spot != nil {
		delete(r.fleet.spot.requests, m.spot.id)
	}
	delete(r.fleet.machines, m.id)
}

type reservation struct {
	ID       string        `xml:"reservationId"`
	Owner    string        `xml:"ownerId"`
	Machines []machineItem `xml:"instancesSet>item"`
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
