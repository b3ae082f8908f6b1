package cache

import (
	"fmt"
	"time"
)

// Problems are shown for so long after they are over, and so many of them.
const (
	memory   = time.Hour
	memories = 8
)

// A remark is what has happened, and is over.
type remark struct {
	at   time.Time
	text string
}

// Problems returns what a person should see: that nothing can be written at
// present, and why; and what was lost in the last hour.
func (c *Cache) Problems() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	if c.failure != nil {
		out = append(out, fmt.Sprintf("the journal cannot be written since %s, %d events wait, %d events were dropped: %v",
			c.since.UTC().Format(time.RFC3339), len(c.events), c.dropped-c.told, c.failure))
	}
	for _, r := range c.remarks {
		if time.Since(r.at) < memory {
			out = append(out, fmt.Sprintf("%s (%s)", r.text, r.at.UTC().Format(time.RFC3339)))
		}
	}
	return out
}

func (c *Cache) remark(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note(format, args...)
}

// note is remark for who holds c.mu.
func (c *Cache) note(format string, args ...any) {
	c.remarks = append(c.remarks, remark{time.Now(), fmt.Sprintf(format, args...)})
	c.remarks = c.remarks[max(0, len(c.remarks)-memories):]
}

// outcome takes note of how writing went.
func (c *Cache) outcome(err error) {
	c.mu.Lock()
	was := c.failure
	c.failure = err
	if was == nil {
		c.since = time.Now()
	}
	dropped := c.dropped - c.told
	if err == nil && dropped > 0 {
		c.note("%d events were dropped: more came than could be written", dropped)
		c.told = c.dropped
	}
	c.mu.Unlock()
	if (err == nil) != (was == nil) || err == nil && dropped > 0 {
		c.opts.Log.Warn("cache writing", "ok", err == nil, "dropped", dropped, "err", err)
	}
}
