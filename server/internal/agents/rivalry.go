package agents

import (
	"net/netip"
	"time"
)

const (
	// maxTakeovers is how often two sources may take over the session of one agent
	// from each other, while it is open, before two parties are taken to hold its
	// key. An agent that moves to another address does so once. An agent with two
	// addresses, whose connections break unnoticed, must do so four times within
	// takeoverTime.
	maxTakeovers = 3
	// takeoverTime is how long takeovers are counted together.
	takeoverTime = 10 * time.Minute
)

// A rivalry is the history of an agent's session: which source had it before, and
// how often it was taken over while it was open.
type rivalry struct {
	before    netip.Addr
	takeovers int
	since     time.Time
}

// takeOver continues the history of the session that s replaces, nil for none, and
// returns how often it was taken over.
func (s *session) takeOver(old *session, now time.Time) int {
	switch {
	case old == nil:
		return 0
	case old.source == s.source:
		s.rivalry = old.rivalry
		return 0
	case old.rivalry.before == s.source && now.Sub(old.rivalry.since) < takeoverTime:
		s.rivalry = rivalry{before: old.source, takeovers: old.rivalry.takeovers + 1, since: old.rivalry.since}
	default:
		s.rivalry = rivalry{before: old.source, takeovers: 1, since: now}
	}
	return s.rivalry.takeovers
}
