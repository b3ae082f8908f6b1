package provider

import (
	"sync"
	"time"
)

// A budget is a token bucket for creates whose rate adapts to the cloud's answers:
// each Throttled empties it and halves the rate; without Throttled the rate
// doubles until it is the configured one again.
type budget struct {
	mu             sync.Mutex
	configuredRate float64 // tokens a second
	burst          float64
	rate           float64 // present rate, from configuredRate/maxSlowdown to configuredRate
	tokens         float64
	filledUntil    time.Time
	rateChangedAt  time.Time
}

const (
	// recovery is how long creates must not be throttled before the rate doubles.
	recovery = 10 * time.Second
	// throttleWindow is how long Throttled answers count as one event: calls that
	// were in flight together are throttled together.
	throttleWindow = time.Second
	// maxWait is the longest wait that reserve returns.
	maxWait = 24 * time.Hour
	// maxSlowdown bounds how far the rate falls: to 1/64 of the configured one.
	maxSlowdown = 64
)

func newBudget(rate float64, burst int) *budget {
	return &budget{configuredRate: rate, rate: rate, burst: float64(burst), tokens: float64(burst)}
}

// reserve takes one token, or returns when there may be one.
func (b *budget) reserve(now time.Time) (bool, time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance(now)
	if missing := 1 - b.tokens; missing > 0 {
		wait := min(missing/b.rate, maxWait.Seconds())
		return false, now.Add(max(time.Duration(wait*float64(time.Second)), time.Millisecond))
	}
	b.tokens--
	return true, time.Time{}
}

// recordThrottled records one Throttled answer and reports whether the rate fell.
func (b *budget) recordThrottled(now time.Time) (rate float64, fell bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance(now)
	b.tokens = 0
	if fell = b.rateChangedAt.IsZero() || b.rate == b.configuredRate || now.Sub(b.rateChangedAt) >= throttleWindow; fell {
		b.rate = max(b.rate/2, b.configuredRate/maxSlowdown)
		b.rateChangedAt = now
	}
	return b.rate, fell
}

// advance adds the tokens since the last call and raises the rate if it is due. A
// clock that went backwards adds none.
func (b *budget) advance(now time.Time) {
	for b.rate < b.configuredRate && now.Sub(b.rateChangedAt) >= recovery {
		b.rateChangedAt = b.rateChangedAt.Add(recovery)
		b.fill(b.rateChangedAt)
		b.rate = min(b.rate*2, b.configuredRate)
	}
	b.fill(now)
}

func (b *budget) fill(until time.Time) {
	if !b.filledUntil.IsZero() && until.After(b.filledUntil) {
		b.tokens = min(b.burst, b.tokens+until.Sub(b.filledUntil).Seconds()*b.rate)
	}
	if until.After(b.filledUntil) {
		b.filledUntil = until
	}
}
