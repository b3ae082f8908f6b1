package admission

import (
	"cmp"
	"time"

	"github.com/nstance-go/nstance"
)

const (
	// firstRetry and longestRetry are the pauses between two creates of a shape
	// that is sold out: few calls in an hour, and capacity that returns is found.
	firstRetry   = 30 * time.Second
	longestRetry = 4 * time.Minute

	// answerTTL is how long an answer says something about a shape.
	answerTTL = 3 * time.Minute

	// refusalMemory is how long a shape counts as sold out after a refusal: until
	// the next attempt, if there is a request for it.
	refusalMemory = longestRetry + firstRetry

	// answerTimeout is how long creates wait for the answer to earlier ones. Each time
	// it passes without one, twice as many may be in flight.
	answerTimeout = 2 * time.Second

	// maxInFlight is where the doubling ends.
	maxInFlight = 1 << 20
)

// A Shape is what the provider has capacity for or not.
type Shape struct {
	InstanceType string
	Subnet       string
	Market       nstance.MarketType
}

// A capacityCache remembers what the provider's answers say about shapes, for all
// groups. It holds at most one entry for each shape of the last minutes.
type capacityCache map[Shape]*shapeState

// A shapeState is what is known of one shape. Sold out is what was refused and has
// not been accepted since.
type shapeState struct {
	soldOutSince time.Time     // first refusal in a row
	refusedAt    time.Time     // last refusal; zero: none is remembered
	accepted     bool          // a create that was sent after the last refusal
	shortAt      time.Time     // when it was last known to be sold out
	retryAt      time.Time     // not asked for before, while sold out
	retryPause   time.Duration // the last one
	answer       string        // the provider's to the last refused create

	inFlight    int
	maxInFlight int
	answeredAt  time.Time // or sent, when none was in flight
}

func (c capacityCache) of(shape Shape, now time.Time) *shapeState {
	if s := c[shape]; s != nil {
		return s
	}
	for other, s := range c {
		if s.stale(now) {
			delete(c, other)
		}
	}
	s := &shapeState{maxInFlight: 1}
	c[shape] = s
	return s
}

// peek returns what is known of a shape, without keeping anything of one of which nothing
// is known.
func (c capacityCache) peek(shape Shape) *shapeState {
	if s := c[shape]; s != nil {
		return s
	}
	return &shapeState{}
}

// stale reports whether nothing that is known of a shape matters any more.
func (s *shapeState) stale(now time.Time) bool {
	return s.inFlight == 0 && now.Sub(s.answeredAt) > answerTTL && now.Sub(s.refusedAt) > refusalMemory
}

// soldOut reports whether a shape is sold out, as far as is known.
func (s *shapeState) soldOut(now time.Time) bool {
	return !s.accepted && now.Sub(s.refusedAt) <= refusalMemory
}

// recovering reports whether a shape was sold out a moment ago: what comes back
// may be a little.
func (s *shapeState) recovering(now time.Time) bool {
	return s.soldOut(now) || now.Sub(s.shortAt) < answerTTL
}

// allowed is how many creates may be in flight.
func (s *shapeState) allowed(now time.Time) int {
	limit := s.maxInFlight
	if s.soldOut(now) || s.inFlight == 0 && now.Sub(s.answeredAt) > answerTTL {
		limit = 1
	}
	return min(limit<<min(s.waited(now), 20), maxInFlight)
}

// waited is how often answerTimeout has passed without an answer.
func (s *shapeState) waited(now time.Time) int {
	return int(max(0, now.Sub(s.answeredAt)) / answerTimeout)
}

// busy reports whether another create has to wait for an answer, and until when
// at most. Losses wait only where it is likely that there is no capacity.
func (s *shapeState) busy(class Class, now time.Time) (bool, time.Time) {
	if class == Loss && !s.recovering(now) || s.inFlight < s.allowed(now) {
		return false, time.Time{}
	}
	return true, s.answeredAt.Add(time.Duration(s.waited(now)+1) * answerTimeout)
}

func (s *shapeState) send(now time.Time) {
	if now.Sub(s.answeredAt) > answerTTL && s.inFlight == 0 {
		s.maxInFlight = 1
	}
	if s.inFlight == 0 {
		s.answeredAt = now
	}
	s.inFlight++
}

func (s *shapeState) end(now time.Time) { s.inFlight, s.answeredAt = max(0, s.inFlight-1), now }

// accept records that a create was accepted. One that was sent before the last
// refusal may have got the last machine.
func (s *shapeState) accept(sent, now time.Time) {
	if !sent.After(s.refusedAt) {
		return
	}
	if s.soldOut(now) {
		s.shortAt = now
	}
	if s.recovering(now) {
		s.maxInFlight++
	} else {
		s.maxInFlight = min(2*s.maxInFlight, maxInFlight)
	}
	s.accepted = true
}

// refuse records that a create was refused. Those that were sent before the last
// refusal say the same once more.
func (s *shapeState) refuse(sent, now time.Time) {
	if !sent.After(s.refusedAt) {
		return
	}
	if s.soldOut(now) {
		s.retryPause = min(2*s.retryPause, longestRetry)
	} else {
		s.soldOutSince, s.retryPause = now, firstRetry
	}
	s.refusedAt, s.shortAt, s.retryAt, s.accepted, s.maxInFlight = now, now, now.Add(s.retryPause), false, 1
}

// lose records that a machine was accepted and could not start: that it was
// accepted has not ended the shortage.
func (s *shapeState) lose(now time.Time) {
	s.accepted = false
	s.refuse(now, now)
}

// market returns the market that a request prefers.
func (r *Request) market() nstance.MarketType { return cmp.Or(r.Market.Type, nstance.OnDemand) }

func shapesOf(types, subnets []string, market nstance.MarketType) []Shape {
	if len(types) == 0 {
		types = []string{""}
	}
	if len(subnets) == 0 {
		subnets = []string{""}
	}
	out := make([]Shape, 0, len(types)*len(subnets))
	for _, t := range types {
		for _, subnet := range subnets {
			out = append(out, Shape{t, subnet, market})
		}
	}
	return out
}

// earliest returns the earlier of two times that are not zero.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
