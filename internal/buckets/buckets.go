// Package buckets holds token buckets by key, in memory that is bounded by the keys that
// were used recently.
package buckets

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// minSweep is the number of buckets below which none is removed.
const minSweep = 1024

// Buckets are token buckets of one size. Keys must be those of clients that are known,
// such as holders of certificates: there are at most as many buckets as them. The methods
// may be called concurrently, and never block.
type Buckets struct {
	limit rate.Limit
	burst int

	mu      sync.Mutex
	of      map[string]*rate.Limiter
	sweepAt int // size at which full buckets are removed
}

// New returns buckets that each hold burst tokens and get perSecond more.
func New(perSecond float64, burst int) *Buckets {
	return &Buckets{limit: rate.Limit(perSecond), burst: burst, of: map[string]*rate.Limiter{}}
}

// Allow takes a token from the bucket of key, and reports whether there was one.
func (b *Buckets) Allow(key string, now time.Time) bool {
	return b.Of(key, now).AllowN(now, 1)
}

// Of returns the bucket of key. It may be forgotten while it is full.
func (b *Buckets) Of(key string, now time.Time) *rate.Limiter {
	b.mu.Lock()
	defer b.mu.Unlock()
	bucket := b.of[key]
	if bucket == nil {
		if len(b.of) >= max(b.sweepAt, minSweep) {
			b.sweep(now)
		}
		bucket = rate.NewLimiter(b.limit, b.burst)
		b.of[key] = bucket
	}
	return bucket
}

// sweep removes full buckets: a new bucket is equal to them.
func (b *Buckets) sweep(now time.Time) {
	for key, bucket := range b.of {
		if bucket.TokensAt(now) >= float64(b.burst) {
			delete(b.of, key)
		}
	}
	b.sweepAt = 2 * len(b.of)
}
