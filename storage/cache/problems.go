package cache

import (
	"fmt"
	"time"
)

// Limits of the notes that Problems returns.
const (
	noteAge  = time.Hour
	maxNotes = 8
)

// A note is a problem that is over.
type note struct {
	at   time.Time
	text string
}

// Problems returns what needs attention: why writes fail at present, and what was
// lost in the last hour.
func (c *Cache) Problems() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	if c.failure != nil {
		out = append(out, fmt.Sprintf("the journal cannot be written since %s, %d events wait, %d events were dropped: %v",
			c.since.UTC().Format(time.RFC3339), len(c.events), c.dropped-c.droppedReported, c.failure))
	}
	for _, r := range c.notes {
		if time.Since(r.at) < noteAge {
			out = append(out, fmt.Sprintf("%s (%s)", r.text, r.at.UTC().Format(time.RFC3339)))
		}
	}
	return out
}

func (c *Cache) addNote(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addNoteLocked(format, args...)
}

// addNoteLocked is addNote for callers that hold c.mu.
func (c *Cache) addNoteLocked(format string, args ...any) {
	c.notes = append(c.notes, note{time.Now(), fmt.Sprintf(format, args...)})
	c.notes = c.notes[max(0, len(c.notes)-maxNotes):]
}

// recordOutcome records and logs whether writing succeeded.
func (c *Cache) recordOutcome(err error) {
	c.mu.Lock()
	was := c.failure
	c.failure = err
	if was == nil {
		c.since = time.Now()
	}
	dropped := c.dropped - c.droppedReported
	if err == nil && dropped > 0 {
		c.addNoteLocked("%d events were dropped: more came than could be written", dropped)
		c.droppedReported = c.dropped
	}
	c.mu.Unlock()
	if (err == nil) != (was == nil) || err == nil && dropped > 0 {
		c.opts.Log.Warn("cache writing", "ok", err == nil, "dropped", dropped, "err", err)
	}
}
