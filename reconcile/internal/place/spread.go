package place

import (
	"strings"

	"github.com/nstance-go/nstance"
)

// A Spread bounds how many members of a group are in one place. Grants of a pass count
// in Members as soon as they are given.
type Spread struct {
	By      nstance.SpreadBy
	Limit   int           // members in one place
	Members map[Shape]int // that the group has
}

func (s *Spread) add(shape Shape) {
	if s != nil {
		s.Members[shape]++
	}
}

// A crowd knows how many members of a group are in each place. The zero crowd is of a
// group without a spread.
type crowd struct {
	pools  *poolMemory
	by     nstance.SpreadBy
	limit  int
	places map[pool]int
}

func (p *poolMemory) crowdOf(s *Spread) crowd {
	if s == nil {
		return crowd{}
	}
	c := crowd{pools: p, by: s.By, limit: s.Limit, places: map[pool]int{}}
	for shape, n := range s.Members {
		c.places[p.placeOf(s.By, shape)] += n
	}
	return c
}

// excess returns by how much another member with this shape exceeds the share of its
// place; 0: it does not.
func (c crowd) excess(shape Shape) int {
	if c.pools == nil {
		return 0
	}
	return max(0, c.places[c.pools.placeOf(c.by, shape)]+1-c.limit)
}

// placeOf returns what counts as one place with a shape.
func (p *poolMemory) placeOf(by nstance.SpreadBy, s Shape) pool {
	at := p.poolOf(s)
	switch by {
	case nstance.SpreadType:
		return pool{InstanceType: s.InstanceType}
	case nstance.SpreadZone:
		return pool{Zone: at.Zone, Subnet: at.Subnet}
	case nstance.SpreadSubnet:
		return pool{Subnet: s.Subnet}
	case nstance.SpreadPool:
	}
	return at
}

// Place names what counts as one place with a machine that was asked for in a shape and is in a
// zone. Equal names are one place; empty: nothing counts.
func (m *Map) Place(by nstance.SpreadBy, shape Shape, zone string) string {
	switch by {
	case "", nstance.SpreadMarket:
		return ""
	case nstance.SpreadHost:
		return zone
	}
	at := m.pools.placeOf(by, shape)
	return strings.Join([]string{at.InstanceType, at.Zone, at.Subnet, string(at.Market)}, "/")
}
