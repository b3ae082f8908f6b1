package agent

import (
	"math/rand/v2"
	"slices"
	"time"
)

const (
	firstBackoff = time.Second     // the longest wait after the first failure
	maxBackoff   = 5 * time.Second // and after the fourth and later ones, until the outage is long
	// shortOutage is the number of failures after which an outage is long: the
	// longest wait doubles from then on, up to slowBackoff. The mean of all waits
	// until then is 21 s, three times as long as a takeover.
	shortOutage = 10
	// slowBackoff is the longest wait in a long outage, and after a refusal that
	// waiting does not mend. With full jitter an agent dials every 30 s on average,
	// and 10,000 agents dial 333 times a second.
	slowBackoff = time.Minute
	// settledAfter is how long a session must last to be called well: two
	// servers that send agents to each other must not make them spin.
	settledAfter = 5 * time.Second
	// maxHops is how often an agent goes at once where it is sent to before it
	// takes its time again.
	maxHops = 3
	// maxSuggested bounds the addresses a server may suggest.
	maxSuggested = 8
)

// jitter returns an evenly distributed duration below d: full jitter, so that
// agents which lost their server together do not come back together.
func jitter(d time.Duration) time.Duration { return rand.N(max(d, 1)) }

// early returns a duration that is at most a tenth shorter than d and never
// longer: whoever waits for the agent counts in whole intervals.
func early(d time.Duration) time.Duration { return d - rand.N(max(d/10, 1)) }

// backoff returns how long to wait after a number of failures in a row.
func backoff(failures int, limit time.Duration) time.Duration {
	return jitter(min(firstBackoff<<min(failures, 16), limit))
}

// A route decides which server address is tried next, and when. It is plain
// data, not safe for concurrent use.
type route struct {
	addrs     []string // the configured ones, never empty
	next      int
	suggested []string // by a server that went away; tried first, once each
	failures  int      // in a row
	hops      int      // in a row, since a session was well
	slow      bool     // the last failure was a refusal
	atOnce    bool
}

// step returns the address to try and how long to wait before.
func (r *route) step() (addr string, wait time.Duration) {
	wait = r.wait()
	r.atOnce = false
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
	case r.atOnce || r.failures == 0:
		return 0
	case r.slow:
		return slowBackoff/2 + jitter(slowBackoff/2)
	}
	return jitter(outageBackoff(r.failures))
}

// outageBackoff returns the longest wait after a number of failures in a row, at
// least one.
func outageBackoff(failures int) time.Duration {
	if failures <= shortOutage {
		return min(firstBackoff<<min(failures-1, 16), maxBackoff)
	}
	return min(maxBackoff<<min(failures-shortOutage, 16), slowBackoff)
}

// failed notes the end of an attempt or of a session. A session that had been
// well for a while starts the count again; a refusal makes the next wait long,
// but only once every address has refused.
func (r *route) failed(lived time.Duration, refused bool) {
	if lived >= settledAfter {
		r.failures, r.hops = 0, 0
	}
	r.failures++
	r.slow = refused && r.failures >= len(r.addrs)
}

// shorten ends a long outage: a server is there again, though not for this route,
// or none was asked.
func (r *route) shorten() { r.failures = min(r.failures, shortOutage) }

// again makes the next attempt immediate, to the same address: the agent itself
// ended a good session.
func (r *route) again(addr string) {
	r.suggested = []string{addr}
	r.failures, r.atOnce, r.slow = 0, true, false
}

// sent makes the next attempt immediate, first to the suggested addresses,
// unless the agent has been sent around too often.
func (r *route) sent(addrs []string, lived time.Duration) {
	if lived >= settledAfter {
		r.failures, r.hops = 0, 0
	}
	r.failures++
	r.hops++
	r.slow, r.atOnce = false, r.hops <= maxHops
	r.suggested = nil
	for _, addr := range addrs[:min(len(addrs), maxSuggested)] {
		if validAddr(addr) && !slices.Contains(r.suggested, addr) {
			r.suggested = append(r.suggested, addr)
		}
	}
}
