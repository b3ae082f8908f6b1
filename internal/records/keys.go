package records

import (
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/validate"
)

// A Ref names an instance's record.
type Ref struct {
	Shard  nstance.ShardID
	Tenant nstance.TenantID
	Group  nstance.GroupID
	ID     nstance.InstanceID
}

// Key returns the record's key.
func (r Ref) Key() string { return layout.InstanceKey(r.Shard, r.Tenant, r.Group, r.ID) }

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
	if !ok || len(parts) != 8 {
		return ref, nstance.FieldError("key", "remove what is not a record", "%q is not an instance record's key", key)
	}
	id, err := nstance.ParseInstanceID(name)
	if err != nil {
		return ref, nstance.FieldError("key", "remove what is not a record", "%q does not end in an instance ID", key)
	}
	ref.ID = id
	for _, err := range []error{validate.Shard("key", ref.Shard), validate.Name("key", ref.Tenant), validate.Name("key", ref.Group)} {
		if err != nil {
			return ref, err
		}
	}
	return ref, nil
}
