package place

import (
	"maps"
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

// A poolMemory knows the zones of subnets, which pools were reclaimed lately, how often
// each is, and what it costs. It has at most two pools for each shape of the last hours.
type poolMemory struct {
	zones  map[string]string // by subnet; empty: it is in several
	memory map[pool]reclaimMemory
	rates  map[pool]Rate
	means  map[nstance.MarketType]float64 // reclaims of a machine in an hour
	warned map[pool]time.Time             // first recommendation of the last hours to leave it

	prices   map[pool]float64
	pricesAt time.Time
	answered map[string]bool      // types that the prices are about
	wantedAt map[string]time.Time // types without an answer, since when a request wants one
}

// A reclaimMemory is how long the reclaim of a machine matters for others of its pool.
type reclaimMemory struct{ struckUntil, unsteadyUntil time.Time }

func newPoolMemory() poolMemory {
	return poolMemory{zones: map[string]string{}, memory: map[pool]reclaimMemory{}, warned: map[pool]time.Time{}, wantedAt: map[string]time.Time{}}
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

// reclaimed reports whether the cloud took back machines of the pool of a shape a moment
// ago, and whether it did within the memory for the pool's rate.
func (p *poolMemory) reclaimed(s Shape, now time.Time) (struck, unsteady bool) {
	for _, m := range []reclaimMemory{p.memory[p.poolOf(s)], p.memory[s.inZone("")]} {
		struck = struck || now.Before(m.struckUntil)
		unsteady = unsteady || now.Before(m.unsteadyUntil)
	}
	return struck, unsteady
}

// reclaim records that the cloud takes back a machine of a shape, in a zone if that
// is known.
func (p *poolMemory) reclaim(s Shape, zone string, now time.Time) {
	for old, m := range p.memory {
		if !now.Before(m.unsteadyUntil) {
			delete(p.memory, old)
		}
	}
	at := p.poolIn(s, zone)
	m := reclaimMemory{now.Add(answerTTL), now.Add(p.memoryFor(at))}
	p.memory[s.inZone("")], p.memory[p.poolOf(s)], p.memory[at] = m, m, m
}

// remember prolongs the memory of a pool by what is known of its latest reclaim. One in the
// future, by the clock of a former leader, counts as now.
func (p *poolMemory) remember(at pool, last, now time.Time) {
	if last.After(now) {
		last = now
	}
	m, unsteady := p.memory[at], last.Add(p.memoryFor(at))
	if !unsteady.After(now) || !unsteady.After(m.unsteadyUntil) {
		return
	}
	m.unsteadyUntil = unsteady
	if struck := last.Add(answerTTL); struck.After(m.struckUntil) {
		m.struckUntil = struck
	}
	p.memory[at] = m
}

// SetZones records in which zones subnets are, as the provider says.
func (m *Map) SetZones(zones map[string]string) {
	for subnet, zone := range zones {
		m.pools.zones[subnet] = zone
	}
}

// MachineIn records that a machine in a subnet is in a zone. A subnet with machines in
// several zones has none.
func (m *Map) MachineIn(subnet, zone string) {
	switch known, ok := m.pools.zones[subnet]; {
	case zone == "" || subnet == "":
	case !ok:
		m.pools.zones[subnet] = zone
	case known != zone:
		m.pools.zones[subnet] = ""
	}
}

// Reclaimed records that the cloud takes a machine of a shape back: there may be
// more, but shapes of other pools are asked for first. An empty zone is not known.
func (m *Map) Reclaimed(shape Shape, zone string, now time.Time) {
	m.pools.reclaim(shape, zone, now)
}

// warnedMemory is how long a recommendation to leave a pool matters for machines that are
// made there after it.
const warnedMemory = longestMemory

// Warned records that the cloud recommends to leave the pool of a shape. It counts as a
// reclaim there. An empty zone is not known.
func (m *Map) Warned(shape Shape, zone string, now time.Time) {
	m.Reclaimed(shape, zone, now)
	warned := m.pools.warned
	maps.DeleteFunc(warned, func(_ pool, since time.Time) bool { return now.Sub(since) >= warnedMemory })
	for _, at := range []pool{shape.inZone(""), m.pools.poolOf(shape), m.pools.poolIn(shape, zone)} { // as of reclaims
		if warned[at].IsZero() {
			warned[at] = now.Truncate(time.Millisecond) // as instances say when they were created
		}
	}
}

// WarnedFor returns since when and until when the cloud's recommendation to leave the pool of
// a shape matters; zero: there is none.
func (m *Map) WarnedFor(shape Shape, zone string, now time.Time) (since, until time.Time) {
	since = m.pools.warned[m.pools.poolIn(shape, zone)]
	if since.IsZero() || now.Sub(since) >= warnedMemory {
		return time.Time{}, time.Time{}
	}
	return since, since.Add(warnedMemory)
}

// poolIn returns the pool of a shape in a zone; empty: as far as its zone is known.
func (p *poolMemory) poolIn(s Shape, zone string) pool {
	if zone == "" {
		return p.poolOf(s)
	}
	return s.inZone(zone)
}
