package nstance

import "strings"

// Names of things that people choose all follow one rule, the strictest of what
// the supported clouds accept: ^[a-z0-9]([a-z0-9-]*[a-z0-9])?$, at most 32
// characters, no two hyphens in a row.

// A ClusterID names one installation.
type ClusterID string

// A ShardID names the part of a zone that one active server owns.
type ShardID string

// A TenantID names a scope of groups, instances and certificates.
type TenantID string

// A GroupID names a set of machines, uniquely within its tenant.
type GroupID string

// DefaultTenant is the tenant of everything that names none.
const DefaultTenant TenantID = "default"

// An InstanceKind is the three-letter prefix (a-z) of the IDs that a template's machines get.
type InstanceKind string

// maxNameLen is the longest permitted name, in characters.
const maxNameLen = 32

// ValidateName returns nil or an Invalid error that names field and the rule.
func ValidateName(field, name string) error {
	const remedy = "use at most 32 of a-z, 0-9 and single hyphens, a letter or digit at both ends"
	switch {
	case name == "":
		return FieldError(field, remedy, "is empty")
	case len(name) > maxNameLen:
		return FieldError(field, remedy, "name %q is %d characters long", clip(name), len(name))
	case name[0] == '-' || name[len(name)-1] == '-' || strings.Contains(name, "--"):
		return FieldError(field, remedy, "name %q has a misplaced hyphen", name)
	}
	for _, c := range name {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return FieldError(field, remedy, "name %q contains %q", name, c)
		}
	}
	return nil
}

// Validate returns nil or an Invalid error that names field.
func (id ClusterID) Validate(field string) error { return ValidateName(field, string(id)) }

// Validate returns nil or an Invalid error that names field. No shard is called
// cluster: its lease would be stored where the cluster's own object is.
func (id ShardID) Validate(field string) error {
	if id == "cluster" {
		return FieldError(field, "choose another", "name %q is taken", id)
	}
	return ValidateName(field, string(id))
}

// Validate returns nil or an Invalid error that names field.
func (id TenantID) Validate(field string) error { return ValidateName(field, string(id)) }

// Validate returns nil or an Invalid error that names field.
func (id GroupID) Validate(field string) error { return ValidateName(field, string(id)) }

// Validate returns nil or an Invalid error that names field.
func (k InstanceKind) Validate(field string) error {
	if len(k) == kindLen && strings.Trim(string(k), "abcdefghijklmnopqrstuvwxyz") == "" {
		return nil
	}
	return FieldError(field, "use exactly three letters a-z", "kind %q is not valid", clip(string(k)))
}

// A GroupKey names a group within a shard.
type GroupKey struct {
	Tenant TenantID `json:"tenant"`
	Group  GroupID  `json:"group"`
}

// String returns tenant/group.
func (k GroupKey) String() string { return string(k.Tenant) + "/" + string(k.Group) }
