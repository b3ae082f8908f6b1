package ec2test

import "time"

// runInput is the input of RunInstances.
type runInput struct {
	dryRun
	ImageId                           string
	InstanceType                      string
	MinCount                          int `q:",required"`
	MaxCount                          int `q:",required"`
	ClientToken                       string
	SubnetId                          string
	SecurityGroupIds                  []string `q:"SecurityGroupId"`
	SecurityGroups                    []string `q:"SecurityGroup"`
	PrivateIpAddress                  string
	NetworkInterfaces                 []interfaceInput `q:"NetworkInterface"`
	KeyName                           string
	UserData                          string
	TagSpecifications                 []tagSpecification `q:"TagSpecification"`
	IamInstanceProfile                struct{ Arn, Name string }
	InstanceMarketOptions             marketInput
	InstanceInitiatedShutdownBehavior string `enum:"stop,terminate"`
	HibernationOptions                struct{ Configured bool }
	BlockDeviceMappings               []deviceInput `q:"BlockDeviceMapping"`
	Placement                         struct {
		AvailabilityZone, AvailabilityZoneId, Affinity, GroupName, GroupId, HostId, HostResourceGroupArn, SpreadDomain string
		Tenancy                                                                                                        string `enum:"default,dedicated,host"`
		PartitionNumber                                                                                                int
	}
	MetadataOptions     metadataInput
	Monitoring          struct{ Enabled bool }
	CreditSpecification struct{ CpuCredits string }
	CpuOptions          struct {
		CoreCount, ThreadsPerCore int
		AmdSevSnp                 string `enum:"enabled,disabled"`
		NestedVirtualization      string `enum:"enabled,disabled"`
	}
	CapacityReservationSpecification struct {
		CapacityReservationPreference string `enum:"capacity-reservations-only,open,none"`
		CapacityReservationTarget     struct{ CapacityReservationId, CapacityReservationResourceGroupArn string }
	}
	LaunchTemplate        struct{ LaunchTemplateId, LaunchTemplateName, Version string }
	EnclaveOptions        struct{ Enabled bool }
	PrivateDnsNameOptions struct {
		HostnameType                    string `enum:"ip-name,resource-name"`
		EnableResourceNameDnsARecord    bool
		EnableResourceNameDnsAAAARecord bool
	}
	MaintenanceOptions struct {
		AutoRecovery string `enum:"default,disabled"`
	}
	NetworkPerformanceOptions struct {
		BandwidthWeighting string `enum:"default,vpc-1,ebs-1"`
	}
	LicenseSpecifications []struct{ LicenseConfigurationArn string } `q:"LicenseSpecification"`
	EbsOptimized          bool
	DisableApiTermination bool
	DisableApiStop        bool
	Ipv6AddressCount      int
	Ipv6Addresses         []struct{ Ipv6Address string } `q:"Ipv6Address"`
	EnablePrimaryIpv6     bool
	KernelId              string
	RamdiskId             string
	AdditionalInfo        string
}

type interfaceInput struct {
	NetworkInterfaceId             string
	DeviceIndex                    *int
	NetworkCardIndex               int
	SubnetId                       string
	Groups                         []string `q:"SecurityGroupId"`
	Description                    string
	PrivateIpAddress               string
	PrivateIpAddresses             []addressInput
	SecondaryPrivateIpAddressCount int
	AssociatePublicIpAddress       *bool
	DeleteOnTermination            *bool
	InterfaceType                  string `enum:"interface,efa,efa-only"`
	Ipv6AddressCount               int
	Ipv4PrefixCount                int
	Ipv6PrefixCount                int
	Ipv6Addresses                  []struct{ Ipv6Address string }
	PrimaryIpv6                    bool
}

type addressInput struct {
	PrivateIpAddress string
	Primary          bool
}

type marketInput struct {
	MarketType  string `enum:"spot,capacity-block,interruptible-capacity-reservation"`
	SpotOptions struct {
		MaxPrice                     string
		SpotInstanceType             string `enum:"one-time,persistent"`
		BlockDurationMinutes         int
		ValidUntil                   time.Time
		InstanceInterruptionBehavior string `enum:"hibernate,stop,terminate"`
	}
}

type deviceInput struct {
	DeviceName, VirtualName string
	NoDevice                *string
	Ebs                     struct {
		SnapshotId, KmsKeyId     string
		VolumeType               string `enum:"standard,io1,io2,gp2,sc1,st1,gp3"`
		VolumeSize               int
		Iops, Throughput         int
		VolumeInitializationRate int
		Encrypted                bool
		DeleteOnTermination      *bool
	}
}

type metadataInput struct {
	HttpTokens              string `enum:"optional,required"`
	HttpEndpoint            string `enum:"enabled,disabled"`
	HttpProtocolIpv6        string `enum:"enabled,disabled"`
	InstanceMetadataTags    string `enum:"enabled,disabled"`
	HttpPutResponseHopLimit *int
}

type tagSpecification struct {
	ResourceType string
	Tags         []tagInput `q:"Tag"`
}

type tagInput struct{ Key, Value string }

// permissions are what RunInstances needs beside its own action ("Granting IAM
// users permission to pass a role", "Tag resources during creation").
func (in *runInput) permissions() []string {
	var needs []string
	if len(in.TagSpecifications) > 0 {
		needs = append(needs, "ec2:CreateTags")
	}
	if in.IamInstanceProfile.Arn != "" || in.IamInstanceProfile.Name != "" {
		needs = append(needs, "iam:PassRole")
	}
	return needs
}

func (in *runInput) resources() int { return max(1, in.MaxCount) }

// inBlock reports whether the machine is to be part of a capacity block.
func (in *runInput) inBlock() bool { return in.InstanceMarketOptions.MarketType == "capacity-block" }

func (in *runInput) spot() bool { return in.InstanceMarketOptions.MarketType == "spot" }
