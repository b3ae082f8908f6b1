package place

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
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
	ChoiceReclaims  Choice = "reclaims"  // on-demand, because of the reclaims that market.fallback_when names
	ChoiceRepeated  Choice = "repeated"  // the provider throttled the same create before
	ChoiceAvoided   Choice = "avoided"   // the pool of the preferred one is avoided
	ChoiceRefused   Choice = "refused"   // the provider refuses the preferred one, for another reason than capacity
)

// Reason says why an instance does not have the first permitted shape; empty: it does, or that
// is not known.
func (c Choice) Reason() string {
	return map[Choice]string{
		ChoiceCheapest:  "it costs least now",
		ChoiceSteadiest: "its pool is reclaimed least often",
		ChoiceSpread:    "others have their share of the group",
		ChoiceCrowded:   "it has the fewest members, no place below its share has capacity",
		ChoiceReclaimed: "others were reclaimed lately",
		ChoiceAddresses: "other subnets have no free address",
		ChoiceCapacity:  "others are sold out",
		ChoiceFallback:  "spot is sold out",
		ChoiceReclaims:  "spot was reclaimed too often",
		ChoiceAvoided:   "other pools are avoided",
		ChoiceRefused:   "the provider refuses others",
	}[c]
}

// A Wait says why a request has no shape yet.
type Wait struct {
	Kind  WaitKind
	Shape Shape     // WaitCapacity, WaitAvoided: the preferred one; WaitAnswer: the one in flight
	Until time.Time // it is tried again then; zero: not by time alone

	// Avoided names what keeps permitted shapes from being used, beside a lack of
	// capacity; empty: nothing does.
	Avoided string

	// Refused quotes what the provider says of the first shape that it refuses for another
	// reason than capacity; empty: there is none.
	Refused string
}

// A WaitKind is what a request waits for.
type WaitKind string

// The kinds of waits, those that last as the holds of a group are called.
const (
	WaitCapacity WaitKind = "capacity"       // every permitted shape is sold out
	WaitAnswer   WaitKind = "answer"         // to the creates in flight, which show whether there is capacity
	WaitPrices   WaitKind = "prices"         // the first ones of its instance types
	WaitAvoided  WaitKind = "avoided"        // every permitted shape is in an avoided pool
	WaitRefused  WaitKind = "create_refused" // every permitted shape is refused, one of them for another reason than capacity
)

// maxReason is how many bytes a reason keeps of what others say.
const maxReason = 256

// Reason says what a request waits for; empty: for something that ends within moments.
func (w *Wait) Reason() string {
	or := ""
	if w.Avoided != "" {
		or = " or in an avoided pool: " + w.Avoided
	}
	switch w.Kind {
	case WaitCapacity:
		return "every permitted shape is sold out" + or
	case WaitAvoided:
		return "every permitted shape is in an avoided pool: " + w.Avoided
	case WaitRefused:
		return clip.Ends("every permitted shape is refused or sold out"+or+"; "+w.Refused, maxReason)
	case WaitAnswer, WaitPrices:
	}
	return ""
}

// A rank is what orders the candidates of a request.
type rank struct {
	full     bool    // its subnet has no free address
	struck   bool    // its pool was reclaimed a moment ago
	excess   int     // by how much another member exceeds the share of its place
	unsteady bool    // its pool was reclaimed within the memory for its rate
	weight   float64 // by the request's order, smaller first
}

// compare ranks candidates; equals stay as listed. A pool that was reclaimed a moment ago
// comes last even if others have their share of the group then: what is there now is
// about to be reclaimed too. After that a share counts more than the memory of a reclaim.
func (c *Candidate) compare(o *Candidate) int {
	return cmp.Or(
		cmp.Compare(btoi(c.full), btoi(o.full)),
		cmp.Compare(btoi(c.struck), btoi(o.struck)),
		cmp.Compare(btoi(c.fallback), btoi(o.fallback)),
		cmp.Compare(c.excess, o.excess),
		cmp.Compare(btoi(c.unsteady), btoi(o.unsteady)),
		cmp.Compare(c.weight, o.weight),
	)
}

// prefer ranks candidates by what the configuration says alone.
func (c *Candidate) prefer(o *Candidate) int {
	return cmp.Or(cmp.Compare(btoi(c.fallback), btoi(o.fallback)), cmp.Compare(c.weight, o.weight))
}

func btoi(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// Choose returns the shape that a request would be granted if it were alone, why it
// would be that one, and whether there is capacity for it as far as is known: a shape
// that is sold out and only due to be tried again is not free.
func (m *Map) Choose(r Request, now time.Time) (shape Shape, choice Choice, free bool) {
	r.Urgent = true
	shape, choice, wait := m.Find(r, now)
	if wait != nil {
		return wait.Shape, "", false
	}
	s := m.capacity[shape]
	return shape, choice, s == nil || !s.soldOut(now)
}

// Find returns where to create what is requested and why there, or what it waits for: the
// first of its candidates, as they are ranked, that is neither avoided, sold out nor refused.
func (m *Map) Find(r Request, now time.Time) (Shape, Choice, *Wait) {
	all, fallbackAt := m.candidates(&r, m.addresses.order(r.Subnets, now), now)
	m.rank(&r, all, now)
	ranked := make([]*Candidate, 0, len(all))
	for i := range all {
		if c := &all[i]; len(c.Avoided) == 0 && !c.later {
			ranked = append(ranked, c)
		}
	}
	if len(ranked) == 0 {
		return Shape{}, "", m.withAvoided(&Wait{Kind: WaitAvoided, Shape: all[0].Shape}, all)
	}
	preferred := slices.MinFunc(ranked, (*Candidate).prefer)
	if until := m.pools.awaitPrices(&r, now); !until.IsZero() {
		return Shape{}, "", &Wait{Kind: WaitPrices, Shape: preferred.Shape, Until: until}
	}
	slices.SortStableFunc(ranked, (*Candidate).compare)
	wait := &Wait{Kind: WaitCapacity, Shape: preferred.Shape, Until: fallbackAt}
	for _, c := range ranked {
		if c.refused != nil && wait.Refused == "" {
			wait.Kind, wait.Refused = WaitRefused, c.String()+": "+c.refused.answer
		}
		busy := !c.busyUntil.IsZero()
		switch {
		case c.refused.waits(now):
			wait.Until = earliest(wait.Until, c.refused.retryAt)
		case c.soldOut && now.Before(c.retryAt):
			wait.Until = earliest(wait.Until, c.retryAt)
		case busy && (c.soldOut || r.Urgent):
			wait.Until = earliest(wait.Until, c.busyUntil)
		case busy:
			return Shape{}, "", &Wait{Kind: WaitAnswer, Shape: c.Shape, Until: earliest(c.busyUntil, fallbackAt)}
		default:
			return c.Shape, m.choice(&r, c, preferred, all, now), nil
		}
	}
	return Shape{}, "", m.withAvoided(wait, all)
}

// rank ranks the candidates that are permitted now, and those that are avoided.
func (m *Map) rank(r *Request, all Candidates, now time.Time) {
	crowd := m.pools.crowdOf(r.Spread)
	var scores map[string]int
	if r.Order == nstance.OrderSteadiest {
		scores = m.scores[TypesKey(r.InstanceTypes)]
	}
	for i := range all {
		c := &all[i]
		if c.later {
			continue
		}
		c.full, c.excess, c.weight = m.addresses.full(c.Subnet, now), crowd.excess(c.Shape), m.pools.weight(r.Order, scores, c.Shape, now)
		c.struck, c.unsteady = m.pools.reclaimed(c.Shape, now)
	}
}

// choice says why a candidate was chosen, and not the preferred one of those that are not
// avoided.
func (m *Map) choice(r *Request, chosen, preferred *Candidate, all Candidates, now time.Time) Choice {
	switch {
	case r.Instead != "":
		return r.Instead
	case chosen.fallback && !preferred.fallback:
		return ChoiceFallback
	case preferredAvoided(all):
		return ChoiceAvoided
	case chosen.excess > 0:
		return ChoiceCrowded
	case chosen == preferred && r.Order == nstance.OrderCheapest && m.pools.priced(chosen.Shape, now):
		return ChoiceCheapest
	case chosen == preferred && r.Order == nstance.OrderSteadiest:
		return ChoiceSteadiest
	case chosen == preferred:
		return ChoiceListed
	case preferred.refused.waits(now):
		return ChoiceRefused
	case preferred.soldOut && now.Before(preferred.retryAt), !preferred.busyUntil.IsZero():
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

// preferredAvoided reports whether the shape that a request prefers to all others is avoided.
func preferredAvoided(all Candidates) bool {
	first := &all[0]
	for i := range all {
		if c := &all[i]; !c.later && c.prefer(first) < 0 {
			first = c
		}
	}
	return len(first.Avoided) > 0
}

// withAvoided adds to a wait what is avoided of its candidates, and that it is tried again when
// the first of them is not.
func (m *Map) withAvoided(w *Wait, all Candidates) *Wait {
	var names []string
	for i := range all {
		for _, e := range all[i].Avoided {
			if name := e.Name(); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		w.Until = earliest(w.Until, m.avoidedUntil(&all[i]))
	}
	w.Avoided = strings.Join(names, "; ")
	return w
}

// FindSame returns what keeps a create from being repeated with its shape; nil: nothing does.
func (m *Map) FindSame(shape Shape, now time.Time) *Wait {
	c := m.candidate(shape, true, now)
	if len(c.Avoided) == 0 {
		return nil
	}
	return m.withAvoided(&Wait{Kind: WaitAvoided, Shape: shape}, Candidates{c})
}
