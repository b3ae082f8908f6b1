package server

import (
	"net/netip"
	"time"
)

const (
	// maxTurns is how often two sources may take the session of one agent from
	// each other, while it is open, before two parties are taken to hold its key.
	// An agent that moves to another address does so once. One that has two, and
	// whose connections break unnoticed, must do so four times within
	// rivalryTime.
	maxTurns = 3
	// rivalryTime is how long turns are counted together.
	rivalryTime = 10 * time.Minute
)

// A rivalry is the history of an agent's session: who had it before, and how
// often it changed hands while it was open.
type rivalry struct {
	before netip.Addr
	turns  int
	since  time.Time
}

// succeeds takes the history over from the session that s replaces, nil for
// none, and returns how often it has changed hands.
func (s *session) succeeds(old *session, now time.Time) int {
	switch {
	case old == nil:
		return 0
	case old.source == s.source:
		s.rivals = old.rivals
		return 0
	case old.rivals.before == s.source && now.Sub(old.rivals.since) < rivalryTime:
		s.rivals = rivalry{before: old.source, turns: old.rivals.turns + 1, since: old.rivals.since}
	default:
		s.rivals = rivalry{before: old.source, turns: 1, since: now}
	}
	return s.rivals.turns
}
