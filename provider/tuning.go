package provider

import "time"

// Tuning is what of the Options can be changed while a Client works. Zero fields
// mean the defaults named there.
type Tuning struct {
	Timeout time.Duration
	Rate    float64
	Burst   int
}

// Tune makes other settings hold for calls and reservations that begin from now
// on. Creates that have come in are kept as far as the new burst reaches; what
// throttling has taught stays: a lowered rate is not raised by it, unless it lay
// below the floor of the new one. Fails with Invalid as New does, and changes
// nothing then. It does not block and may be called concurrently.
func (c *Client) Tune(t Tuning) error {
	o, err := (&Options{Timeout: t.Timeout, Rate: t.Rate, Burst: t.Burst}).withDefaults()
	if err != nil {
		return err
	}
	c.limit.Store(int64(o.Timeout))
	c.budget.tune(time.Now(), o.Rate, o.Burst)
	return nil
}

// timeout bounds one call that begins now.
func (c *Client) timeout() time.Duration { return time.Duration(c.limit.Load()) }

// tune changes the configured rate and burst.
func (b *budget) tune(now time.Time, rate float64, burst int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance(now)
	floor := rate / minShare
	if b.rate == b.full {
		floor = rate
	}
	b.rate = min(max(b.rate, floor), rate)
	b.full, b.burst = rate, float64(burst)
	b.tokens = min(b.tokens, b.burst)
}
