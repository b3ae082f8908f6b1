package storage

import "github.com/nstance-go/nstance"

// ResolvedKey holds what the names and addresses in a shard's configuration
// stood for when they were last looked at.
func ResolvedKey(shard nstance.ShardID) string { return "resolved/" + string(shard) + ".json" }

// FetchedKey holds fetched user data, by its SHA-256.
func FetchedKey(digest string) string { return "fetched/" + digest }
