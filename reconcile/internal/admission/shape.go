package admission

import (
	"cmp"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
)

// A Choice says why a create has its shape, and not an earlier one that is permitted.
type Choice string

// The choices. The reason why the preferred shape was passed over counts.
const (
	ChoiceListed    Choice = "listed"    // it is the first one
	ChoiceCheapest  Choice = "cheapest"  // it costs least now, with the work that reclaims of its pool cost
	ChoiceSteadiest Choice = "steadiest" // its pool is reclaimed least often
	ChoiceSpread    Choice = "spread"    // the preferred one has its share of the group
	ChoiceCrowded   Choice = "crowded"   // it has its share too: none with a smaller one has capacity
	ChoiceReclaimed Choice = "reclaimed" // the cloud has reclaimed machines of the preferred one lately
	ChoiceAddresses Choice = "addresses" // the subnet of the preferred one has no free address
	ChoiceCapacity  Choice = "capacity"  // the preferred one is sold out
	ChoiceFallback  Choice = "fallback"  // on-demand, because spot is sold out
	ChoiceRepeated  Choice = "repeated"  // the provider throttled the same create before
	ChoiceAvoided   Choice = "avoided"   // the pool of the preferred one is avoided
	ChoiceRefused   Choice = "refused"   // the provider refuses the preferred one, for another reason than capacity
)

// A candidate is a shape that a request permits, with what ranks it.
type candidate struct {
	shape    Shape
	full     bool    // its subnet has no free address
	struck   bool    // its pool was reclaimed a moment ago
	fallback bool    // of the market that is permitted only because the other one is sold out
	excess   int     // by how much another member exceeds the share of its place
	unsteady bool    // its pool was reclaimed within the memory for its rate
	weight   float64 // by the request's order, smaller first
}

// compare ranks candidates; equals stay as listed. A pool that was reclaimed a moment ago
// comes last even if others have their share of the group then: what is there now is
// about to be reclaimed too. After that a share counts more than the memory of a reclaim.
func (a candidate) compare(b candidate) int {
	return cmp.Or(
		cmp.Compare(btoi(a.full), btoi(b.full)),
		cmp.Compare(btoi(a.struck), btoi(b.struck)),
		cmp.Compare(btoi(a.fallback), btoi(b.fallback)),
		cmp.Compare(a.excess, b.excess),
		cmp.Compare(btoi(a.unsteady), btoi(b.unsteady)),
		cmp.Compare(a.weight, b.weight),
	)
}

// prefer ranks candidates by what the configuration says alone.
func (a candidate) prefer(b candidate) int {
	return cmp.Or(cmp.Compare(btoi(a.fallback), btoi(b.fallback)), cmp.Compare(a.weight, b.weight))
}

func btoi(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// findShape returns where to create what is requested, and why there: the first shape
// that is neither sold out nor refused, as [candidate] ranks them.
func (q *Queue) findShape(r *Request, class Class, now time.Time) (Shape, Choice, *Wait) {
	subnets := q.addresses.order(r.Subnets, now)
	shapes, more := q.permitted(r, subnets, now)
	if len(shapes) == 0 {
		return Shape{}, "", q.avoidedWait(r, subnets, now)
	}
	ranked, preferred := q.rank(r, shapes, now)
	if until := q.pools.awaitPrices(r, class, now); !until.IsZero() {
		return Shape{}, "", &Wait{Kind: WaitPrices, Shape: preferred.shape, Until: until}
	}
	wait := &Wait{Kind: WaitCapacity, Shape: preferred.shape, Until: more}
	for _, c := range ranked {
		s, refused := q.capacity.peek(c.shape), q.refusals.of(r.Definition, c.shape)
		busy, until := s.busy(class, now)
		if refused.stands(now) && wait.Refused == "" {
			wait.Kind, wait.Refused = WaitRefused, refusedText(c.shape, refused)
		}
		switch {
		case refused.waits(now):
			wait.Until = earliest(wait.Until, refused.retryAt)
		case s.soldOut(now) && now.Before(s.retryAt):
			wait.Until = earliest(wait.Until, s.retryAt)
		case busy && (s.soldOut(now) || class == Loss):
			wait.Until = earliest(wait.Until, until)
		case busy:
			return Shape{}, "", &Wait{Kind: WaitAnswer, Shape: c.shape, Until: earliest(until, more)}
		default:
			if !c.fallback && q.prefersAvoided(r, subnets, now) {
				return c.shape, ChoiceAvoided, nil
			}
			return c.shape, q.choice(r, c, preferred, class, now), nil
		}
	}
	q.addAvoided(wait, r, now)
	return Shape{}, "", wait
}

// rank returns the shapes in the order in which they are tried, and the one that would be
// the first if all had capacity, addresses and room for another member.
func (q *Queue) rank(r *Request, shapes []Shape, now time.Time) (ranked []candidate, preferred candidate) {
	crowd := q.pools.crowdOf(r.Spread)
	ranked = make([]candidate, len(shapes))
	for i, shape := range shapes {
		struck, unsteady := q.pools.reclaimed(shape, now)
		ranked[i] = candidate{
			shape: shape, full: q.addresses.full(shape.Subnet, now), struck: struck, unsteady: unsteady,
			fallback: shape.Market != shapes[0].Market, excess: crowd.excess(shape), weight: q.pools.weight(r, shape, now),
		}
	}
	preferred = slices.MinFunc(ranked, candidate.prefer)
	slices.SortStableFunc(ranked, candidate.compare)
	return ranked, preferred
}

// choice says why a candidate was chosen.
func (q *Queue) choice(r *Request, chosen, preferred candidate, class Class, now time.Time) Choice {
	state := q.capacity.peek(preferred.shape)
	busy, _ := state.busy(class, now)
	switch {
	case chosen.fallback:
		return ChoiceFallback
	case chosen.excess > 0:
		return ChoiceCrowded
	case chosen.shape == preferred.shape && r.Order == nstance.OrderCheapest && q.pools.priced(chosen.shape, now):
		return ChoiceCheapest
	case chosen.shape == preferred.shape && r.Order == nstance.OrderSteadiest:
		return ChoiceSteadiest
	case chosen.shape == preferred.shape:
		return ChoiceListed
	case q.refusals.of(r.Definition, preferred.shape).waits(now):
		return ChoiceRefused
	case state.soldOut(now) && now.Before(state.retryAt), busy:
		return ChoiceCapacity
	case preferred.full:
		return ChoiceAddresses
	case preferred.struck:
		return ChoiceReclaimed
	case preferred.excess > 0:
		return ChoiceSpread
	}
	return ChoiceReclaimed
}
