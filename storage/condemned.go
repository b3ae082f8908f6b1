package storage

import (
	"maps"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
)

// CondemnedKey holds the list of what is to be removed unless somebody names it
// again. It belongs to all shards. docs/design/014-cleaning.md
const CondemnedKey = "cleaning/condemned.json"

const (
	// contentMemory is for how long a program may act on what it knows of the
	// list, and on having seen an object that was not on it.
	contentMemory = 10 * time.Minute
	// referenceTime is the longest that it may take from there until what names
	// the object is durable, or has failed for good: six attempts of 30 s, each
	// with a look back, and what comes before them.
	referenceTime = 20 * time.Minute
	// deleteTime is how long a cleaner may take from before it announces
	// deletions until the last of them is answered.
	deleteTime = 20 * time.Second
	// deleteGrace is after what time, from when it was first seen, others take an
	// announced deletion for one that will never come.
	deleteGrace = time.Minute
)

// condemned is the list. Any program may take keys off it, a cleaner alone puts
// some on it.
type condemned struct {
	Header
	By    nstance.ShardID         `json:"by,omitempty"`    // whose leader cleans
	Round string                  `json:"round,omitempty"` // random, new with each of its passes
	Keys  map[string]condemnation `json:"keys,omitempty"`
}

// A condemnation is one key on the list.
type condemnation struct {
	ID       string    `json:"id"`    // random, another one when it is marked or put on the list again
	Since    time.Time `json:"since"` // for people; programs go by their own clocks that count elapsed time
	Deleting bool      `json:"deleting,omitempty"`
}

// any reports whether one of the keys is on the list.
func (c condemned) any(keys []string) bool {
	return slices.ContainsFunc(keys, func(key string) bool { _, on := c.Keys[key]; return on })
}

// A sighting is when this process first saw a condemnation.
type sighting struct {
	id string
	at time.Duration // by its clock of elapsed time
}

// sightings are by key.
type sightings map[string]sighting

// see notes what is on the list, and forgets what is not.
func (s sightings) see(keys map[string]condemnation, now time.Duration) {
	maps.DeleteFunc(s, func(key string, was sighting) bool { return keys[key].ID != was.id })
	for key, c := range keys {
		if _, known := s[key]; !known {
			s[key] = sighting{c.ID, now}
		}
	}
}

// age is for how long a condemnation has been seen.
func (s sightings) age(key, id string, now time.Duration) time.Duration {
	if was, ok := s[key]; ok && was.id == id {
		return now - was.at
	}
	return 0
}

// stopwatch returns elapsed, or time since now if that is nil.
func stopwatch(elapsed func() time.Duration) func() time.Duration {
	if elapsed != nil {
		return elapsed
	}
	began := time.Now()
	return func() time.Duration { return time.Since(began) }
}
