package provider

import (
	"sync"
	"time"
)

// A budget is a token bucket for creates whose rate follows the cloud's
// answers: each Throttled empties it and halves the rate, quiet doubles it
// again until the configured rate is reached.
type budget struct {
	mu      sync.Mutex
	full    float64 // configured rate, tokens a second
	burst   float64
	rate    float64 // present rate, full/minShare..full
	tokens  float64
	at      time.Time // up to when tokens have been counted
	changed time.Time // when rate last changed or a halving was last deserved
}

const (
	// recovery is how long the cloud must stay quiet before the rate doubles.
	recovery = 10 * time.Second
	// sameStorm is how long Throttled answers belong to one event: calls that
	// were in flight together are refused together.
	sameStorm = time.Second
	// longestWait is the longest that anybody is told to wait before asking again.
	longestWait = 24 * time.Hour
	// minShare keeps a floor under the rate: full/64.
	minShare = 64
)

func newBudget(rate float64, burst int) *budget {
	return &budget{full: rate, rate: rate, burst: float64(burst), tokens: float64(burst)}
}

// reserve takes one token if that leaves as many as given for others, or says
// when there may be so many.
func (b *budget) reserve(now time.Time, others int) (bool, time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance(now)
	at := b.due(now, others+1)
	if at.After(now) {
		return false, at
	}
	b.tokens--
	return true, time.Time{}
}

// next returns when there is a token, which may be now.
func (b *budget) next(now time.Time) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance(now)
	return b.due(now, 1)
}

// due returns when n tokens have come in, those that there are counted, if
// nothing else happens. It needs the lock.
func (b *budget) due(now time.Time, n int) time.Time {
	missing := float64(n) - b.tokens
	if missing <= 0 {
		return now
	}
	wait := min(missing/b.rate, longestWait.Seconds())
	return now.Add(max(time.Duration(wait*float64(time.Second)), time.Millisecond))
}

// slow takes note of one Throttled answer and reports whether the rate fell.
func (b *budget) slow(now time.Time) (rate float64, fell bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance(now)
	b.tokens = 0
	if fell = b.changed.IsZero() || b.rate == b.full || now.Sub(b.changed) >= sameStorm; fell {
		b.rate = max(b.rate/2, b.full/minShare)
		b.changed = now
	}
	return b.rate, fell
}

// advance counts the tokens that came in since the last call. A clock that went
// backwards adds none.
func (b *budget) advance(now time.Time) {
	for b.rate < b.full && now.Sub(b.changed) >= recovery {
		b.changed = b.changed.Add(recovery)
		b.fill(b.changed)
		b.rate = min(b.rate*2, b.full)
	}
	b.fill(now)
}

func (b *budget) fill(until time.Time) {
	if !b.at.IsZero() && until.After(b.at) {
		b.tokens = min(b.burst, b.tokens+until.Sub(b.at).Seconds()*b.rate)
	}
	if until.After(b.at) {
		b.at = until
	}
}
