package gcp

import (
	"net/http"
	"sync/atomic"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"
)

// A cloudClock knows how far the cloud's clock is ahead of ours, from the header Date of its
// answers (RFC 9110, section 6.6.1). It is safe for concurrent use, and zero until there was
// an answer.
type cloudClock struct {
	base  http.RoundTripper // nil: the default
	ahead atomic.Int64
}

// RoundTrip implements [http.RoundTripper].
func (c *cloudClock) RoundTrip(r *http.Request) (*http.Response, error) {
	base := c.base
	if base == nil {
		base = http.DefaultTransport
	}
	res, err := base.RoundTrip(r)
	if err == nil {
		if date, err := http.ParseTime(res.Header.Get("Date")); err == nil {
			c.ahead.Store(int64(time.Until(date)))
		}
	}
	return res, err
}

// at returns what the cloud's clock shows when ours shows t.
func (c *cloudClock) at(t time.Time) time.Time { return t.Add(time.Duration(c.ahead.Load())) }

// clockSkew is how far the clock of the cloud's operations may be from that of its answers.
const clockSkew = 10 * time.Second

// older reports whether the cloud had accepted an operation before a call that began when
// our clock showed began: the call got the outcome of an earlier one.
func (p *Provider) older(op *computepb.Operation, began time.Time) bool {
	return startOf(op).Before(p.clock.at(began).Add(-clockSkew))
}

// CloseIdleConnections is what http.Client calls.
func (c *cloudClock) CloseIdleConnections() {
	if base, ok := c.base.(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}
