package admission

import (
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
)

// An Avoidance forbids creates in a pool of capacity: of each shape that has everything
// it names. An empty field names nothing, and one of the first three is set.
type Avoidance struct {
	Zone         string
	InstanceType string
	Market       nstance.MarketType
	Until        time.Time // zero: until it is taken off the list
	Name         string    // of the caller, for waits
}

// Avoid replaces what is avoided.
func (q *Queue) Avoid(all []Avoidance) { q.avoided = slices.Clone(all) }

// Avoided reports whether no create of a shape may begin.
func (q *Queue) Avoided(shape Shape, now time.Time) bool {
	return slices.ContainsFunc(q.avoided, func(a Avoidance) bool { return a.stands(now) && q.matches(a, shape) })
}

// ZoneOf returns the zone of a subnet; empty: it is in several, or not known.
func (q *Queue) ZoneOf(subnet string) string { return q.pools.zones[subnet] }

// Divide divides the shapes that a request permits at any time, but for those that are
// avoided already: into those that another avoidance would forbid, and the others.
func (q *Queue) Divide(r Request, by Avoidance, now time.Time) (lost, left []Shape) {
	for _, shape := range r.anyShape(r.Subnets) {
		switch {
		case q.Avoided(shape, now):
		case q.matches(by, shape):
			lost = append(lost, shape)
		default:
			left = append(left, shape)
		}
	}
	return lost, left
}

func (a Avoidance) stands(now time.Time) bool { return a.Until.IsZero() || now.Before(a.Until) }

// matches reports whether a shape has everything that an avoidance names. A subnet whose
// zone is not known is in none.
func (q *Queue) matches(a Avoidance, s Shape) bool {
	return (a.Zone == "" || a.Zone == q.ZoneOf(s.Subnet)) && (a.InstanceType == "" || a.InstanceType == s.InstanceType) &&
		(a.Market == "" || a.Market == s.Market)
}

// permitted returns the shapes that a request permits now and that are not avoided, in
// order of preference, and when there will be more; zero: not by time alone. The fallback
// to on-demand is permitted once spot has been sold out, refused or avoided everywhere for
// as long as the market says.
func (q *Queue) permitted(r *Request, subnets []string, now time.Time) (shapes []Shape, more time.Time) {
	market := r.market()
	shapes = q.notAvoided(shapesOf(r.InstanceTypes, subnets, market), now)
	if market != nstance.Spot || r.Market.Fallback != nstance.OnDemand {
		return shapes, time.Time{}
	}
	for _, shape := range shapes {
		since := q.unavailableSince(r, shape, now)
		if since.IsZero() {
			return shapes, time.Time{}
		}
		if from := since.Add(r.Market.FallbackAfter); from.After(more) {
			more = from
		}
	}
	if more.After(now) {
		return shapes, more
	}
	return append(shapes, q.notAvoided(shapesOf(r.InstanceTypes, subnets, nstance.OnDemand), now)...), time.Time{}
}

func (q *Queue) notAvoided(shapes []Shape, now time.Time) []Shape {
	if len(q.avoided) == 0 {
		return shapes
	}
	return slices.DeleteFunc(shapes, func(s Shape) bool { return q.Avoided(s, now) })
}

// prefersAvoided reports whether the shape that a request prefers is avoided.
func (q *Queue) prefersAvoided(r *Request, subnets []string, now time.Time) bool {
	if len(q.avoided) == 0 {
		return false
	}
	_, preferred := q.rank(r, r.anyShape(subnets), now)
	return q.Avoided(preferred.shape, now)
}

// anyShape returns the shapes that a request permits at any time, in order of preference.
func (r *Request) anyShape(subnets []string) []Shape {
	shapes := shapesOf(r.InstanceTypes, subnets, r.market())
	if r.market() == nstance.Spot && r.Market.Fallback == nstance.OnDemand {
		shapes = append(shapes, shapesOf(r.InstanceTypes, subnets, nstance.OnDemand)...)
	}
	return shapes
}

// avoidedWait returns the wait of a request of which every shape is avoided.
func (q *Queue) avoidedWait(r *Request, subnets []string, now time.Time) *Wait {
	w := &Wait{Kind: WaitAvoided, Shape: r.anyShape(subnets)[0]}
	q.addAvoided(w, r, now)
	return w
}

// addAvoided adds to a wait what is avoided of the shapes of its request, and that it is
// tried again when the first of them is not.
func (q *Queue) addAvoided(w *Wait, r *Request, now time.Time) {
	if len(q.avoided) == 0 {
		return
	}
	var names []string
	for _, shape := range r.anyShape(r.Subnets) {
		of, until := q.avoidedFor(shape, now)
		for _, name := range of {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		w.Until = earliest(w.Until, until)
	}
	w.Avoided = strings.Join(names, "; ")
}

// avoidedFor names what forbids a shape, and says when all of that is over; zero: nothing
// forbids it, or not by time alone.
func (q *Queue) avoidedFor(shape Shape, now time.Time) (names []string, until time.Time) {
	endless := false
	for _, a := range q.avoided {
		if !a.stands(now) || !q.matches(a, shape) {
			continue
		}
		names = append(names, a.Name)
		endless = endless || a.Until.IsZero()
		if a.Until.After(until) {
			until = a.Until
		}
	}
	if endless {
		until = time.Time{}
	}
	return names, until
}

// waitOfRepeat returns what keeps a create from being repeated with its shape; nil:
// nothing does.
func (q *Queue) waitOfRepeat(shape Shape, now time.Time) *Wait {
	names, until := q.avoidedFor(shape, now)
	if names == nil {
		return nil
	}
	return &Wait{Kind: WaitAvoided, Shape: shape, Until: until, Avoided: strings.Join(names, "; ")}
}

// Open reports whether a request permits a shape that is not avoided, at any time.
func (q *Queue) Open(r Request, now time.Time) bool { return q.OpenOutside("", r, now) }

// OpenOutside is Open for what leaves a zone: shapes whose zone is not known may be in it.
func (q *Queue) OpenOutside(zone string, r Request, now time.Time) bool {
	return slices.ContainsFunc(r.anyShape(r.Subnets), func(s Shape) bool {
		return !q.Avoided(s, now) && (zone == "" || q.ZoneOf(s.Subnet) != "")
	})
}

// AvoidedWait returns the wait of a request of which every shape is avoided; nil: it
// permits others.
func (q *Queue) AvoidedWait(r Request, now time.Time) *Wait {
	if len(q.avoided) == 0 || q.Open(r, now) {
		return nil
	}
	return q.avoidedWait(&r, r.Subnets, now)
}
