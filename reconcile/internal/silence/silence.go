// Package silence decides whether silent members are replaced: not while so many fell silent
// together, though the provider says that they run, that the cause is more likely between them
// and this server than in each of them.
package silence

import (
	"fmt"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
)

const (
	// minShard is how many silent members never trip the breaker of a shard, minGroup how
	// many members a group needs to trip its own.
	minShard, minGroup = 2, 3

	// cacheTime is for how long groups share one count of the shard.
	cacheTime = time.Second
)

// A Count is how many members report, or should, and the most of them that fell silent within one
// report interval.
type Count struct{ Silent, All int }

// Together counts silent members among all by when each was last heard of. The window is a report
// interval. It sorts lastHeard.
func Together(lastHeard []time.Time, all int, window time.Duration) Count {
	c, from := Count{All: all}, 0
	slices.SortFunc(lastHeard, time.Time.Compare)
	for i, t := range lastHeard {
		for t.Sub(lastHeard[from]) > window {
			from++
		}
		c.Silent = max(c.Silent, i-from+1)
	}
	return c
}

// InGroup says how many members of a group fell silent, if they are many; else it is empty.
func (c Count) InGroup() string {
	if c.All < minGroup || c.Silent*2 <= c.All {
		return ""
	}
	return fmt.Sprintf("%d of the group's %d members fell silent within one interval", c.Silent, c.All)
}

// InShard is InGroup for a shard of which so many may be unhealthy.
func (c Count) InShard(maxUnhealthy nstance.Count) string {
	if c.Silent <= max(minShard, maxUnhealthy.Of(c.All)) {
		return ""
	}
	return fmt.Sprintf("%d of the shard's %d members fell silent within one interval", c.Silent, c.All)
}

// A Cache keeps the count of a shard for a second. The zero Cache is empty.
type Cache struct {
	at    time.Time
	count Count
}

// Get returns the count, unless it is too old.
func (c *Cache) Get(now time.Time) (Count, bool) {
	return c.count, now.Sub(c.at) < cacheTime && !now.Before(c.at)
}

// Set keeps a count of now.
func (c *Cache) Set(now time.Time, count Count) { c.at, c.count = now, count }

// A Breaker keeps the silent members of one group from being replaced. The zero Breaker does not.
type Breaker struct {
	tripped   bool
	holdUntil time.Time // zero while what tripped it goes on
}

// Holds says why silent members are not replaced at present; empty: they are. Mass says how many
// are silent, if they are many.
func (b *Breaker) Holds(mass string, now time.Time) string {
	switch {
	case mass != "":
		return mass
	case b.tripped && (b.holdUntil.IsZero() || now.Before(b.holdUntil)):
		return "members that fell silent together have time to report again"
	}
	return ""
}

// Record records what Holds said for the same mass, and reports whether the breaker begins to
// hold. When what tripped it is over, it holds for another window: the members report again one
// after another.
func (b *Breaker) Record(why, mass string, window time.Duration, now time.Time) (began bool) {
	began, b.tripped = why != "" && !b.tripped, why != ""
	switch {
	case why == "" || mass != "":
		b.holdUntil = time.Time{}
	case b.holdUntil.IsZero():
		b.holdUntil = now.Add(window)
	}
	return began
}
