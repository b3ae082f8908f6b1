// Package place decides where a create may go.
//
// A [Map] holds what is known of shapes: what the provider's answers say about their
// capacity, what it refuses of a definition, reclaims, prices, free addresses, and the pools
// that are avoided. [Map.Candidates] returns the shapes that a request permits, each with
// what is against it. Grants, holds, previews and explanations all follow from that.
//
// A Map is not safe for concurrent use. It reads no clock and does no I/O.
package place

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/internal/avoid"
)

// A Map is what is known of the places where machines can be made.
type Map struct {
	AvoidedPools avoid.Book

	capacity   capacityCache
	refusals   refusals
	addresses  addressCount
	pools      poolMemory
	scores     map[string]map[string]int // of zones, by TypesKey
	clockWrong bool                      // no avoidance ends for the time
}

// New returns a Map of which nothing is known.
func New() *Map {
	return &Map{capacity: capacityCache{}, refusals: refusals{}, pools: newPoolMemory(), scores: map[string]map[string]int{}}
}

// Clone returns a copy that shares nothing with m which either changes.
func (m *Map) Clone() *Map {
	out := *m
	out.capacity, out.refusals, out.scores = make(capacityCache, len(m.capacity)), make(refusals, len(m.refusals)), maps.Clone(m.scores)
	for shape, s := range m.capacity {
		out.capacity[shape] = new(*s)
	}
	for definition, shapes := range m.refusals {
		out.refusals[definition] = make(map[Shape]*refusal, len(shapes))
		for shape, r := range shapes {
			out.refusals[definition][shape] = new(*r)
		}
	}
	out.addresses.free = maps.Clone(m.addresses.free)
	p := &out.pools
	p.zones, p.memory, p.warned, p.wantedAt = maps.Clone(p.zones), maps.Clone(p.memory), maps.Clone(p.warned), maps.Clone(p.wantedAt)
	return &out
}

// A Shape is what the provider has capacity for or not.
type Shape struct {
	InstanceType string
	Subnet       string
	Market       nstance.MarketType
}

// String returns the shape in words, such as "m5.large in subnet-1, spot".
func (s Shape) String() string {
	text := cmp.Or(s.InstanceType, "machine")
	if s.Subnet != "" {
		text += " in " + s.Subnet
	}
	return text + ", " + string(s.Market)
}

// A Request is what a create permits.
type Request struct {
	Definition    string // what is made; refusals for other reasons than capacity are of one definition
	InstanceTypes []string
	Subnets       []string
	Market        nstance.Market
	Spread        *Spread // nil: the group bounds nothing
	Order         nstance.ShapeOrder
	Urgent        bool // it replaces a loss: it waits for answers only where there was no capacity lately

	// Instead is why Market is on-demand in place of what the group prefers; empty: it is what
	// the group prefers.
	Instead Choice
}

// market returns the market that a request prefers.
func (r *Request) market() nstance.MarketType { return cmp.Or(r.Market.Type, nstance.OnDemand) }

// Permits returns equal texts for requests that permit the same shapes, in the same order of
// preference as long as no group's spread makes a difference.
func (r *Request) Permits() string {
	return strings.Join(slices.Concat(r.InstanceTypes, []string{"\x00"}, r.Subnets,
		[]string{"\x00", string(r.Market.Type), string(r.Market.Fallback), r.Market.FallbackAfter.String(), string(r.Order)}), "\x00")
}

// TypesKey names a set of instance types.
func TypesKey(types []string) string { return strings.Join(slices.Sorted(slices.Values(types)), " ") }

// SetScores records how likely the cloud is to have capacity for these types, 1 to 10, by zone.
func (m *Map) SetScores(typesKey string, zones map[string]int) { m.scores[typesKey] = zones }

// TrustClock says whether the time may end avoidances. At first it may.
func (m *Map) TrustClock(right bool) { m.clockWrong = !right }

// ZoneOf returns the zone of a subnet; empty: it is in several, or not known.
func (m *Map) ZoneOf(subnet string) string { return m.pools.zones[subnet] }

// Granted records that a create of a shape begins, for a request that was granted. It is in
// flight until Ended.
func (m *Map) Granted(r Request, shape Shape, now time.Time) {
	m.capacity.of(shape, now).send(now)
	if s := m.refusals.of(r.Definition, shape); s.stands(now) {
		s.retryAt = now.Add(s.pause) // one create shows whether it is still refused
	}
	m.TakeAddress(shape.Subnet)
	r.Spread.add(shape)
}

// Refuses reports whether anything is refused to a definition for another reason than
// capacity.
func (m *Map) Refuses(definition string) bool { return len(m.refusals[definition]) > 0 }

// earliest returns the earlier of two times that are not zero.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
