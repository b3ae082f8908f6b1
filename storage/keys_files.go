package storage

import "github.com/nstance-go/nstance"

// CertLogPrefix begins the keys of the log of certificates that a shard has
// issued for machines.
func CertLogPrefix(shard nstance.ShardID) string { return "certlog/" + string(shard) + "/" }
