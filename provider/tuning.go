package provider

import "time"

// Tuning holds the Options that can be changed while a Client is in use. Zero
// fields mean the defaults named there.
type Tuning struct {
	Timeout time.Duration
	Rate    float64
	Burst   int
}

// Tune changes the settings of calls and reservations that begin from now on.
// Accumulated creates are kept up to the new burst. A rate lowered by throttling
// stays lowered, but not below the minimum of the new rate. Fails with Invalid as
// New does, and then changes nothing. It does not block and may be called
// concurrently.
func (c *Client) Tune(t Tuning) error {
	o, err := (&Options{Timeout: t.Timeout, Rate: t.Rate, Burst: t.Burst}).withDefaults()
	if err != nil {
		return err
	}
	c.callTimeout.Store(int64(o.Timeout))
	c.budget.tune(time.Now(), o.Rate, o.Burst)
	return nil
}

// timeout bounds one call that begins now.
func (c *Client) timeout() time.Duration { return time.Duration(c.callTimeout.Load()) }

// tune changes the configured rate and burst.
func (b *budget) tune(now time.Time, rate float64, burst int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance(now)
	floor := rate / maxSlowdown
	if b.rate == b.configuredRate {
		floor = rate
	}
	b.rate = min(max(b.rate, floor), rate)
	b.configuredRate, b.burst = rate, float64(burst)
	b.tokens = min(b.tokens, b.burst)
}
