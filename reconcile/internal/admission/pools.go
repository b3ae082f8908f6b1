package admission

import (
	"time"

	"github.com/nstance-go/nstance"
)

// A pool is what the cloud reclaims together: capacity of one type in one market, in
// one zone. Where the zone of a subnet is not known, the subnet counts as one.
type pool struct {
	InstanceType string
	Zone, Subnet string // one of them
	Market       nstance.MarketType
}

// A poolMemory knows the zones of subnets, and which pools were reclaimed lately. It
// has at most two pools for each shape of the last minutes.
type poolMemory struct {
	zones          map[string]string // by subnet; empty: it is in several
	reclaimedUntil map[pool]time.Time
}

func newPoolMemory() poolMemory {
	return poolMemory{zones: map[string]string{}, reclaimedUntil: map[pool]time.Time{}}
}

// inZone returns the pool of a shape in a zone; empty: of its subnet.
func (s Shape) inZone(zone string) pool {
	if zone == "" {
		return pool{s.InstanceType, "", s.Subnet, s.Market}
	}
	return pool{s.InstanceType, zone, "", s.Market}
}

// poolOf returns the pool of a shape, as far as its zone is known.
func (p *poolMemory) poolOf(s Shape) pool { return s.inZone(p.zones[s.Subnet]) }

// reclaimed reports whether the cloud lately took back machines of the pool of a shape.
func (p *poolMemory) reclaimed(s Shape, now time.Time) bool {
	return now.Before(p.reclaimedUntil[p.poolOf(s)]) || now.Before(p.reclaimedUntil[s.inZone("")])
}

// reclaim records that the cloud takes back a machine of a shape, in a zone if that
// is known.
func (p *poolMemory) reclaim(s Shape, zone string, now time.Time) {
	for old, until := range p.reclaimedUntil {
		if !now.Before(until) {
			delete(p.reclaimedUntil, old)
		}
	}
	until := now.Add(answerTTL)
	p.reclaimedUntil[s.inZone("")], p.reclaimedUntil[p.poolOf(s)] = until, until
	if zone != "" {
		p.reclaimedUntil[s.inZone(zone)] = until
	}
}

// SetZones records in which zones subnets are, as the provider says.
func (q *Queue) SetZones(zones map[string]string) {
	for subnet, zone := range zones {
		q.pools.zones[subnet] = zone
	}
}

// MachineIn records that a machine in a subnet is in a zone. A subnet with machines in
// several zones has none.
func (q *Queue) MachineIn(subnet, zone string) {
	switch known, ok := q.pools.zones[subnet]; {
	case zone == "" || subnet == "":
	case !ok:
		q.pools.zones[subnet] = zone
	case known != zone:
		q.pools.zones[subnet] = ""
	}
}

// Reclaimed records that the cloud takes a machine of a shape back: there may be
// more, but shapes of other pools are asked for first. An empty zone is not known.
func (q *Queue) Reclaimed(shape Shape, zone string, now time.Time) {
	q.pools.reclaim(shape, zone, now)
}
