package storage

import (
	"strings"

	"github.com/nstance-go/nstance"
)

// Keys of the objects. The names in them must have been validated before.

// ConfigKey is the shard's configuration, written by operators.
func ConfigKey(shard nstance.ShardID) string { return "config/" + string(shard) + ".jsonc" }

// GroupsKey holds the groups made through the API.
func GroupsKey(shard nstance.ShardID) string { return "groups/" + string(shard) + ".jsonc" }

// StateKey holds each group's pause, freeze, halt, backoff and last good definition.
func StateKey(shard nstance.ShardID) string { return "state/" + string(shard) + ".json" }

// AcceptedKey holds the last accepted configuration.
func AcceptedKey(shard nstance.ShardID) string { return "accepted/" + string(shard) + ".json" }

// SnapshotKey holds the shard's compressed snapshot of its records.
func SnapshotKey(shard nstance.ShardID) string { return "snapshot/" + string(shard) + ".json.gz" }

// ShardKeys returns the keys of the single objects that only a shard's leader
// writes, each with its epoch. The instance records do, too.
func ShardKeys(shard nstance.ShardID) []string {
	return []string{StateKey(shard), GroupsKey(shard), AcceptedKey(shard), ResolvedKey(shard), SnapshotKey(shard)}
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

// A Ref names an instance's record.
type Ref struct {
	Shard  nstance.ShardID
	Tenant nstance.TenantID
	Group  nstance.GroupID
	ID     nstance.InstanceID
}

// Key returns the record's key.
func (r Ref) Key() string { return InstanceKey(r.Shard, r.Tenant, r.Group, r.ID) }

// ParseInstanceKey is the inverse of Ref.Key. With an Invalid error it returns the
// parts that could be parsed, so that a foreign object can be assigned to a group.
func ParseInstanceKey(key string) (Ref, error) {
	rest, ok := strings.CutPrefix(key, "instance/")
	if !ok {
		return Ref{}, nstance.FieldError("key", "", "%q is not an instance record's key", key)
	}
	parts := strings.Split(rest, "/")
	parts = append(parts, "", "", "", "")
	ref := Ref{Shard: nstance.ShardID(parts[0]), Tenant: nstance.TenantID(parts[1])}
	if parts[3] != "" {
		ref.Group = nstance.GroupID(parts[2])
	}
	name, ok := strings.CutSuffix(parts[3], ".json")
	if !ok || parts[4] != "" || len(parts) != 8 {
		return ref, nstance.FieldError("key", "remove what is not a record", "%q is not an instance record's key", key)
	}
	id, err := nstance.ParseInstanceID(name)
	if err != nil {
		return ref, nstance.FieldError("key", "remove what is not a record", "%q does not end in an instance ID", key)
	}
	ref.ID = id
	for _, err := range []error{ref.Shard.Validate("key"), ref.Tenant.Validate("key"), ref.Group.Validate("key")} {
		if err != nil {
			return ref, err
		}
	}
	return ref, nil
}
