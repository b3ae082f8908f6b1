package reconcile

import (
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// rememberFor is how long a shape is passed over after the provider had no
// capacity for it, and asked for last after a machine of it was reclaimed.
const rememberFor = 3 * time.Minute

// A shelf remembers which shapes are short, for all groups of the shard. It
// holds what was learned in the last minutes, at most one entry for each shape.
// It needs the reconciler's lock.
type shelf struct {
	soldOut   map[storage.Shape]shortage
	reclaimed map[storage.Shape]time.Time // until when it is asked for last
}

type shortage struct {
	since time.Time // of the first refusal in a row
	last  time.Time // refusal
	over  bool      // a create has been accepted since: it is kept in case that machine does not start
}

func newShelf() *shelf {
	return &shelf{soldOut: map[storage.Shape]shortage{}, reclaimed: map[storage.Shape]time.Time{}}
}

// refused remembers that the provider had no capacity for a shape.
func (s *shelf) refused(shape storage.Shape, now time.Time) {
	for old, o := range s.soldOut {
		if o.stale(now) {
			delete(s.soldOut, old)
		}
	}
	shape = unpriced(shape)
	since := now
	if was, ok := s.soldOut[shape]; ok && !was.over {
		since = was.since
	}
	s.soldOut[shape] = shortage{since: since, last: now}
}

// relapsed remembers that an accepted machine of a shape found no capacity when
// it was to start. That it was accepted has not ended the shortage.
func (s *shelf) relapsed(shape storage.Shape, now time.Time) {
	if was, ok := s.soldOut[unpriced(shape)]; ok {
		was.over = false
		s.soldOut[unpriced(shape)] = was
	}
	s.refused(shape, now)
}

// overQuota remembers that the account may have no more machines of this type in
// this market, whatever the subnet.
func (s *shelf) overQuota(shape storage.Shape, subnets []string, now time.Time) {
	s.refused(shape, now)
	for _, shape.Subnet = range subnets {
		s.refused(shape, now)
	}
}

// had ends the shortage of a shape that could be had, unless that was asked for
// before it was last refused: then the last one may just have gone.
func (s *shelf) had(shape storage.Shape, asked time.Time) {
	shape = unpriced(shape)
	if was, ok := s.soldOut[shape]; ok && asked.After(was.last) {
		was.over = true
		s.soldOut[shape] = was
	}
}

// taken remembers that the cloud takes a machine of this shape back: there may
// be more, but others are asked for first.
func (s *shelf) taken(shape storage.Shape, now time.Time) {
	for old, until := range s.reclaimed {
		if now.After(until) {
			delete(s.reclaimed, old)
		}
	}
	s.reclaimed[unpriced(shape)] = now.Add(rememberFor)
}

// stands reports whether a shape is still to be passed over.
func (o shortage) stands(now time.Time) bool { return !o.over && now.Sub(o.last) < rememberFor }

// stale reports whether a refusal is so old that it says nothing any more.
func (o shortage) stale(now time.Time) bool { return now.Sub(o.last) > 2*rememberFor }

// choose returns where to make a machine: the first instance type, in order of
// preference, in the first of the subnets where it is not known to be sold out,
// those that were just reclaimed after them, and subnets without a free address
// last. Where spot is sold out everywhere, and
// has been for as long as the market says, on-demand capacity is a choice too.
// free is false when everything is sold out; the shape is then the one that was
// left alone the longest.
func (s *shelf) choose(def nstance.Definition, subnets []string, full func(string) bool, now time.Time) (shape storage.Shape, free bool) {
	shapes := s.permitted(def, subnets, now)
	reclaimed, crowded, probe := -1, -1, 0
	for i, shape := range shapes {
		switch {
		case s.soldOut[shape].stands(now):
			if s.soldOut[shape].last.Before(s.soldOut[shapes[probe]].last) {
				probe = i
			}
		case full(shape.Subnet):
			if crowded < 0 {
				crowded = i
			}
		case now.Before(s.reclaimed[shape]):
			if reclaimed < 0 {
				reclaimed = i
			}
		default:
			return priced(shape, def), true
		}
	}
	for _, i := range []int{reclaimed, crowded} {
		if i >= 0 {
			return priced(shapes[i], def), true
		}
	}
	return priced(shapes[probe], def), false
}

// permitted returns every shape that may be asked for now, in order of
// preference, at least one.
func (s *shelf) permitted(def nstance.Definition, subnets []string, now time.Time) []storage.Shape {
	market := def.Market.Type
	if market == "" {
		market = nstance.OnDemand
	}
	shapes := shapesOf(def, subnets, market)
	if market == nstance.Spot && def.Market.Fallback == nstance.OnDemand && s.soldOutFor(shapes, now, def.Market.FallbackAfter) {
		shapes = append(shapes, shapesOf(def, subnets, nstance.OnDemand)...)
	}
	return shapes
}

// soldOutFor reports whether none of the shapes could be had for that long.
func (s *shelf) soldOutFor(shapes []storage.Shape, now time.Time, d time.Duration) bool {
	for _, shape := range shapes {
		out, ok := s.soldOut[shape]
		if !ok || out.over || out.stale(now) || now.Sub(out.since) < d {
			return false
		}
	}
	return true
}

func priced(shape storage.Shape, def nstance.Definition) storage.Shape {
	if shape.Market == nstance.Spot {
		shape.MaxPrice = def.Market.MaxPrice
	}
	return shape
}

// unpriced returns what is remembered of a shape: capacity has no price.
func unpriced(shape storage.Shape) storage.Shape {
	shape.MaxPrice = ""
	return shape
}

// shapesOf returns every shape of a definition in one market.
func shapesOf(def nstance.Definition, subnets []string, market nstance.MarketType) []storage.Shape {
	types := def.InstanceTypes
	if len(types) == 0 {
		types = []string{""}
	}
	if len(subnets) == 0 {
		subnets = []string{""}
	}
	var out []storage.Shape
	for _, t := range types {
		for _, s := range subnets {
			out = append(out, storage.Shape{InstanceType: t, Subnet: s, Market: market})
		}
	}
	return out
}
