package aws

import (
	"cmp"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/nstance-go/nstance"
)

// The tags that mark a machine.
const (
	tagPrefix       = "nstance:"
	tagManaged      = tagPrefix + "managed"
	tagInstanceID   = tagPrefix + "instance-id"
	tagInstallation = tagPrefix + "installation"
	tagCluster      = tagPrefix + "cluster-id"
	tagShard        = tagPrefix + "shard"
	tagTenant       = tagPrefix + "tenant"
	tagGroup        = tagPrefix + "group"
	tagKind         = tagPrefix + "kind"
	tagCreatedAt    = tagPrefix + "created-at"
	tagEpoch        = tagPrefix + "epoch"
)

// marks returns the tags of spec's machine.
func marks(spec nstance.MachineSpec) map[string]string {
	return map[string]string{
		tagManaged: "true", tagInstanceID: string(spec.ID), tagInstallation: spec.Owner.Installation,
		tagCluster: string(spec.Owner.Cluster), tagShard: string(spec.Owner.Shard), tagTenant: string(spec.Owner.Tenant),
		tagGroup: string(spec.Group), tagKind: string(spec.ID.Kind()),
		tagCreatedAt: spec.CreatedAt.UTC().Format(time.RFC3339Nano), tagEpoch: strconv.FormatUint(spec.Epoch, 10),
	}
}

// tagsOf returns the tags of an instance.
func tagsOf(i *types.Instance) map[string]string {
	out := map[string]string{}
	for _, t := range i.Tags {
		out[aws.ToString(t.Key)] = aws.ToString(t.Value)
	}
	return out
}

func ownerOf(tags map[string]string) nstance.Owner {
	return nstance.Owner{
		Installation: tags[tagInstallation], Cluster: nstance.ClusterID(tags[tagCluster]),
		Shard: nstance.ShardID(tags[tagShard]), Tenant: nstance.TenantID(tags[tagTenant]),
	}
}

// machineOf returns what an instance is, by the given tags.
func machineOf(i *types.Instance, tags map[string]string) nstance.Machine {
	epoch, _ := strconv.ParseUint(tags[tagEpoch], 10, 64) // 0: not ours, or older than any leader
	m := nstance.Machine{
		ID: nstance.InstanceID(tags[tagInstanceID]), ProviderID: aws.ToString(i.InstanceId), Owner: ownerOf(tags),
		Group: nstance.GroupID(tags[tagGroup]), CreatedAt: createdAt(i, tags), Epoch: epoch,
		Status: statusOf(i), InstanceType: string(i.InstanceType), Market: nstance.OnDemand, Addresses: addresses(i),
	}
	if m.Status.Dead() {
		m.Cause, m.CauseText = causeOf(i), wordsOf(i)
	}
	if i.Placement != nil {
		m.Zone = aws.ToString(i.Placement.AvailabilityZone)
	}
	if i.InstanceLifecycle == types.InstanceLifecycleTypeSpot {
		m.Market = nstance.Spot
	}
	return m
}

// createdAt falls back on the time at which the first network interface was
// attached: LaunchTime changes whenever a machine is started (Instance, EC2 API
// Reference).
func createdAt(i *types.Instance, tags map[string]string) time.Time {
	if at, err := time.Parse(time.RFC3339Nano, tags[tagCreatedAt]); err == nil {
		return at.UTC()
	}
	for _, n := range i.NetworkInterfaces {
		if a := n.Attachment; a != nil && a.AttachTime != nil && aws.ToInt32(a.DeviceIndex) == 0 {
			return a.AttachTime.UTC()
		}
	}
	return aws.ToTime(i.LaunchTime).UTC()
}

// stateOf returns an instance's state, or "" if EC2 names none.
func stateOf(i *types.Instance) types.InstanceStateName {
	if i.State == nil {
		return ""
	}
	return i.State.Name
}

func statusOf(i *types.Instance) nstance.MachineStatus {
	switch stateOf(i) {
	case types.InstanceStateNamePending:
		return nstance.StatusPending
	case types.InstanceStateNameRunning:
		return nstance.StatusRunning
	case types.InstanceStateNameStopping:
		return nstance.StatusStopping
	case types.InstanceStateNameStopped:
		return nstance.StatusStopped
	case types.InstanceStateNameShuttingDown, types.InstanceStateNameTerminated:
		return nstance.StatusDeleting
	}
	return nstance.StatusUnknown
}

// causes are what the reasons of EC2 mean (StateReason, EC2 API Reference).
var causes = map[string]nstance.LossCause{
	"Server.InsufficientInstanceCapacity": nstance.LossCapacity,
	"Server.SpotInstanceTermination":      nstance.LossReclaimed,
	"Server.SpotInstanceShutdown":         nstance.LossReclaimed,
	"Server.InternalError":                nstance.LossHost,
	"Server.ScheduledStop":                nstance.LossHost,
	"Client.VolumeLimitExceeded":          nstance.LossQuota,
	"Client.InvalidSnapshot.NotFound":     nstance.LossInvalid,
	"Client.InternalError":                nstance.LossInvalid, // often a key that encrypts a volume and may not be used
	"Client.InstanceInitiatedShutdown":    nstance.LossGuest,
	"Client.UserInitiatedShutdown":        nstance.LossRequested,
	"Client.UserInitiatedHibernate":       nstance.LossRequested,
}

func causeOf(i *types.Instance) nstance.LossCause {
	if i.StateReason == nil {
		return ""
	}
	code := aws.ToString(i.StateReason.Code)
	if cause, known := causes[code]; known {
		return cause
	}
	if strings.HasPrefix(code, "Client.") { // for something that the account has or asked for
		return nstance.LossInvalid
	}
	return ""
}

// wordsOf returns what EC2 says about the state of an instance; empty: nothing.
func wordsOf(i *types.Instance) string {
	if i.StateReason == nil {
		return ""
	}
	return cmp.Or(strings.TrimSpace(aws.ToString(i.StateReason.Message)), aws.ToString(i.StateReason.Code))
}

// reasonOf returns why an instance is in its state, in EC2's words.
func reasonOf(i *types.Instance) string {
	return cmp.Or(wordsOf(i), "EC2 names no reason")
}

// addresses returns the private address first.
func addresses(i *types.Instance) []netip.Addr {
	var out []netip.Addr
	add := func(s *string) {
		if a, err := netip.ParseAddr(aws.ToString(s)); err == nil {
			out = append(out, a)
		}
	}
	add(i.PrivateIpAddress)
	for _, n := range i.NetworkInterfaces {
		for _, a := range n.Ipv6Addresses {
			add(a.Ipv6Address)
		}
	}
	add(i.PublicIpAddress)
	return out
}

// NodeProviderID implements [nstance.NodeNamer]: aws:///ZONE/INSTANCE, as the AWS cloud
// controller manager writes it (Cloud.InstanceID and InstanceMetadata, pkg/providers/v1
// of kubernetes/cloud-provider-aws).
func (*Provider) NodeProviderID(m nstance.Machine) string {
	if m.Zone == "" || m.ProviderID == "" {
		return ""
	}
	return "aws:///" + m.Zone + "/" + m.ProviderID
}
