package agent

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nstance-go/nstance/internal/sleep"
)

const (
	firstBackoff = time.Second     // the longest wait after the first failure
	maxBackoff   = 5 * time.Second // and after the fourth and later ones, until the outage is long
	// shortOutage is the number of failures after which an outage is long: the
	// longest wait doubles from then on, up to slowBackoff. The mean of all waits
	// until then is 21 s, three times as long as a takeover.
	shortOutage = 10
	// slowBackoff is the longest wait in a long outage, and after a refusal. With
	// full jitter an agent dials every 30 s on average, and 10,000 agents dial 333
	// times a second.
	slowBackoff = time.Minute
	// stableAfter is how long a session must last to reset the backoff: agents
	// must not loop between two servers that redirect to each other.
	stableAfter = 5 * time.Second
	// maxRedirects is how many redirects in a row an agent follows at once; then
	// it backs off.
	maxRedirects = 3
	// maxSuggested bounds the addresses a server may suggest.
	maxSuggested = 8
)

// jitter returns an evenly distributed duration below d: full jitter, so that
// agents which lost their server together do not come back together.
func jitter(d time.Duration) time.Duration { return rand.N(max(d, 1)) }

// shortened returns a duration that is at most a tenth shorter than d and never
// longer: the server counts missed reports in whole intervals.
func shortened(d time.Duration) time.Duration { return d - rand.N(max(d/10, 1)) }

// backoff returns how long to wait after a number of failures in a row.
func backoff(failures int, limit time.Duration) time.Duration {
	return jitter(sleep.Backoff(failures+1, firstBackoff, limit))
}

// A route decides which server address is tried next, and when. It is plain
// data, not safe for concurrent use.
type route struct {
	addrs     []string // the configured ones, never empty
	next      int
	suggested []string // by a server that redirected the agent; tried first, once each
	failures  int      // in a row
	redirects int      // in a row, since the last stable session
	refused   bool     // the last failure was a refusal
	skipWait  bool
}

// step returns the next address and how long to wait before.
func (r *route) step() (addr string, wait time.Duration) {
	wait = r.wait()
	r.skipWait = false
	if len(r.suggested) > 0 {
		addr, r.suggested = r.suggested[0], r.suggested[1:]
		return addr, wait
	}
	addr = r.addrs[r.next%len(r.addrs)]
	r.next++
	return addr, wait
}

func (r *route) wait() time.Duration {
	switch {
	case r.skipWait || r.failures == 0:
		return 0
	case r.refused:
		return slowBackoff/2 + jitter(slowBackoff/2)
	}
	return jitter(outageBackoff(r.failures))
}

// outageBackoff returns the longest wait after a number of failures in a row, at
// least one.
func outageBackoff(failures int) time.Duration {
	if failures <= shortOutage {
		return sleep.Backoff(failures, firstBackoff, maxBackoff)
	}
	return sleep.Backoff(failures-shortOutage+1, maxBackoff, slowBackoff)
}

// recordFailure records the end of an attempt or of a session. A stable session
// resets the count. After a refusal the next wait is long, but only once every
// address has refused.
func (r *route) recordFailure(session time.Duration, refused bool) {
	if session >= stableAfter {
		r.failures, r.redirects = 0, 0
	}
	r.failures++
	r.refused = refused && r.failures >= len(r.addrs)
}

// shortenBackoff returns from the backoff of a long outage to that of a short one:
// a server of another route has answered, or no server was asked.
func (r *route) shortenBackoff() { r.failures = min(r.failures, shortOutage) }

// reconnectNow makes the next attempt immediate, to the same address: the agent
// itself ended a working session.
func (r *route) reconnectNow(addr string) {
	r.suggested = []string{addr}
	r.failures, r.skipWait, r.refused = 0, true, false
}

// redirect makes the next attempt immediate, first to the suggested addresses,
// unless there were too many redirects in a row.
func (r *route) redirect(addrs []string, session time.Duration) {
	if session >= stableAfter {
		r.failures, r.redirects = 0, 0
	}
	r.failures++
	r.redirects++
	r.refused, r.skipWait = false, r.redirects <= maxRedirects
	r.suggested = nil
	for _, addr := range addrs[:min(len(addrs), maxSuggested)] {
		if validAddr(addr) && !slices.Contains(r.suggested, addr) {
			r.suggested = append(r.suggested, addr)
		}
	}
}
