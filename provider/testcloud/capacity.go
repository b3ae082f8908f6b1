package testcloud

import (
	"sync"
	"time"
)

// Capacity is how many more machines of each shape can start. A shape without
// an entry is endless. The zero value is ready to use, and safe for concurrent
// use.
type Capacity struct {
	mu   sync.Mutex
	free map[Shape]int
}

// A Shape is what capacity is counted by.
type Shape struct {
	Type string
	Zone string
	Spot bool
}

// Set makes n machines of a shape possible, beside those there are.
func (c *Capacity) Set(s Shape, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.free == nil {
		c.free = map[Shape]int{}
	}
	c.free[s] = n
}

// Take takes one, or reports that there is none.
func (c *Capacity) Take(s Shape) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, counted := c.free[s]
	if counted && n <= 0 {
		return false
	}
	if counted {
		c.free[s] = n - 1
	}
	return true
}

// Release gives one back.
func (c *Capacity) Release(s Shape) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, counted := c.free[s]; counted {
		c.free[s]++
	}
}

// A Bucket is a token bucket by which a cloud throttles calls. Its zero value
// throttles nothing. It is safe for concurrent use.
type Bucket struct {
	Burst     float64
	PerSecond float64

	mu    sync.Mutex
	spent float64 // tokens missing from a full bucket, at the time of the last call
	at    time.Time
}

// Take takes one token, or reports that the call is throttled.
func (b *Bucket) Take(now time.Time) bool { return b.TakeN(now, 1) }

// Full reports whether nothing is missing from the bucket: a new one would do.
func (b *Bucket) Full(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.spent <= now.Sub(b.at).Seconds()*b.PerSecond
}

// TakeN takes n tokens, or none and reports that the call is throttled.
func (b *Bucket) TakeN(now time.Time, n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.Burst == 0 {
		return true
	}
	if now.After(b.at) {
		b.spent = max(0, b.spent-now.Sub(b.at).Seconds()*b.PerSecond)
		b.at = now
	}
	if b.spent+float64(n) > b.Burst {
		return false
	}
	b.spent += float64(n)
	return true
}
