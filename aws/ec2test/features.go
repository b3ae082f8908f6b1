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
func (l *launch) checkVolumes() error {
	for _, d := range l.in.BlockDeviceMappings {
		if err := l.checkVolume(d); err != nil {
			return err
		}
	}
	return nil
}

func (l *launch) checkVolume(d deviceInput) error {
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
	case v.SnapshotId != "" && !slices.Contains(l.o.Catalog.Snapshots, v.SnapshotId):
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
func (l *launch) checkPlacementNames() error {
	p := l.in.Placement
	i := slices.IndexFunc(l.o.Catalog.PlacementGroups, func(g PlacementGroup) bool { return g.Name == p.GroupName })
	switch {
	case p.GroupName != "" && i < 0:
		return refuse("InvalidPlacementGroup.Unknown", "The Placement Group '%s' is unknown.", p.GroupName)
	case p.PartitionNumber != 0 && (i < 0 || l.o.Catalog.PlacementGroups[i].Partitions < p.PartitionNumber):
		return badCombination("The partition number %d is not one of the placement group", p.PartitionNumber)
	case p.HostId != "":
		return refuse("InvalidHostID.NotFound", "The host ID '%s' does not exist", p.HostId)
	case p.Tenancy == "host" && l.in.spot():
		return badCombination("Spot Instances cannot be launched on Dedicated Hosts")
	}
	return nil
}

// checkReservation refuses a reservation that is not there or is of another market.
func (l *launch) checkReservation() error {
	target := l.in.CapacityReservationSpecification.CapacityReservationTarget
	id, group := target.CapacityReservationId, target.CapacityReservationResourceGroupArn
	var named []Reservation
	for _, r := range l.o.Catalog.Reservations {
		if id != "" && r.ID == id || group != "" && r.Group == group {
			named = append(named, r)
		}
	}
	switch {
	case id != "" && group != "":
		return badCombination("A capacity reservation and a resource group may not be specified on the same request")
	case id != "" && len(named) == 0:
		return refuse("InvalidCapacityReservationId.NotFound", "The capacity reservation '%s' does not exist", id)
	case group != "" && len(named) == 0:
		return invalid("The resource group '%s' does not exist", group)
	case l.in.inBlock() && len(named) == 0:
		return missing("CapacityReservationSpecification.CapacityReservationTarget")
	case len(named) == 0:
		return nil
	}
	for _, r := range named {
		if r.Block != l.in.inBlock() {
			return invalid("The market type (purchasing) option is not valid. Choose a different market type and try again.")
		}
	}
	l.reservations = named
	return nil
}

// reserve finds room for a machine in one of the reservations that its launch names.
func (r *launcher) reserve(l *launch, m *machine) error {
	for _, has := range l.reservations {
		if has.InstanceType == l.kind.Name && (l.zone == "" || has.Zone == l.zone) && r.fleet.usersOf(has.ID) < has.Machines {
			m.capacityReservation = has.ID
			return nil
		}
	}
	if len(l.reservations) == 0 {
		return nil
	}
	return refuse("ReservationCapacityExceeded", "The requested reservation does not have sufficient compatible and available capacity for this request.")
}

// usersOf counts the machines in a reservation.
func (f *fleet) usersOf(reservation string) (n int) {
	for _, m := range f.machines {
		if m.capacityReservation == reservation && m.state != terminated {
			n++
		}
	}
	return n
}

// checkProcessor refuses what the type's processor cannot do ("CPU options for Amazon EC2
// instances", EC2 User Guide), and enclaves on small types and beside hibernation ("Requirements
// for Nitro Enclaves", Nitro Enclaves User Guide).
func (l *launch) checkProcessor() error {
	o, enclaves := l.in.CpuOptions, l.in.EnclaveOptions.Enabled
	snp := o.AmdSevSnp == "enabled"
	switch {
	case (o.CoreCount == 0) != (o.ThreadsPerCore == 0):
		return badCombination("CoreCount and ThreadsPerCore must be specified together")
	case o.CoreCount != 0 && l.kind.Xen:
		return badCombination("CPU options are not supported for the instance type %s", l.kind.Name)
	case o.CoreCount < 0 || o.CoreCount > max(1, l.kind.VCPUs/2) || o.ThreadsPerCore < 0 || o.ThreadsPerCore > 2:
		return invalid("CoreCount %d and ThreadsPerCore %d are not valid for the instance type %s", o.CoreCount, o.ThreadsPerCore, l.kind.Name)
	case snp && !l.kind.SEVSNP:
		return badCombination("AMD SEV-SNP is not supported for the instance type %s", l.kind.Name)
	case snp && (enclaves || l.in.HibernationOptions.Configured):
		return badCombination("AMD SEV-SNP cannot be combined with enclaves or hibernation")
	case o.NestedVirtualization == "enabled" && !l.kind.Nested:
		return badCombination("Nested virtualization is not supported for the instance type %s", l.kind.Name)
	case enclaves && l.in.HibernationOptions.Configured:
		return badCombination("Enclaves and hibernation cannot be enabled on the same instance")
	case enclaves && (l.kind.Xen || l.kind.VCPUs < 4):
		return badCombination("Enclaves are not supported for the instance type %s", l.kind.Name)
	}
	return nil
}

// burstable reports whether a type earns CPU credits ("Burstable performance instances").
func burstable(name string) bool {
	family, _, _ := strings.Cut(name, ".")
	return slices.Contains([]string{"t2", "t3", "t3a", "t4g"}, family)
}

// checkFeatures refuses what the type or the subnet does not have.
func (l *launch) checkFeatures() error {
	addresses := l.in.Ipv6AddressCount
	for _, i := range l.in.NetworkInterfaces {
		addresses += i.Ipv6AddressCount + i.Ipv6PrefixCount
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
