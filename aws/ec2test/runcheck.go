package ec2test

import (
	"encoding/base64"
	"slices"
	"strconv"
	"strings"
)

// What EC2 documents about the parameters of RunInstances (API reference,
// RunInstances and the types it uses).
const (
	maxUserDataBytes   = 16 << 10
	maxClientToken     = 64
	minMaxPrice        = 0.001
	maxHibernatableMiB = 150 << 10
)

// A launch is a RunInstances call that has been checked.
type launch struct {
	o        *Options
	network  *network
	in       *runInput
	image    Image
	kind     InstanceType
	zone     string // empty: anywhere
	subnet   Subnet // zero: anywhere
	userData []byte
	tags     map[string]map[string]string // by resource type
	request  *spotRequest                 // that was open before; nil: a spot machine gets one of its own

	reservations []Reservation // that it may use; empty: none
}

// check refuses what does not depend on what else the cloud is doing.
func (r *launcher) check(in *runInput) (*launch, error) {
	l := &launch{o: r.o, network: r.fleet.network, in: in}
	for _, step := range []func() error{
		l.checkCounts, l.checkImage, l.checkPlacement, l.checkInterfaces, l.checkNames, l.checkUserData, l.checkMarket, l.checkHibernation,
		l.checkVolumes, l.checkPlacementNames, l.checkReservation, l.checkFeatures, l.checkProcessor, l.checkMetadata, l.checkTags,
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (l *launch) checkCounts() error {
	in := l.in
	if in.MinCount < 1 || in.MaxCount < 1 {
		return invalid("Invalid value '%d' for minCount. Must be at least 1", min(in.MinCount, in.MaxCount))
	}
	if in.MinCount > in.MaxCount {
		return badCombination("The value for minCount must be at most that of maxCount")
	}
	if len(in.ClientToken) > maxClientToken || strings.ContainsFunc(in.ClientToken, func(r rune) bool { return r > 126 || r < 32 }) {
		return invalid("Value (%s) for parameter clientToken is invalid. It can have up to %d ASCII characters", in.ClientToken, maxClientToken)
	}
	if in.LaunchTemplate.LaunchTemplateId+in.LaunchTemplate.LaunchTemplateName != "" {
		return refuse("InvalidLaunchTemplateId.NotFound", "The specified launch template does not exist.")
	}
	return nil
}

func (l *launch) checkImage() error {
	if l.in.ImageId == "" {
		return missing("ImageId")
	}
	if !strings.HasPrefix(l.in.ImageId, "ami-") {
		return refuse("InvalidAMIID.Malformed", `Invalid id: "%s" (expecting "ami-...")`, l.in.ImageId)
	}
	i := slices.IndexFunc(l.o.Catalog.Images, func(i Image) bool { return i.ID == l.in.ImageId })
	if i < 0 {
		return unknownImage(l.in.ImageId)
	}
	l.image = l.o.Catalog.Images[i]
	if l.image.State != "" && l.image.State != "available" {
		return refuse("InvalidAMIID.Unavailable", "The image ID '%s' is not available", l.in.ImageId)
	}
	if l.in.InstanceType == "" {
		return missing("InstanceType") // the default, m1.small, runs in no VPC of today
	}
	kind, known := l.o.Catalog.typeNamed(l.in.InstanceType)
	if !known {
		return invalid("Invalid value '%s' for InstanceType.", l.in.InstanceType)
	}
	if !slices.Contains(kind.Archs, l.image.Arch) {
		return invalid("The architecture '%s' of the specified instance type does not match the architecture '%s' of the specified AMI. "+
			"Specify an instance type and an AMI that have matching architectures, and try again.", strings.Join(kind.Archs, ","), l.image.Arch)
	}
	l.kind = kind
	return nil
}

func (c *Catalog) typeNamed(name string) (InstanceType, bool) {
	i := slices.IndexFunc(c.Types, func(t InstanceType) bool { return t.Name == name })
	if i < 0 {
		return InstanceType{}, false
	}
	return c.Types[i], true
}

func (l *launch) checkPlacement() error {
	in := l.in
	subnet := in.SubnetId
	if len(in.NetworkInterfaces) > 0 {
		if subnet != "" || len(in.SecurityGroupIds)+len(in.SecurityGroups) > 0 || in.PrivateIpAddress != "" || in.Ipv6AddressCount > 0 {
			return badCombination("Network interfaces and an instance-level subnet ID, security groups or private IP address may not be specified on the same request")
		}
		for _, i := range in.NetworkInterfaces {
			if i.DeviceIndex != nil && *i.DeviceIndex == 0 {
				subnet = i.SubnetId
			}
		}
	}
	if subnet != "" {
		s, err := l.o.Catalog.subnetNamed(subnet)
		if err != nil {
			return err
		}
		l.subnet, l.zone = s, s.Zone
	}
	if zone := in.Placement.AvailabilityZone; zone != "" {
		if l.zone != "" && l.zone != zone {
			return invalid("The specified subnet is not in the availability zone '%s'", zone)
		}
		if !slices.ContainsFunc(l.o.Catalog.Subnets, func(s Subnet) bool { return s.Zone == zone }) {
			return invalid("Invalid availability zone: [%s]", zone)
		}
		l.zone = zone
	}
	if l.zone != "" && l.kind.Zones != nil && !slices.Contains(l.kind.Zones, l.zone) {
		return refuse("Unsupported", "Your requested instance type (%s) is not supported in your requested Availability Zone (%s). "+
			"Please retry your request by not specifying an Availability Zone or choosing another one.", l.kind.Name, l.zone)
	}
	return nil
}

func (c *Catalog) subnetNamed(id string) (Subnet, error) {
	i := slices.IndexFunc(c.Subnets, func(s Subnet) bool { return s.ID == id })
	if i < 0 {
		return Subnet{}, unknownSubnet(id)
	}
	return c.Subnets[i], nil
}

func (l *launch) checkInterfaces() error {
	in := l.in
	if n := len(in.NetworkInterfaces); n > 0 && n > l.kind.Interfaces {
		return refuse("AttachmentLimitExceeded", "Interface count %d exceeds the limit for %s", n, l.kind.Name)
	}
	used, adapters := map[[2]int]bool{}, 0
	for _, i := range in.NetworkInterfaces {
		if err := l.checkInterface(i); err != nil {
			return err
		}
		at := [2]int{i.NetworkCardIndex, *i.DeviceIndex}
		if used[at] {
			return invalid("The device index %d is used more than once", *i.DeviceIndex)
		}
		if used[at] = true; i.fabric() {
			adapters++
		}
	}
	if len(used) > 0 && !used[[2]int{}] {
		return badCombination("A network interface with device index 0 is required")
	}
	if adapters > l.kind.EFAs {
		return badCombination("%s instances do not support %d Elastic Fabric Adapters.", l.kind.Name, adapters)
	}
	return nil
}

// fabric reports whether an interface is an Elastic Fabric Adapter.
func (i interfaceInput) fabric() bool { return strings.HasPrefix(i.InterfaceType, "efa") }

func (l *launch) checkInterface(i interfaceInput) error {
	switch {
	case i.DeviceIndex == nil:
		return missing("NetworkInterface.DeviceIndex")
	case i.NetworkCardIndex < 0 || i.NetworkCardIndex >= max(1, l.kind.Cards):
		return invalid("The network card index %d is not valid for %s", i.NetworkCardIndex, l.kind.Name)
	case i.AssociatePublicIpAddress != nil && *i.AssociatePublicIpAddress && len(l.in.NetworkInterfaces) > 1:
		return badCombination("The associatePublicIPAddress parameter cannot be specified when launching with multiple network interfaces.")
	case i.NetworkInterfaceId != "" && l.network.interfaces[i.NetworkInterfaceId] == nil:
		return unknownInterface(i.NetworkInterfaceId)
	case i.NetworkInterfaceId != "":
		return refuse("InvalidNetworkInterface.InUse", "Interface: [%s] in use.", i.NetworkInterfaceId)
	case 1+len(i.PrivateIpAddresses)+i.SecondaryPrivateIpAddressCount > l.kind.AddressesPerInterface+1:
		return refuse("PrivateIpAddressLimitExceeded", "Number of private addresses will exceed limit.")
	}
	if i.SubnetId != "" {
		if _, err := l.o.Catalog.subnetNamed(i.SubnetId); err != nil {
			return err
		}
	}
	return checkPrefixes(l.kind, i)
}

// checkPrefixes: "Prefix delegation for Amazon EC2 network interfaces" (EC2 User Guide) wants
// the Nitro System, and counts a prefix as an address; an EFA-only interface has no
// addresses (InstanceNetworkInterfaceSpecification, EC2 API Reference).
func checkPrefixes(kind InstanceType, i interfaceInput) error {
	prefixes, only := i.Ipv4PrefixCount+i.Ipv6PrefixCount, i.InterfaceType == "efa-only"
	switch {
	case prefixes > 0 && kind.Xen:
		return badCombination("Prefixes are not supported for the instance type %s", kind.Name)
	case i.Ipv4PrefixCount > 0 && len(i.PrivateIpAddresses)+i.SecondaryPrivateIpAddressCount > 0:
		return badCombination("Secondary private addresses and IPv4 prefixes cannot be specified together")
	case 1+i.Ipv4PrefixCount > kind.AddressesPerInterface || i.Ipv6PrefixCount > kind.AddressesPerInterface:
		return refuse("PrivateIpAddressLimitExceeded", "Number of private addresses will exceed limit.")
	case only && (prefixes+i.Ipv6AddressCount+i.SecondaryPrivateIpAddressCount+len(i.PrivateIpAddresses) > 0 || i.PrivateIpAddress != ""):
		return badCombination("EFA-only network interfaces do not support IP addresses")
	case only && i.NetworkCardIndex == 0 && *i.DeviceIndex == 0:
		return badCombination("The primary network interface cannot be EFA-only")
	}
	return nil
}

// checkNames refuses references to what is not there.
func (l *launch) checkNames() error {
	in := l.in
	groups := slices.Clone(in.SecurityGroupIds)
	for _, i := range in.NetworkInterfaces {
		groups = append(groups, i.Groups...)
	}
	for _, g := range groups {
		if !strings.HasPrefix(g, "sg-") {
			return refuse("InvalidGroupId.Malformed", `Invalid id: "%s" (expecting "sg-...")`, g)
		}
		if slices.Contains(l.o.Catalog.ForeignGroups, g) {
			return refuse("InvalidParameter", "Security group %s and subnet %s belong to different networks.", g, l.subnet.ID)
		}
		if !slices.Contains(l.o.Catalog.SecurityGroups, g) {
			return unknownGroup(g)
		}
	}
	if len(in.SecurityGroups) > 0 {
		return badCombination("The parameter groupName cannot be used with the parameter subnet")
	}
	if in.KeyName != "" && !slices.Contains(l.o.Catalog.KeyPairs, in.KeyName) {
		return refuse("InvalidKeyPair.NotFound", "The key pair '%s' does not exist", in.KeyName)
	}
	p := in.IamInstanceProfile
	if p.Name != "" && p.Arn != "" {
		return badCombination("The parameter 'iamInstanceProfile.name' may not be used in combination with 'iamInstanceProfile.arn'")
	}
	if name := p.Name + p.Arn[strings.LastIndex(p.Arn, "/")+1:]; name != "" && !slices.Contains(l.o.Catalog.Profiles, name) {
		return invalid("Value (%s) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name", name)
	}
	return nil
}

func (l *launch) checkUserData() error {
	decoded, err := base64.StdEncoding.DecodeString(l.in.UserData)
	if err != nil {
		return refuse("InvalidUserData.Malformed", "Invalid BASE64 encoding of user data")
	}
	if len(decoded) > maxUserDataBytes {
		return invalid("User data is limited to %d bytes", maxUserDataBytes)
	}
	l.userData = decoded
	return nil
}

func (l *launch) checkMarket() error {
	in, o := l.in, l.in.InstanceMarketOptions.SpotOptions
	if in.InstanceMarketOptions.MarketType != "" && !in.spot() && !in.inBlock() {
		return refuse("Unsupported", "The requested market type is not supported.")
	}
	if !in.spot() {
		if o.MaxPrice+o.SpotInstanceType+o.InstanceInterruptionBehavior != "" {
			return badCombination("SpotOptions require the market type spot")
		}
		return nil
	}
	oneTime := o.SpotInstanceType != "persistent"
	switch {
	case l.kind.NoSpot:
		return refuse("Unsupported", "The instance type '%s' is not supported for Spot Instances.", l.kind.Name)
	case o.BlockDurationMinutes != 0:
		return badCombination("BlockDurationMinutes is no longer supported")
	case oneTime && !o.ValidUntil.IsZero():
		return badCombination("The parameter validUntil is only supported for persistent Spot requests")
	case oneTime && (o.InstanceInterruptionBehavior == "stop" || o.InstanceInterruptionBehavior == "hibernate" && !in.HibernationOptions.Configured):
		return badCombination("The interruption behavior '%s' requires a persistent Spot request", o.InstanceInterruptionBehavior)
	case in.HibernationOptions.Configured && (o.InstanceInterruptionBehavior == "terminate" || o.InstanceInterruptionBehavior == "stop"):
		return badCombination("The interruption behavior of a Spot Instance with hibernation must be hibernate")
	case in.DisableApiTermination:
		return badCombination("Termination protection cannot be enabled for Spot Instances")
	}
	if o.MaxPrice != "" {
		price, err := strconv.ParseFloat(o.MaxPrice, 64)
		if err != nil || price <= minMaxPrice {
			return invalid("Invalid value '%s' for maxPrice. It must be more than USD $0.001", o.MaxPrice)
		}
	}
	if l.o.NoSpotRole && !l.o.permits("iam:CreateServiceLinkedRole") {
		return refuse("AuthFailure.ServiceLinkedRoleCreationNotPermitted", "The provided credentials do not have permission to create the service-linked role for EC2 Spot Instances.")
	}
	return nil
}

// checkHibernation keeps the prerequisites ("Prerequisites for EC2 instance
// hibernation", EC2 User Guide).
func (l *launch) checkHibernation() error {
	if !l.in.HibernationOptions.Configured {
		return nil
	}
	if !l.kind.Hibernation || l.kind.MemoryMiB >= maxHibernatableMiB {
		return refuse("UnsupportedHibernationConfiguration", "Hibernation is not supported for the instance type %s", l.kind.Name)
	}
	for _, d := range l.in.BlockDeviceMappings {
		if d.DeviceName == rootDevice && d.Ebs.Encrypted {
			if d.Ebs.VolumeSize != 0 && d.Ebs.VolumeSize<<10 < l.kind.MemoryMiB {
				return refuse("UnsupportedHibernationConfiguration", "The root volume is too small for the memory of the instance")
			}
			return nil
		}
	}
	return refuse("UnsupportedHibernationConfiguration", "Hibernation requires an encrypted root volume")
}

func (l *launch) checkMetadata() error {
	if n := l.in.MetadataOptions.HttpPutResponseHopLimit; n != nil && (*n < 1 || *n > 64) {
		return invalid("Value (%d) for parameter HttpPutResponseHopLimit is invalid. It must be between 1 and 64", *n)
	}
	return nil
}
