// Package generation numbers the storages that a shard has had. A storage that is restored
// from a backup begins with an epoch far above every earlier one, so the epoch that a
// machine is marked with says which storage it was made from.
package generation

import "math/rand/v2"

const (
	// terms is how many epochs a generation has: more than a shard ever has leaders.
	terms = 1_000_000

	// choices is among how many generations a restored storage has its own, so that two
	// of one backup differ.
	choices = 1000
)

// Of returns the generation of an epoch, from 0.
func Of(epoch uint64) uint64 { return epoch / terms }

// Next returns the epoch with which a later generation than that of epoch begins.
func Next(epoch uint64) uint64 { return (Of(epoch) + 1 + rand.Uint64N(choices)) * terms }
