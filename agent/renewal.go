package agent

import (
	"sync"
	"time"
)

const (
	// minRenewal is the shortest time between renewals, even if a server asks. One that
	// is out of turn is permitted: a stand-by machine may be parked right after its first
	// certificate, and must renew it as soon as it wakes.
	minRenewal = 10 * time.Second
	// renewRetry is the longest pause between attempts to renew.
	renewRetry = time.Minute
	// clockSlack is subtracted from a certificate's life: servers backdate.
	clockSlack = time.Minute
)

// A renewalSchedule decides when the certificate in use is renewed. It outlives
// sessions: a new session must not start the count of failures again. It measures
// from the time at which this process received the certificate, because the
// machine's clock may be wrong by hours. It is safe for concurrent use.
type renewalSchedule struct {
	mu          sync.Mutex
	receivedAt  time.Time // zero: by an earlier process
	nextAttempt time.Time // not before
	failures    int       // in a row
}

// due returns when id is renewed: after two thirds of its life, so that a third of
// it is left for finding a server that answers.
func (p *renewalSchedule) due(id *identity, now time.Time) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	full := id.pair.Leaf.NotAfter.Sub(id.pair.Leaf.NotBefore)
	wait := max(full*2/3-clockSlack, minRenewal)
	switch {
	case p.receivedAt.IsZero(): // use the clock, but never wait longer than two thirds of a life
		wait = min(wait, id.pair.Leaf.NotBefore.Add(full*2/3).Sub(now))
	default:
		// The monotonic clock stops while a machine is suspended.
		wait -= max(now.Sub(p.receivedAt), now.Round(0).Sub(p.receivedAt.Round(0)))
	}
	return later(now.Add(wait), p.nextAttempt)
}

// recordReceived records that a certificate has been received and installed.
func (p *renewalSchedule) recordReceived() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.receivedAt, p.failures = now, 0
	p.nextAttempt = later(p.nextAttempt, now.Add(-minRenewal)).Add(minRenewal)
}

// recordFailure records a failed attempt and returns the wait before the next.
func (p *renewalSchedule) recordFailure() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	wait := firstBackoff + backoff(p.failures, renewRetry)
	p.failures++
	p.nextAttempt = time.Now().Add(wait)
	return wait
}

// requestedAt returns when a renewal that the server requests at that time takes
// place.
func (p *renewalSchedule) requestedAt(at time.Time) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return later(at, p.nextAttempt)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
