// Package layout names the objects in storage. The names are an interface: renaming
// one loses all objects under it. What the names are made of must have been
// validated before.
package layout

import (
	"time"

	"github.com/nstance-go/nstance"
)

// ConfigKey is the shard's configuration, written by operators.
func ConfigKey(shard nstance.ShardID) string { return "config/" + string(shard) + ".jsonc" }

// GroupsKey holds the groups made through the API.
func GroupsKey(shard nstance.ShardID) string { return "groups/" + string(shard) + ".jsonc" }

// StateKey holds each group's pause, freeze, halt, backoff and last good definition.
func StateKey(shard nstance.ShardID) string { return "state/" + string(shard) + ".json" }

// AcceptedKey holds the last accepted configuration.
func AcceptedKey(shard nstance.ShardID) string { return "accepted/" + string(shard) + ".json" }

// AttentionKey holds what operators have acknowledged of what needs attention.
func AttentionKey(shard nstance.ShardID) string { return "attention/" + string(shard) + ".json" }

// SnapshotKey holds the shard's compressed snapshot of its records.
func SnapshotKey(shard nstance.ShardID) string { return "snapshot/" + string(shard) + ".json.gz" }

// ShardKeys returns the keys of the single objects that only a shard's leader
// writes, each with its epoch. The instance records do, too.
func ShardKeys(shard nstance.ShardID) []string {
	return []string{StateKey(shard), GroupsKey(shard), AcceptedKey(shard), ResolvedKey(shard), AttentionKey(shard), SnapshotKey(shard)}
}

// LeaseKey holds the shard's lease.
func LeaseKey(shard nstance.ShardID) string { return "lease/" + string(shard) + ".json" }

// ClusterLeaseKey holds the catalogue of the cluster's keys.
const ClusterLeaseKey = "lease/cluster.json"

// DefinitionPrefix begins the keys of a shard's definitions.
func DefinitionPrefix(shard nstance.ShardID) string { return "definition/" + string(shard) + "/" }

// DefinitionKey holds the definition with this digest.
func DefinitionKey(shard nstance.ShardID, digest string) string {
	return DefinitionPrefix(shard) + digest
}

// ResolvedKey holds the last results of looking up the names and addresses in a
// shard's configuration.
func ResolvedKey(shard nstance.ShardID) string { return "resolved/" + string(shard) + ".json" }

// FetchedPrefix begins the keys of a shard's fetched user data.
func FetchedPrefix(shard nstance.ShardID) string { return "fetched/" + string(shard) + "/" }

// FetchedKey holds fetched user data, by its SHA-256.
func FetchedKey(shard nstance.ShardID, digest string) string { return FetchedPrefix(shard) + digest }

// BootstrapPrefix begins the keys of all shards' bootstrap data.
const BootstrapPrefix = "bootstrap/"

// BootstrapKey holds bootstrap data, sealed, by a name that follows from it.
func BootstrapKey(shard nstance.ShardID, name string) string {
	return BootstrapPrefix + string(shard) + "/" + name
}

// CACertKey holds an authority's certificate, PEM.
func CACertKey(name string) string { return "ca/" + name + ".crt" }

// SecretKey holds a sealed secret.
func SecretKey(name string) string { return "secret/" + name }

// NonceKey proves that an operator's nonce has been used.
func NonceKey(jti string) string { return "nonce/" + jti }

// OperatorPrefix begins the keys of all operators' registrations.
const OperatorPrefix = "operator/"

// OperatorKey holds an operator's registration.
func OperatorKey(tenant nstance.TenantID, id string) string {
	return OperatorPrefix + string(tenant) + "." + id + ".json"
}

// InstancePrefix begins the keys of all instance records of a shard.
func InstancePrefix(shard nstance.ShardID) string { return "instance/" + string(shard) + "/" }

// InstanceKey holds one instance's record.
func InstanceKey(shard nstance.ShardID, tenant nstance.TenantID, group nstance.GroupID, id nstance.InstanceID) string {
	return InstancePrefix(shard) + string(tenant) + "/" + string(group) + "/" + string(id) + ".json"
}

// LedgerPrefix begins the keys of a shard's ledger of ended instances. The day of
// writing follows.
func LedgerPrefix(shard nstance.ShardID) string { return "ledger/" + string(shard) + "/" }

// LedgerKey holds one batch of the ledger.
func LedgerKey(shard nstance.ShardID, day time.Time, name string) string {
	return LedgerPrefix(shard) + day.UTC().Format(time.DateOnly) + "/" + name + ".jsonl"
}

// CertLogPrefix begins the keys of the log of certificates that a shard has
// issued for machines.
func CertLogPrefix(shard nstance.ShardID) string { return "certlog/" + string(shard) + "/" }
