package ec2test

import (
	"slices"
	"strings"
)

// A volumeKind is what a type of EBS volume may have (EbsBlockDevice, EC2 API Reference;
// "Amazon EBS volume types", EBS User Guide).
type volumeKind struct {
	minGiB, maxGiB   int
	minIOPS, maxIOPS int // 0: none can be given
	iopsPerGiB       int
	needsIOPS        bool
	noBoot           bool
}

var volumeKinds = map[string]volumeKind{
	"gp2":      {minGiB: 1, maxGiB: 16384},
	"gp3":      {minGiB: 1, maxGiB: 65536, minIOPS: 3000, maxIOPS: 80000, iopsPerGiB: 500},
	"io1":      {minGiB: 4, maxGiB: 16384, minIOPS: 100, maxIOPS: 64000, iopsPerGiB: 50, needsIOPS: true},
	"io2":      {minGiB: 4, maxGiB: 65536, minIOPS: 100, maxIOPS: 256000, iopsPerGiB: 1000, needsIOPS: true},
	"st1":      {minGiB: 125, maxGiB: 16384, noBoot: true},
	"sc1":      {minGiB: 125, maxGiB: 16384, noBoot: true},
	"standard": {minGiB: 1, maxGiB: 1024},
}

// The throughput of gp3 volumes in MiB/s.
const (
	minThroughput = 125
	maxThroughput = 2000
)

// checkVolumes refuses what EBS has no volume for.
func (c *Cloud) checkVolumes(l *launch) error {
	for _, d := range l.in.BlockDeviceMappings {
		if err := c.checkVolume(l, d); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cloud) checkVolume(l *launch, d deviceInput) error {
	v := d.Ebs
	name := orElse(v.VolumeType, "gp2")
	kind := volumeKinds[name]
	root, snapshot := d.DeviceName == rootDevice, 0
	if root {
		snapshot = max(l.image.RootGiB, 1)
		if l.image.RootGiB == 0 {
			snapshot = 8
		}
	}
	size := v.VolumeSize
	if size == 0 {
		size = snapshot
	}
	switch {
	case v.SnapshotId != "" && !slices.Contains(c.o.Catalog.Snapshots, v.SnapshotId):
		return refuse("InvalidSnapshot.NotFound", "The snapshot '%s' does not exist.", v.SnapshotId)
	case size == 0 && v.SnapshotId == "" && d.NoDevice == nil && d.VirtualName == "":
		return missing("BlockDeviceMapping.Ebs.VolumeSize")
	case root && size < snapshot:
		return refuse("InvalidBlockDeviceMapping", "Volume of size %dGB is smaller than snapshot 'snap-0123456789abcdef0', expect size >= %dGB", size, snapshot)
	case root && kind.noBoot:
		return refuse("InvalidParameterCombination", "The volume type %s cannot be used for the root volume", name)
	case size != 0 && (size < kind.minGiB || size > kind.maxGiB):
		return invalid("Volume of %dGiB is invalid; %s volumes must be between %d and %d GiB in size.", size, name, kind.minGiB, kind.maxGiB)
	case v.Iops != 0 && kind.maxIOPS == 0:
		return badCombination("The parameter iops is not supported for %s volumes.", name)
	case v.Iops == 0 && kind.needsIOPS:
		return missing("BlockDeviceMapping.Ebs.Iops")
	case v.Iops != 0 && (v.Iops < kind.minIOPS || v.Iops > kind.maxIOPS):
		return invalid("Volume iops of %d is invalid; it must be between %d and %d for %s volumes.", v.Iops, kind.minIOPS, kind.maxIOPS, name)
	case v.Iops != 0 && size != 0 && v.Iops > max(kind.iopsPerGiB*size, kind.minIOPS):
		return invalid("Iops to volume size ratio of %d is too high; maximum is %d", v.Iops/size, kind.iopsPerGiB)
	case v.Throughput != 0 && name != "gp3":
		return badCombination("The parameter throughput is not supported for %s volumes.", name)
	case v.Throughput != 0 && (v.Throughput < minThroughput || v.Throughput > maxThroughput):
		return invalid("Throughput of %d MiB/s is invalid; it must be between %d and %d.", v.Throughput, minThroughput, maxThroughput)
	case v.Throughput != 0 && 4*v.Throughput > max(v.Iops, 3000):
		return invalid("Throughput (MiBps) to iops ratio of %d to %d is too high; maximum is 0.250000", v.Throughput, max(v.Iops, 3000))
	case v.KmsKeyId != "" && !v.Encrypted:
		return badCombination("The parameter KmsKeyId requires the parameter Encrypted to be set.")
	}
	return nil
}

// checkPlacementNames refuses placement groups, hosts and reservations that are not there.
func (c *Cloud) checkPlacementNames(l *launch) error {
	p, r := l.in.Placement, l.in.CapacityReservationSpecification.CapacityReservationTarget
	i := slices.IndexFunc(c.o.Catalog.PlacementGroups, func(g PlacementGroup) bool { return g.Name == p.GroupName })
	switch {
	case p.GroupName != "" && i < 0:
		return refuse("InvalidPlacementGroup.Unknown", "The Placement Group '%s' is unknown.", p.GroupName)
	case p.PartitionNumber != 0 && (i < 0 || c.o.Catalog.PlacementGroups[i].Partitions < p.PartitionNumber):
		return badCombination("The partition number %d is not one of the placement group", p.PartitionNumber)
	case p.HostId != "":
		return refuse("InvalidHostID.NotFound", "The host ID '%s' does not exist", p.HostId)
	case p.Tenancy == "host" && l.in.spot():
		return badCombination("Spot Instances cannot be launched on Dedicated Hosts")
	case r.CapacityReservationId != "":
		return refuse("InvalidCapacityReservationId.NotFound", "The capacity reservation '%s' does not exist", r.CapacityReservationId)
	case r.CapacityReservationResourceGroupArn != "":
		return invalid("The resource group '%s' does not exist", r.CapacityReservationResourceGroupArn)
	}
	return nil
}

// burstable reports whether a type earns CPU credits ("Burstable performance instances").
func burstable(name string) bool {
	family, _, _ := strings.Cut(name, ".")
	return slices.Contains([]string{"t2", "t3", "t3a", "t4g"}, family)
}

// checkFeatures refuses what the type or the subnet does not have.
func (c *Cloud) checkFeatures(l *launch) error {
	addresses := l.in.Ipv6AddressCount
	for _, i := range l.in.NetworkInterfaces {
		addresses += i.Ipv6AddressCount
	}
	switch credits := l.in.CreditSpecification.CpuCredits; {
	case credits != "" && credits != "standard" && credits != "unlimited":
		return invalid("Invalid value '%s' for CpuCredits.", credits)
	case credits != "" && !burstable(l.kind.Name):
		return badCombination("The parameter CreditSpecification is not supported for the instance type %s", l.kind.Name)
	case l.in.EbsOptimized && l.kind.Xen:
		return refuse("Unsupported", "The requested configuration is currently not supported. Please check the documentation for supported configurations.")
	case addresses > 0 && l.subnet.ID != "" && !l.subnet.IPv6:
		return badCombination("The subnet '%s' does not have any IPv6 CIDR blocks", l.subnet.ID)
	}
	return nil
}
