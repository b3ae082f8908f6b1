package ec2test

import (
	"net/netip"
	"time"

	"github.com/nstance-go/nstance/provider/testcloud"
)

// Options describe the account and region of the cloud. A zero field means the
// default.
type Options struct {
	Region      string       // us-east-1
	Account     string       // 123456789012
	Credentials []Credential // one, DefaultCredential

	// Permitted are the actions that the caller may do, such as
	// "ec2:RunInstances" or "ec2:Describe*", and "iam:PassRole" to launch with an
	// instance profile. Nil: all.
	Permitted []string

	// What there is. Nil: those of DefaultCatalog.
	Catalog *Catalog

	// IDTag is the key of the tag in which machines carry their instance ID, for
	// Machines and Boot. Empty: they have none.
	IDTag string

	// PageSize is how many resources a page has at most, beside what the caller
	// asks for: 1000, which is EC2's own limit of DescribeInstances.
	PageSize int

	// NoTagsUnasked leaves the tags out of answers that were not filtered by a
	// tag, and out of answers to a repeated RunInstances, as EC2 may.
	NoTagsUnasked bool

	// OldMachineOnMismatch answers a repeated client token with other parameters
	// with the old machine in place of IdempotentParameterMismatch. EC2 may do
	// either ("Ensuring idempotency in Amazon EC2 API requests").
	OldMachineOnMismatch bool

	// EmptyFirstPage starts every listing in pages with an empty page.
	EmptyFirstPage bool

	// NoSpotRole is an account that has never used spot capacity: its
	// service-linked role has to be created first.
	NoSpotRole bool

	// EventQueue is the name of the queue into which EventBridge's rules put the
	// account's events about machines. Empty: there are no rules.
	EventQueue string

	// HideAtMost is how long received messages are hidden at most, for tests that
	// wait for a message to be received again. Zero: as long as the caller says.
	HideAtMost time.Duration

	// NoMetadataNotices has no metadata service announce anything.
	NoMetadataNotices bool

	Delays     testcloud.Delays
	Capacity   *testcloud.Capacity // nil: endless
	Faults     *testcloud.Faults   // nil: none
	Buckets    *Buckets            // nil: nothing is throttled
	Hypervisor testcloud.Hypervisor
}

// DefaultCredential is what signs calls unless Options say otherwise: AWS's own
// example.
var DefaultCredential = Credential{AccessKeyID: "AKIAIOSFODNN7EXAMPLE", SecretAccessKey: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"}

// A Catalog is what an account finds in a region.
type Catalog struct {
	VPC             string
	Subnets         []Subnet
	Images          []Image
	Types           []InstanceType
	SecurityGroups  []string
	KeyPairs        []string
	Profiles        []string // names of instance profiles
	Snapshots       []string // of volumes, beside those of images
	PlacementGroups []PlacementGroup
	TargetGroups    []TargetGroup
	Queues          []string // names of queues of SQS

	Reservations  []Reservation
	ForeignGroups []string                     // security groups of another VPC
	Tags          map[string]map[string]string // of subnets, security groups and images, by ID
	Parameters    map[string][]string          // of the Parameter Store: the values of each, the newest last
}

// A Subnet is where machines get their addresses. EC2 keeps the first four and
// the last address of the prefix to itself.
type Subnet struct {
	ID     string
	Zone   string
	Prefix netip.Prefix
	IPv6   bool // it has an IPv6 CIDR block
}

// A PlacementGroup is what machines can be launched into.
type PlacementGroup struct {
	Name       string
	Partitions int // of the strategy partition; 0: another strategy
}

// A Reservation is a capacity reservation, or a capacity block. A machine uses it only if
// it names it.
type Reservation struct {
	ID           string
	Group        string // ARN of its resource group, if any
	InstanceType string
	Zone         string
	Machines     int // at most, at once
	Block        bool
}

// An Image is a machine image.
type Image struct {
	ID      string
	Owner   string // account
	Name    string
	Arch    string // x86_64 or arm64
	Created time.Time
	State   string // empty: available
	RootGiB int    // size of the snapshot of its root volume; 0: 8
}

// An InstanceType is a type of machine.
type InstanceType struct {
	Name                  string
	Archs                 []string
	VCPUs                 int
	MemoryMiB             int
	Interfaces            int // network interfaces at most
	AddressesPerInterface int // private IPv4 addresses and prefixes, the primary one included
	Cards                 int // network cards; 0: 1
	EFAs                  int // Elastic Fabric Adapters at most
	Hibernation           bool
	NoSpot                bool
	SEVSNP, Nested        bool     // what its processor can do
	Xen                   bool     // not built on the Nitro System
	Zones                 []string // nil: all
	SpotPrice             string   // the price now; empty: no maximum is too low
}

// A TargetGroup is a target group of a load balancer, with targets of type
// instance.
type TargetGroup struct {
	Name  string
	ID    string // the last part of its ARN
	Port  int
	Zones []string // which the load balancer serves; nil: all

	InitialHealthChecks time.Duration // until a target is healthy
	DeregistrationDelay time.Duration // how long a target drains
}

// DefaultCatalog has three zones with a subnet each, images for both
// architectures, a few types, and one queue.
func DefaultCatalog(region string) *Catalog {
	c := &Catalog{
		VPC:            "vpc-0a1b2c3d4e5f60718",
		SecurityGroups: []string{"sg-0123456789abcdef0"},
		KeyPairs:       []string{"default"},
		Profiles:       []string{"nstance"},
		Queues:         []string{"nstance"},
		TargetGroups:   []TargetGroup{{Name: "web", ID: "73e2d6bc24d8a067", Port: 80, DeregistrationDelay: 300 * time.Second}},
		Types: []InstanceType{
			{Name: "t3.micro", Archs: []string{"x86_64"}, VCPUs: 2, MemoryMiB: 1024, Interfaces: 2, AddressesPerInterface: 2, Hibernation: true},
			{Name: "m5.large", Archs: []string{"x86_64"}, VCPUs: 2, MemoryMiB: 8192, Interfaces: 3, AddressesPerInterface: 10, Hibernation: true, SpotPrice: "0.0350"},
			{Name: "c5.large", Archs: []string{"x86_64"}, VCPUs: 2, MemoryMiB: 4096, Interfaces: 3, AddressesPerInterface: 10, Hibernation: true, SpotPrice: "0.0310"},
			{Name: "m6g.large", Archs: []string{"arm64"}, VCPUs: 2, MemoryMiB: 8192, Interfaces: 3, AddressesPerInterface: 10},
			{Name: "t2.micro", Archs: []string{"i386", "x86_64"}, VCPUs: 1, MemoryMiB: 1024, Interfaces: 2, AddressesPerInterface: 2, Hibernation: true, Xen: true},
		},
		Images: []Image{
			{ID: "ami-0abcdef1234567890", Owner: "136693071363", Name: "debian-12-amd64-20260501-100", Arch: "x86_64", Created: time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)},
			{ID: "ami-0abcdef1234567891", Owner: "136693071363", Name: "debian-12-arm64-20260501-100", Arch: "arm64", Created: time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)},
			{ID: "ami-0abcdef1234567892", Owner: "136693071363", Name: "debian-12-amd64-20260301-90", Arch: "x86_64", Created: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)},
		},
	}
	for i, zone := range []string{"a", "b", "c"} {
		c.Subnets = append(c.Subnets, Subnet{
			ID: "subnet-0123456789abcdef" + itoa(i), Zone: region + zone,
			Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(16 * i), 0}), 20),
		})
	}
	return c
}

func (o *Options) setDefaults() {
	if o.Region == "" {
		o.Region = "us-east-1"
	}
	if o.Account == "" {
		o.Account = "123456789012"
	}
	if o.Credentials == nil {
		o.Credentials = []Credential{DefaultCredential}
	}
	if o.Catalog == nil {
		o.Catalog = DefaultCatalog(o.Region)
	}
	if o.PageSize == 0 {
		o.PageSize = 1000
	}
	if o.Capacity == nil {
		o.Capacity = &testcloud.Capacity{}
	}
	if o.Faults == nil {
		o.Faults = &testcloud.Faults{}
	}
}
