package place

import (
	"cmp"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
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
	return min(s.maxInFlight<<min(s.waited(now), 20), maxInFlight)
}

// waited is how often answerTimeout has passed without an answer.
func (s *shapeState) waited(now time.Time) int {
	return int(max(0, now.Sub(s.answeredAt)) / answerTimeout)
}

// busy reports whether another create has to wait for an answer, and until when
// at most. Losses wait only where it is likely that there is no capacity.
func (s *shapeState) busy(urgent bool, now time.Time) (bool, time.Time) {
	if urgent && !s.recovering(now) || s.inFlight < s.allowed(now) {
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

// SoldOut reports whether a shape was refused to a definition, for whatever reason, after a
// create of it was granted then.
func (m *Map) SoldOut(definition string, shape Shape, granted, now time.Time) bool {
	s, r := m.capacity[shape], m.refusals.of(definition, shape)
	return s != nil && s.soldOut(now) && s.refusedAt.After(granted) || r.stands(now) && r.at.After(granted)
}

// Answered records the provider's answer to a create of a shape, for a request, that was sent
// then. An answer that refuses nothing for sure says nothing.
func (m *Map) Answered(r Request, shape Shape, sent time.Time, err error, now time.Time) {
	switch code := nstance.CodeOf(err); {
	case err == nil:
		m.Accepted(shape, sent, now)
		m.AcceptedFor(r.Definition, shape, sent)
	case code == nstance.Capacity:
		m.Refused(shape, sent, now)
		m.Explain(shape, clip.Words(err.Error()), now)
	case code == nstance.Quota:
		m.RefusedQuota(shape, r.Subnets, sent, now)
		m.Explain(shape, clip.Words(err.Error()), now)
	case code == nstance.Invalid, code == nstance.Denied, code == nstance.Conflict:
		m.RefusedFor(r.Definition, shape, sent, clip.Words(err.Error()), now)
	}
}

// MachineLost records the end of a machine of a shape, in a zone if that is known, whose create
// was sent then. A cause that says nothing about its shape changes nothing; without a cause the
// provider refused it late.
func (m *Map) MachineLost(r Request, shape Shape, zone string, cause nstance.LossCause, sent time.Time, answer string, now time.Time) {
	switch cause {
	case nstance.LossCapacity:
		m.Lost(shape, now)
	case nstance.LossQuota:
		m.LostQuota(shape, r.Subnets, now)
	case nstance.LossReclaimed:
		m.Reclaimed(shape, zone, now)
	case nstance.LossInvalid, "":
		m.RefusedFor(r.Definition, shape, sent, cmp.Or(answer, string(cause)), now)
	}
}

// Ended records that a granted create is not in flight any more, for whatever
// reason.
func (m *Map) Ended(shape Shape, now time.Time) { m.capacity.of(shape, now).end(now) }

// Accepted records that the provider accepted a create that was sent then.
func (m *Map) Accepted(shape Shape, sent, now time.Time) {
	m.capacity.of(shape, now).accept(sent, now)
}

// Refused records that the provider had no capacity for a create that was sent
// then.
func (m *Map) Refused(shape Shape, sent, now time.Time) {
	m.capacity.of(shape, now).refuse(sent, now)
}

// Explain records the provider's answer to a create of a shape that was refused.
func (m *Map) Explain(shape Shape, answer string, now time.Time) {
	m.capacity.of(shape, now).answer = answer
}

// RefusedQuota records that the account may have no more machines of this type in
// this market, whatever the subnet.
func (m *Map) RefusedQuota(shape Shape, subnets []string, sent, now time.Time) {
	m.Refused(shape, sent, now)
	m.eachSubnet(shape, subnets, func(other Shape) { m.Refused(other, sent, now) })
}

// Lost records that a machine that was accepted found no capacity to start.
func (m *Map) Lost(shape Shape, now time.Time) { m.capacity.of(shape, now).lose(now) }

// LostQuota records the same for lack of quota.
func (m *Map) LostQuota(shape Shape, subnets []string, now time.Time) {
	m.Lost(shape, now)
	m.eachSubnet(shape, subnets, func(other Shape) { m.Lost(other, now) })
}

func (m *Map) eachSubnet(shape Shape, subnets []string, do func(Shape)) {
	for _, subnet := range subnets {
		do(Shape{shape.InstanceType, subnet, shape.Market})
	}
}
