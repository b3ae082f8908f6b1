package nstance

// Names of things that people choose all follow one rule, the strictest of what
// the supported clouds accept: ^[a-z0-9]([a-z0-9-]*[a-z0-9])?$, at most 32
// characters, no two hyphens in a row.

// A ClusterID names one installation.
type ClusterID string

// A ShardID names the part of a zone that one active server owns. No shard is called
// cluster.
type ShardID string

// A TenantID names a scope of groups, instances and certificates.
type TenantID string

// A GroupID names a set of machines, uniquely within its tenant.
type GroupID string

// DefaultTenant is the tenant of everything that names none.
const DefaultTenant TenantID = "default"

// An InstanceKind is the three-letter prefix (a-z) of the IDs that a template's machines get.
type InstanceKind string

// A GroupKey names a group within a shard.
type GroupKey struct {
	Tenant TenantID `json:"tenant"`
	Group  GroupID  `json:"group"`
}

// String returns tenant/group.
func (k GroupKey) String() string { return string(k.Tenant) + "/" + string(k.Group) }
