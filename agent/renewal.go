package agent

import (
	"sync"
	"time"
)

const (
	// minRenewal is the shortest time between two renewals, even if a server asks.
	minRenewal = 10 * time.Second
	// renewRetry is the longest pause between attempts to renew.
	renewRetry = time.Minute
	// clockSlack is subtracted from a certificate's life: servers backdate.
	clockSlack = time.Minute
)

// A renewalPace decides when the certificate in use is renewed. It outlives
// sessions: a new session must not start the count of failures again. It goes by
// the time since this process received the certificate, because the machine's
// clock may be wrong by hours. It is safe for concurrent use.
type renewalPace struct {
	mu       sync.Mutex
	received time.Time // zero: an earlier process did
	earliest time.Time // of the next attempt
	failures int       // in a row
}

// due returns when id is to be renewed: after two thirds of its life, so that a
// third of it is left for finding a server that answers.
func (p *renewalPace) due(id *identity, now time.Time) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	full := id.pair.Leaf.NotAfter.Sub(id.pair.Leaf.NotBefore)
	wait := max(full*2/3-clockSlack, minRenewal)
	switch {
	case p.received.IsZero(): // the clock's word is all there is, but it cannot mean more than a whole life
		wait = min(wait, id.pair.Leaf.NotBefore.Add(full*2/3).Sub(now))
	default:
		// A machine that was suspended has a monotonic clock that was, too.
		wait -= max(now.Sub(p.received), now.Round(0).Sub(p.received.Round(0)))
	}
	return later(now.Add(wait), p.earliest)
}

// receive notes that a certificate has been received and installed.
func (p *renewalPace) receive() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.received, p.earliest, p.failures = now, now.Add(minRenewal), 0
}

// fail notes a failed attempt and returns how long to wait before the next.
func (p *renewalPace) fail() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	wait := firstBackoff + backoff(p.failures, renewRetry)
	p.failures++
	p.earliest = time.Now().Add(wait)
	return wait
}

// hurried returns when a renewal that the server wants at that time takes place.
func (p *renewalPace) hurried(at time.Time) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return later(at, p.earliest)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
