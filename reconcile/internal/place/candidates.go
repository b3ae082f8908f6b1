package place

import (
	"cmp"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/internal/avoid"
)

// A Candidate is a shape that a request permits, at any time, with what is against it.
type Candidate struct {
	Shape
	Zone    string        // of its subnet; empty: it is in several, or not known
	Avoided []avoid.Entry // why no create may begin there

	fallback bool     // of the market that is permitted only while the other one is unavailable
	later    bool     // and that is not permitted yet
	warned   bool     // the cloud has recommended to leave its pool
	refused  *refusal // for another reason than capacity; nil: it is not

	soldOut      bool
	soldOutSince time.Time
	retryAt      time.Time // while sold out
	answer       string    // of the provider, while sold out
	busyUntil    time.Time // it waits for an answer to earlier creates; zero: it does not

	rank
}

// Candidates are the shapes that a request permits at any time, as listed, and the fallback
// after all others.
type Candidates []Candidate

// Candidates returns the shapes that a request permits, each with what is against it.
func (m *Map) Candidates(r Request, now time.Time) Candidates {
	all, _ := m.candidates(&r, r.Subnets, now)
	return all
}

// candidates returns also when the fallback will be permitted; zero: it is, or not by time
// alone. It is permitted once the other market has been sold out, refused or avoided everywhere
// for as long as the market says.
func (m *Map) candidates(r *Request, subnets []string, now time.Time) (all Candidates, fallbackAt time.Time) {
	markets := []nstance.MarketType{r.market()}
	if r.market() == nstance.Spot && r.Market.Fallback == nstance.OnDemand {
		markets = append(markets, nstance.OnDemand)
	}
	types := orAny(r.InstanceTypes)
	subnets = orAny(subnets)
	all = make(Candidates, 0, len(markets)*len(types)*len(subnets))
	refused := m.refusals[r.Definition]
	for i, market := range markets {
		later := i > 0 && fallbackWaits(all, r.Market.FallbackAfter, now, &fallbackAt)
		for _, t := range types {
			for _, subnet := range subnets {
				c := m.candidate(Shape{t, subnet, market}, r.Urgent, now)
				if is := refused[c.Shape]; is.stands(now) {
					c.refused = is
				}
				c.fallback, c.later = i > 0, later
				all = append(all, c)
			}
		}
	}
	return all, fallbackAt
}

// fallbackWaits reports whether a fallback is not permitted beside shapes of the preferred
// market, and sets when it will be by time alone.
func fallbackWaits(preferred Candidates, after time.Duration, now time.Time, at *time.Time) bool {
	for i := range preferred {
		c := &preferred[i]
		if len(c.Avoided) > 0 {
			continue
		}
		since := c.soldOutSince
		if c.refused != nil {
			since = earliest(since, c.refused.since)
		}
		if since.IsZero() {
			*at = time.Time{}
			return true
		}
		if from := since.Add(after); from.After(now) && from.After(*at) {
			*at = from
		}
	}
	return !at.IsZero()
}

// orAny returns names, or the empty name that stands for any.
func orAny(names []string) []string {
	if len(names) == 0 {
		return []string{""}
	}
	return names
}

// candidate returns what is known of one shape, but for what is refused to a definition.
func (m *Map) candidate(shape Shape, urgent bool, now time.Time) Candidate {
	c := Candidate{Shape: shape, Zone: m.pools.zones[shape.Subnet]}
	for _, e := range m.AvoidedPools.All() {
		if (e.Until.IsZero() || m.clockWrong || now.Before(e.Until)) && c.In(e.Pool) {
			c.Avoided = append(c.Avoided, e)
		}
	}
	since, _ := m.WarnedFor(shape, "", now)
	c.warned = !since.IsZero()
	s := m.capacity[shape]
	if s == nil {
		return c
	}
	if s.soldOut(now) {
		c.soldOut, c.soldOutSince, c.retryAt, c.answer = true, s.soldOutSince, s.retryAt, s.answer
	}
	if busy, until := s.busy(urgent, now); busy {
		c.busyUntil = until
	}
	return c
}

// In reports whether a candidate is in a pool. A subnet whose zone is not known is in none.
func (c *Candidate) In(p avoid.Pool) bool {
	return (p.Zone == "" || p.Zone == c.Zone) && (p.InstanceType == "" || p.InstanceType == c.InstanceType) && (p.Market == "" || p.Market == c.Market)
}

// avoidedUntil says when everything that forbids a candidate is over; zero: nothing forbids it,
// or not by time alone.
func (m *Map) avoidedUntil(c *Candidate) (until time.Time) {
	for _, e := range c.Avoided {
		if e.Until.IsZero() || m.clockWrong {
			return time.Time{}
		}
		if e.Until.After(until) {
			until = e.Until
		}
	}
	return until
}

// Avoided reports whether no create of a shape may begin.
func (m *Map) Avoided(shape Shape, now time.Time) bool {
	c := m.candidate(shape, true, now)
	return len(c.Avoided) > 0
}

// OpenOutside reports whether a shape is not avoided, and certainly outside of a zone; empty: of
// none. Shapes whose zone is not known may be in it.
func (c Candidates) OpenOutside(zone string) bool {
	return slices.ContainsFunc(c, func(s Candidate) bool { return len(s.Avoided) == 0 && (zone == "" || s.Zone != "") })
}

// OpenUnwarned reports whether a shape is not avoided, of a pool that the cloud has not
// recommended to leave.
func (c Candidates) OpenUnwarned() bool {
	return slices.ContainsFunc(c, func(s Candidate) bool { return len(s.Avoided) == 0 && !s.warned })
}

// AnotherThan reports whether there is another shape that is not refused for a reason other
// than capacity.
func (c Candidates) AnotherThan(shape Shape) bool {
	return slices.ContainsFunc(c, func(s Candidate) bool { return s.Shape != shape && s.refused == nil })
}

// Hopeless reports whether the provider refuses every shape that is not avoided, and one of
// all definitely and for another reason than capacity.
func (c Candidates) Hopeless() bool {
	refused := false
	for _, s := range c {
		switch {
		case s.refused != nil:
			refused = refused || s.refused.definite
		case len(s.Avoided) == 0 && !s.soldOut:
			return false
		}
	}
	return refused
}

// Answer returns the provider's answer for the first shape that is permitted now and refused or
// sold out; empty: there is none.
func (c Candidates) Answer() string {
	for _, s := range c {
		switch {
		case s.later || len(s.Avoided) > 0:
		case s.refused != nil:
			return s.refused.answer
		case s.answer != "":
			return s.answer
		}
	}
	return ""
}

// A Resident is a machine that was made: as the provider says, else as was asked for.
type Resident struct {
	Shape
	Zone      string // empty: not known
	CreatedAt time.Time
}

// In reports whether a machine is in a pool.
func (m *Map) In(x Resident, p avoid.Pool) bool {
	c := Candidate{Shape: x.Shape, Zone: cmp.Or(x.Zone, m.ZoneOf(x.Subnet))}
	return c.In(p)
}

// ToLeave returns the pool that a machine is to leave; nil: none. What is made while a pool is
// avoided is not replaced for it: where the zone of a subnet is not known, its replacement could
// be there again.
func (m *Map) ToLeave(x Resident, reached func(time.Time) bool) *avoid.Entry {
	requested := m.AvoidedPools.Requested()
	for i := range requested {
		e := &requested[i]
		if e.Drain && !x.CreatedAt.After(e.Since) && m.In(x, e.Pool) && !reached(e.Until) {
			return e
		}
	}
	return nil
}
