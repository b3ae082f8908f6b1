package gcp

import (
	"fmt"
	"strconv"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

// The labels that mark a machine and its disks.
const (
	prefix            = "nstance-"
	labelManaged      = prefix + "managed"
	labelID           = prefix + "instance-id"
	labelInstallation = prefix + "installation"
	labelCluster      = prefix + "cluster-id"
	labelShard        = prefix + "shard"
	labelTenant       = prefix + "tenant"
	labelGroup        = prefix + "group"
	labelKind         = prefix + "kind"
	labelCreatedAt    = prefix + "created-at" // milliseconds since 1970: a label holds no colon
	labelEpoch        = prefix + "epoch"
	labelDigest       = prefix + "digest" // of the spec
)

// maxLabels is how many labels a resource may have.
const maxLabels = 64

// digestOf returns the digest of a spec that its machine carries. A label holds
// 63 characters.
func digestOf(spec nstance.MachineSpec) string { return provider.Fingerprint(spec)[:40] }

// marks returns the labels of a machine: those of args and the system's. A value
// that a label cannot hold is refused: changed into one that fits, two owners
// could become one.
func marks(spec nstance.MachineSpec, more map[string]string) (map[string]string, error) {
	out := map[string]string{
		labelManaged: "true", labelID: string(spec.ID), labelInstallation: spec.Owner.Installation,
		labelCluster: string(spec.Owner.Cluster), labelShard: string(spec.Owner.Shard), labelTenant: string(spec.Owner.Tenant),
		labelKind: string(spec.ID.Kind()), labelCreatedAt: strconv.FormatInt(spec.CreatedAt.UnixMilli(), 10),
		labelEpoch: strconv.FormatUint(spec.Epoch, 10), labelDigest: digestOf(spec),
	}
	if spec.Group != "" {
		out[labelGroup] = string(spec.Group)
	}
	for k, v := range out {
		if !labelValue.MatchString(v) {
			return nil, nstance.FieldError("owner", "use at most 63 of a-z, 0-9, _ and -", "label %s cannot hold %.80q", k, v)
		}
	}
	for k, v := range more {
		out[k] = v
	}
	if len(out) > maxLabels {
		return nil, nstance.FieldError("args.labels", "remove some", "%d labels are more than the %d that a machine may have", len(out), maxLabels)
	}
	return out, nil
}

// filterOf returns the filter of a list by owner, in the form of AIP-160.
func filterOf(owner nstance.Owner) (string, error) {
	out := fmt.Sprintf(`(labels.%s = "true")`, labelManaged)
	for _, f := range []struct{ label, value string }{
		{labelInstallation, owner.Installation}, {labelCluster, string(owner.Cluster)}, {labelShard, string(owner.Shard)}, {labelTenant, string(owner.Tenant)},
	} {
		if f.value == "" && f.label == labelTenant {
			continue
		}
		if f.value == "" || !labelValue.MatchString(f.value) {
			return "", nstance.FieldError("owner", "use 1 to 63 of a-z, 0-9, _ and -", "label %s cannot be %.80q", f.label, f.value)
		}
		out += fmt.Sprintf(` (labels.%s = "%s")`, f.label, f.value)
	}
	return out, nil
}

func ownerOf(labels map[string]string) nstance.Owner {
	return nstance.Owner{
		Installation: labels[labelInstallation], Cluster: nstance.ClusterID(labels[labelCluster]),
		Shard: nstance.ShardID(labels[labelShard]), Tenant: nstance.TenantID(labels[labelTenant]),
	}
}

// createdAt returns when a machine's intent was written, or zero.
func createdAt(labels map[string]string) time.Time {
	ms, err := strconv.ParseInt(labels[labelCreatedAt], 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}
