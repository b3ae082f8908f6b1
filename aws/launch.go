package aws

import (
	"cmp"
	"encoding/base64"
	"maps"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/nstance-go/nstance"
)

// launchRequest returns what makes the machine of spec, the same for the same
// spec: EC2 refuses a repeat that differs.
func launchRequest(spec nstance.MachineSpec, a *Args) *ec2.RunInstancesInput {
	in := &ec2.RunInstancesInput{
		MinCount: aws.Int32(1), MaxCount: aws.Int32(1), ClientToken: &spec.Token,
		ImageId: &spec.Image, InstanceType: types.InstanceType(spec.InstanceType),
		TagSpecifications:                 tagSpecifications(spec, a),
		MetadataOptions:                   metadataOptions(a),
		InstanceMarketOptions:             marketOptions(spec, a),
		InstanceInitiatedShutdownBehavior: types.ShutdownBehaviorTerminate,
		BlockDeviceMappings:               volumes(a.Volumes),
		EbsOptimized:                      a.EBSOptimized,
		KeyName:                           optional(a.KeyName),
		IamInstanceProfile:                instanceProfile(a.IAMInstanceProfile),
		Placement:                         placement(a),
		CapacityReservationSpecification:  capacityReservation(a.CapacityReservation),
		CpuOptions:                        cpuOptions(a.CPU),
		PrivateDnsNameOptions:             privateDNS(a.PrivateDNS),
	}
	setNetwork(in, spec.Subnet, a)
	if len(spec.UserData) > 0 {
		in.UserData = aws.String(base64.StdEncoding.EncodeToString(spec.UserData))
	}
	if spec.Park != "" {
		in.InstanceInitiatedShutdownBehavior = types.ShutdownBehaviorStop
	}
	if spec.Park == nstance.ParkHibernated {
		in.HibernationOptions = &types.HibernationOptionsRequest{Configured: aws.Bool(true)}
	}
	if a.CPUCredits != "" {
		in.CreditSpecification = &types.CreditSpecificationRequest{CpuCredits: &a.CPUCredits}
	}
	if a.Enclaves {
		in.EnclaveOptions = &types.EnclaveOptionsRequest{Enabled: aws.Bool(true)}
	}
	if a.Monitoring {
		in.Monitoring = &types.RunInstancesMonitoringEnabled{Enabled: aws.Bool(true)}
	}
	return in
}

// setNetwork describes the network interfaces where that is needed: the short form is not
// permitted beside it.
func setNetwork(in *ec2.RunInstancesInput, subnet string, a *Args) {
	first := networkInterface(device{}, subnet, a.SecurityGroupIDs)
	plain := a.PublicIP == nil && max(a.IPv6Addresses, a.IPv4Prefixes, a.IPv6Prefixes) == 0 && !a.EFA && len(a.NetworkInterfaces) == 0
	if plain {
		in.SubnetId, in.SecurityGroupIds = first.SubnetId, first.Groups
		return
	}
	first.AssociatePublicIpAddress = a.PublicIP
	first.Ipv6AddressCount, first.Ipv4PrefixCount, first.Ipv6PrefixCount = positive(a.IPv6Addresses), positive(a.IPv4Prefixes), positive(a.IPv6Prefixes)
	if a.EFA {
		first.InterfaceType = aws.String("efa")
	}
	in.NetworkInterfaces = []types.InstanceNetworkInterfaceSpecification{first}
	for _, n := range a.NetworkInterfaces {
		groups := n.SecurityGroupIDs
		if len(groups) == 0 {
			groups = a.SecurityGroupIDs
		}
		more := networkInterface(n.device(), subnet, groups)
		more.InterfaceType = optional(n.Type)
		in.NetworkInterfaces = append(in.NetworkInterfaces, more)
	}
}

func networkInterface(at device, subnet string, groups []string) types.InstanceNetworkInterfaceSpecification {
	return types.InstanceNetworkInterfaceSpecification{
		DeviceIndex: aws.Int32(at.index), NetworkCardIndex: positive(at.card), DeleteOnTermination: aws.Bool(true),
		SubnetId: optional(subnet), Groups: groups,
	}
}

func cpuOptions(c *CPU) *types.CpuOptionsRequest {
	if c == nil {
		return nil
	}
	out := &types.CpuOptionsRequest{CoreCount: positive(c.Cores), ThreadsPerCore: positive(c.ThreadsPerCore)}
	if c.AMDSEVSNP {
		out.AmdSevSnp = types.AmdSevSnpSpecificationEnabled
	}
	if c.NestedVirtualization {
		out.NestedVirtualization = types.NestedVirtualizationSpecificationEnabled
	}
	return out
}

func privateDNS(d *PrivateDNS) *types.PrivateDnsNameOptionsRequest {
	if d == nil {
		return nil
	}
	return &types.PrivateDnsNameOptionsRequest{
		HostnameType: types.HostnameType(d.HostnameType), EnableResourceNameDnsARecord: &d.ARecord, EnableResourceNameDnsAAAARecord: &d.AAAARecord,
	}
}

// tagSpecifications mark the machine and all that is made with it, at launch.
func tagSpecifications(spec nstance.MachineSpec, a *Args) []types.TagSpecification {
	all := marks(spec)
	maps.Copy(all, a.Tags)
	var tags []types.Tag
	for _, key := range slices.Sorted(maps.Keys(all)) {
		tags = append(tags, types.Tag{Key: aws.String(key), Value: aws.String(all[key])})
	}
	kinds := []types.ResourceType{types.ResourceTypeInstance, types.ResourceTypeVolume, types.ResourceTypeNetworkInterface}
	if spec.Market == nstance.Spot {
		kinds = append(kinds, types.ResourceTypeSpotInstancesRequest)
	}
	var out []types.TagSpecification
	for _, kind := range kinds {
		out = append(out, types.TagSpecification{ResourceType: kind, Tags: tags})
	}
	return out
}

func metadataOptions(a *Args) *types.InstanceMetadataOptionsRequest {
	out := &types.InstanceMetadataOptionsRequest{HttpTokens: types.HttpTokensStateRequired}
	if a.MetadataHopLimit > 0 {
		out.HttpPutResponseHopLimit = &a.MetadataHopLimit
	}
	if a.MetadataTags {
		out.InstanceMetadataTags = types.InstanceMetadataTagsStateEnabled
	}
	return out
}

// marketOptions ask for spot capacity that ends with its one machine: persistent
// requests launch machines by themselves, and stopped ones stay and are charged.
// A capacity block is a market of its own ("Launch instances using Capacity Blocks", EC2
// User Guide).
func marketOptions(spec nstance.MachineSpec, a *Args) *types.InstanceMarketOptionsRequest {
	if a.CapacityReservation != nil && a.CapacityReservation.Block {
		return &types.InstanceMarketOptionsRequest{MarketType: types.MarketTypeCapacityBlock}
	}
	if spec.Market != nstance.Spot {
		return nil
	}
	return &types.InstanceMarketOptionsRequest{
		MarketType: types.MarketTypeSpot,
		SpotOptions: &types.SpotMarketOptions{
			SpotInstanceType:             types.SpotInstanceTypeOneTime,
			InstanceInterruptionBehavior: types.InstanceInterruptionBehaviorTerminate,
			MaxPrice:                     optional(spec.MaxPrice),
		},
	}
}

func volumes(list []Volume) []types.BlockDeviceMapping {
	var out []types.BlockDeviceMapping
	for _, v := range list {
		out = append(out, types.BlockDeviceMapping{DeviceName: aws.String(v.Device), Ebs: &types.EbsBlockDevice{
			VolumeSize: positive(v.SizeGiB), VolumeType: types.VolumeType(v.Type), Iops: positive(v.IOPS), Throughput: positive(v.ThroughputMiB),
			Encrypted: v.Encrypted, KmsKeyId: optional(v.KMSKeyID), SnapshotId: optional(v.SnapshotID),
			DeleteOnTermination: aws.Bool(!v.KeepAfterDelete),
		}})
	}
	return out
}

func instanceProfile(name string) *types.IamInstanceProfileSpecification {
	switch {
	case name == "":
		return nil
	case strings.HasPrefix(name, "arn:"):
		return &types.IamInstanceProfileSpecification{Arn: &name}
	}
	return &types.IamInstanceProfileSpecification{Name: &name}
}

func placement(a *Args) *types.Placement {
	if cmp.Or(a.Tenancy, a.HostID, a.PlacementGroup) == "" {
		return nil
	}
	return &types.Placement{
		Tenancy: types.Tenancy(a.Tenancy), HostId: optional(a.HostID),
		GroupName: optional(a.PlacementGroup), PartitionNumber: positive(a.PlacementPartition),
	}
}

func capacityReservation(c *CapacityReservation) *types.CapacityReservationSpecification {
	switch {
	case c == nil:
		return nil
	case c.Preference != "":
		return &types.CapacityReservationSpecification{CapacityReservationPreference: types.CapacityReservationPreference(c.Preference)}
	}
	return &types.CapacityReservationSpecification{CapacityReservationTarget: &types.CapacityReservationTarget{
		CapacityReservationId: optional(c.ID), CapacityReservationResourceGroupArn: optional(c.ResourceGroupARN),
	}}
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func positive(n int32) *int32 {
	if n <= 0 {
		return nil
	}
	return &n
}
