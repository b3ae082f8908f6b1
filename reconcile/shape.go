package reconcile

import (
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// soldOutFor is how long a shape is passed over after the provider had no
// capacity for it.
const soldOutFor = 3 * time.Minute

// shortages remembers which shapes are sold out, for all groups of the shard.
// It holds at most one entry for each shape that some definition names.
type shortages map[storage.Shape]shortage

type shortage struct {
	since time.Time // of the first refusal in a row
	until time.Time // not asked for again before, if there is another choice
}

// note remembers a refusal, after which the next attempt is made at again.
func (s shortages) note(shape storage.Shape, now, again time.Time) {
	shape.MaxPrice = ""
	was := s[shape]
	if was.stale(now) {
		was.since = now
	}
	s[shape] = shortage{since: was.since, until: again.Add(soldOutFor)}
}

// stale reports whether a refusal is so old that it says nothing any more.
func (o shortage) stale(now time.Time) bool { return now.Sub(o.until) > soldOutFor }

// clear forgets a shape that could be had.
func (s shortages) clear(shape storage.Shape) {
	shape.MaxPrice = ""
	delete(s, shape)
}

// choose returns where to make the machine with this ID: the first instance
// type, in order of preference, that is not known to be sold out in one of the
// subnets, over which IDs spread evenly. Where everything is sold out the first
// choice is tried again, or on-demand capacity if the market permits that.
func (s shortages) choose(id nstance.InstanceID, def nstance.Definition, now time.Time) storage.Shape {
	market := def.Market.Type
	if market == "" {
		market = nstance.OnDemand
	}
	shapes := shapesOf(id, def, market)
	chosen, since := -1, time.Time{}
	for i, shape := range shapes {
		out := s[shape]
		if chosen < 0 && now.After(out.until) {
			chosen = i
		}
		if out.stale(now) {
			out.since = now
		}
		since = laterOf(since, out.since)
	}
	if market == nstance.Spot && def.Market.Fallback == nstance.OnDemand && since.Before(now) && now.Sub(since) >= def.Market.FallbackAfter {
		def.Market = nstance.Market{Type: nstance.OnDemand}
		return s.choose(id, def, now)
	}
	return priced(shapes[max(chosen, 0)], def)
}

func priced(shape storage.Shape, def nstance.Definition) storage.Shape {
	if shape.Market == nstance.Spot {
		shape.MaxPrice = def.Market.MaxPrice
	}
	return shape
}

// shapesOf returns every shape of a definition in order of preference, at
// least one.
func shapesOf(id nstance.InstanceID, def nstance.Definition, market nstance.MarketType) []storage.Shape {
	types, subnets := def.InstanceTypes, def.Subnets
	if len(types) == 0 {
		types = []string{""}
	}
	if len(subnets) == 0 {
		subnets = []string{""}
	}
	u := id.UUID()
	var out []storage.Shape
	for _, t := range types {
		for i := range subnets {
			out = append(out, storage.Shape{InstanceType: t, Subnet: subnets[(int(u[15])+i)%len(subnets)], Market: market})
		}
	}
	return out
}
