package dev

import (
	"time"

	"github.com/nstance-go/nstance"
)

// Impatient returns o with a limit for the stage that is to fail, and for every other a
// limit that no busy machine needs.
func Impatient(o Options, stage string, limit time.Duration) *Options {
	o.patience, o.limits = 2*time.Minute, map[string]time.Duration{stage: limit}
	return &o
}

// WithoutPauses returns o with hardly a pause after each scene of scenario demo.
func WithoutPauses(o Options) *Options {
	o.pause = time.Millisecond
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
	return configuration(c, &localCloud{}, alone(http), release)
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

// NewGate is the cloud as servers in other processes see it.
func NewGate(p parkingProvider) (nstance.Provider, *gate) {
	g := newGate()
	return gated{p, g}, g
}

// The methods of a gate.
var (
	Shut    = (*gate).close
	Unshut  = (*gate).open
	Hanging = (*gate).hanging
	Count   = (*gate).count
)

// Weigh returns how many machines leaked and are superfluous, and how many
// instances were lost.
func Weigh(records, machines []nstance.InstanceID, running, made map[nstance.InstanceID]int, size, fresh int, stay map[nstance.InstanceID]int) [3]int {
	b := findings{records, machines, running, made}.weigh(size, fresh, stay)
	return [3]int{b.leaked, b.duplicated, b.lost}
}

// AnyNumber of new instances is permitted by Weigh.
const AnyNumber = anyNumber

// Close closes what OpenHome opened.
var Close = (*home).close
