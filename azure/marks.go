package azure

import (
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

// tagPrefix begins the names of the system's own tags. Azure's tag names have no
// case and no colon's meaning elsewhere.
const tagPrefix = "nstance-"

// The marks of a machine.
const (
	tagManaged      = tagPrefix + "managed"
	tagID           = tagPrefix + "instance-id"
	tagInstallation = tagPrefix + "installation"
	tagCluster      = tagPrefix + "cluster-id"
	tagShard        = tagPrefix + "shard"
	tagTenant       = tagPrefix + "tenant"
	tagGroup        = tagPrefix + "group"
	tagKind         = tagPrefix + "kind"
	tagCreated      = tagPrefix + "created-at"
	tagEpoch        = tagPrefix + "epoch"
	tagDigest       = tagPrefix + "digest"  // of the whole spec: custom data is never shown
	tagAddress      = tagPrefix + "address" // those of the first interface, which keeps them as long as it exists, and public ones
	tagPark         = tagPrefix + "park"
	tagParts        = tagPrefix + "parts" // of the first interface, which names what else the machine has
)

// tags returns the marks of a spec's resources, and the tags that were asked for.
func (r *request) tags() map[string]*string {
	s := r.spec
	out := map[string]*string{
		tagManaged: new("true"), tagID: new(string(s.ID)), tagInstallation: new(s.Owner.Installation),
		tagCluster: new(string(s.Owner.Cluster)), tagShard: new(string(s.Owner.Shard)), tagTenant: new(string(s.Owner.Tenant)),
		tagKind: new(string(s.ID[:3])), tagCreated: new(s.CreatedAt.UTC().Format(time.RFC3339Nano)),
		tagEpoch: new(strconv.FormatUint(s.Epoch, 10)), tagDigest: new(provider.Fingerprint(s)),
	}
	if s.Group != "" {
		out[tagGroup] = new(string(s.Group))
	}
	if s.Park != "" {
		out[tagPark] = new(string(s.Park))
	}
	for name, value := range r.args.Tags {
		out[name] = new(value)
	}
	return out
}

// marks are tags as they were read. Azure keeps the case of names and does not
// look at it.
type marks map[string]string

func readMarks(tags map[string]*string) marks {
	out := marks{}
	for name, value := range tags {
		if value != nil {
			out[strings.ToLower(name)] = *value
		}
	}
	return out
}

func (m marks) owner() nstance.Owner {
	return nstance.Owner{
		Installation: m[tagInstallation], Cluster: nstance.ClusterID(m[tagCluster]),
		Shard: nstance.ShardID(m[tagShard]), Tenant: nstance.TenantID(m[tagTenant]),
	}
}

// machine returns what the marks say of a machine.
func (m marks) machine() nstance.Machine {
	created, err := time.Parse(time.RFC3339Nano, m[tagCreated])
	if err != nil {
		created = time.Time{}
	}
	epoch, err := strconv.ParseUint(m[tagEpoch], 10, 64)
	if err != nil {
		epoch = 0
	}
	out := nstance.Machine{
		ID: nstance.InstanceID(m[tagID]), Owner: m.owner(), Group: nstance.GroupID(m[tagGroup]), CreatedAt: created.UTC(), Epoch: epoch,
	}
	for text := range strings.SplitSeq(m[tagAddress], ",") {
		if a, err := netip.ParseAddr(text); err == nil {
			out.Addresses = append(out.Addresses, a)
		}
	}
	return out
}
