package server

import (
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/nstance-go/nstance"
)

// Bounds on the notices of one instance, over all its sessions. A stolen identity
// can doom its own instance and nothing else, so all that is left to it is to say
// much.
const (
	maxClaims = 32 // announcements that are remembered, by event ID; then the oldest is forgotten
	maxOwed   = 8  // numbers under which a repeated one is acknowledged

	// So many announcements, with their changes, are passed on at once, and one
	// more after each interval. Those that doom the machine count apart: what
	// else flaps must not hide a reclaim.
	claimsAtOnce  = 32
	claimInterval = time.Minute
)

// claimBook is what the agents of a term have claimed of notices. It forgets an
// instance when that is deleted.
type claimBook struct {
	mu   sync.Mutex
	byID map[nstance.InstanceID]*claims
}

func (b *claimBook) of(id nstance.InstanceID) *claims {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.byID[id]
	if c == nil {
		if b.byID == nil {
			b.byID = map[nstance.InstanceID]*claims{}
		}
		c = &claims{byEvent: map[string]*claim{}, dooming: newClaimLimiter(), other: newClaimLimiter()}
		b.byID[id] = c
	}
	return c
}

func (b *claimBook) forget(id nstance.InstanceID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.byID, id)
}

func newClaimLimiter() *rate.Limiter {
	return rate.NewLimiter(rate.Every(claimInterval), claimsAtOnce)
}

// claims are those of one instance. A repeat adds nothing to what is known
// already, so it goes no further.
type claims struct {
	mu             sync.Mutex
	byEvent        map[string]*claim
	order          []string // event IDs, oldest first
	dooming, other *rate.Limiter
	excess         bool // there were too many
	warned         sync.Once
}

// A claim is one announcement in its latest form.
type claim struct {
	notice  nstance.Notice
	sent    bool      // as a message of its own, which wants an acknowledgement
	owed    []owedAck // once its consequence is durable
	settled bool
}

type owedAck struct {
	session *session
	number  uint64
}

// take decides what a message says: fresh is something new to be passed on;
// otherwise ack says whether it is to be acknowledged at once, and else it
// waits with the message that it repeats.
func (c *claims) take(s *session, number uint64, n nstance.Notice) (fresh *claim, ack bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	owed := owedAck{s, number}
	known := c.byEvent[n.EventID]
	switch {
	case known != nil && repeats(known.notice, n) && known.sent:
		if !known.settled {
			known.owed = append(known.owed[max(0, len(known.owed)-maxOwed+1):], owed)
		}
		return nil, known.settled
	case known != nil && repeats(known.notice, n):
		known.sent, known.owed = true, []owedAck{owed}
		return known, false
	case !c.admit(n):
		return nil, true
	}
	fresh = &claim{notice: n, sent: true, owed: []owedAck{owed}}
	c.put(fresh)
	return fresh, false
}

// carried reports whether a notice in a report is to be passed on.
func (c *claims) carried(n nstance.Notice) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.byEvent[n.EventID]; known != nil && repeats(known.notice, n) {
		return true
	}
	if !c.admit(n) {
		return false
	}
	c.put(&claim{notice: n})
	return true
}

// news reports whether a notice that nothing is acknowledged of says something
// new, which is to be passed on.
func (c *claims) news(n nstance.Notice) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.byEvent[n.EventID]; known != nil && repeats(known.notice, n) || !c.admit(n) {
		return false
	}
	c.put(&claim{notice: n})
	return true
}

// admit needs the lock.
func (c *claims) admit(n nstance.Notice) bool {
	limit := c.other
	if n.Kind.Dooms() {
		limit = c.dooming
	}
	ok := limit.Allow()
	c.excess = c.excess || !ok
	return ok
}

// put needs the lock.
func (c *claims) put(fresh *claim) {
	id := fresh.notice.EventID
	if c.byEvent[id] == nil {
		if len(c.order) >= maxClaims {
			delete(c.byEvent, c.order[0])
			c.order = slices.Delete(c.order, 0, 1)
		}
		c.order = append(c.order, id)
	}
	c.byEvent[id] = fresh
}

// settle acknowledges every message that made the claim.
func (c *claims) settle(done *claim) {
	c.mu.Lock()
	owed := done.owed
	done.owed, done.settled = nil, true
	c.mu.Unlock()
	for _, o := range owed {
		o.session.acknowledge(o.number)
	}
}

// begin has what is not settled yet passed on again when a new session repeats
// it: its receiver may have dropped it.
func (c *claims) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, known := range c.byEvent {
		known.sent = known.sent && known.settled
	}
}

func (c *claims) exceeded() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.excess
}

// repeats reports whether n says nothing that known does not. Deadlines only
// tighten.
func repeats(known, n nstance.Notice) bool {
	return known.Kind == n.Kind && known.Action == n.Action && known.Source == n.Source && known.Cancelled == n.Cancelled &&
		!n.Tightens(known) && known.NotBefore.Equal(n.NotBefore)
}

// notice passes on what is new, and acknowledges it once that has had its
// effect.
func (s *session) notice(number uint64, n nstance.Notice) {
	fresh, ack := s.claims.take(s, number, n)
	switch {
	case fresh != nil:
		s.term.noticed(s.id, n, func() { s.claims.settle(fresh) })
	case ack:
		s.acknowledge(number)
	}
	if s.claims.exceeded() {
		s.claims.warned.Do(func() {
			s.term.log.Warn("too many notices of one instance, the rest is dropped", "instance_id", s.id)
		})
	}
}

// report passes on a report with those of its notices that there is room for.
func (s *session) report(r nstance.Report) {
	r.Notices = slices.DeleteFunc(r.Notices, func(n nstance.Notice) bool { return !s.claims.carried(n) })
	s.term.reported(s.filesReported(r))
}
