package dev

import "time"

// Impatient returns o with another limit for one stage.
func Impatient(o Options, stage time.Duration) *Options {
	o.patience = stage
	return &o
}

// Seams of the tests.
var (
	Free     = free
	Quote    = quote
	Orderly  = orderly
	NewStory = newStory
	OpenHome = openHome
)

// Configuration is the shard's configuration.
func Configuration(o Options, http string, release int) ([]byte, error) {
	c, err := o.complete()
	if err != nil {
		return nil, err
	}
	return configuration(c, http, release)
}

// History is what a story tells.
type History = history

// Tell, Await and Print reach a story's methods.
var (
	Tell  = (*story).tell
	Await = (*story).await
	Print = (*story).print
)

// MaxEvents is how many events a story holds.
const MaxEvents = maxEvents

// Close closes what OpenHome opened.
var Close = (*home).close
