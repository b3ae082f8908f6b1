package aws

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

// Args are what the args of a template may say of its machines: parameters of
// RunInstances that the system does not set itself.
type Args struct {
	SecurityGroupIDs    []string             `json:"security_group_ids" doc:"IDs of the security groups" default:"the VPC's default group"`
	SecurityGroupTags   map[string]string    `json:"security_group_tags" doc:"tags of more security groups: those of the subnet's VPC that have all of them, looked up every 5 minutes"`
	IAMInstanceProfile  string               `json:"iam_instance_profile" doc:"name or ARN of the instance profile whose role the machine has"`
	KeyName             string               `json:"key_name" doc:"name of the key pair for SSH"`
	Volumes             []Volume             `json:"volumes" doc:"EBS volumes; one with the device name of the image's root volume changes that" default:"those of the image"`
	PublicIP            *bool                `json:"public_ip" doc:"whether the machine gets a public IPv4 address" default:"as the subnet says"`
	IPv6Addresses       int32                `json:"ipv6_addresses" doc:"how many IPv6 addresses of the subnet the machine gets" default:"as the subnet says" min:"0"`
	IPv4Prefixes        int32                `json:"ipv4_prefixes" doc:"how many IPv4 prefixes (/28) the first network interface gets; for the VPC CNI's prefix delegation" min:"0" default:"0"`
	IPv6Prefixes        int32                `json:"ipv6_prefixes" doc:"how many IPv6 prefixes (/80) the first network interface gets" min:"0" default:"0"`
	EFA                 bool                 `json:"efa" doc:"whether the first network interface has an Elastic Fabric Adapter" default:"false"`
	NetworkInterfaces   []NetworkInterface   `json:"network_interfaces" doc:"network interfaces beside the first, in the same subnet; with any, public_ip cannot be true"`
	PrivateDNS          *PrivateDNS          `json:"private_dns" doc:"the machine's host name and its DNS records" default:"as the subnet says"`
	CPU                 *CPU                 `json:"cpu" doc:"cores, threads and features of the processor" default:"as the type says"`
	Enclaves            bool                 `json:"enclaves" doc:"whether the machine can run Nitro Enclaves" default:"false"`
	EBSOptimized        *bool                `json:"ebs_optimized" doc:"whether the machine has bandwidth of its own to its volumes" default:"as the type says"`
	CPUCredits          string               `json:"cpu_credits" doc:"behaviour of a burstable type without credits" enum:"standard|unlimited" default:"as the account says"`
	Monitoring          bool                 `json:"monitoring" doc:"whether CloudWatch gets figures every minute, which is charged" default:"false"`
	MetadataHopLimit    int32                `json:"metadata_hop_limit" doc:"how many network hops an answer of the metadata service may take; containers need 2" min:"1" max:"64" default:"as the image and the account say"`
	MetadataTags        bool                 `json:"metadata_tags" doc:"whether the machine can read its tags from the metadata service" default:"false"`
	Tenancy             string               `json:"tenancy" doc:"on whose hardware the machine runs" enum:"default|dedicated|host" default:"as the VPC says"`
	HostID              string               `json:"host_id" doc:"ID of the dedicated host, with tenancy host"`
	PlacementGroup      string               `json:"placement_group" doc:"name of the placement group"`
	PlacementPartition  int32                `json:"placement_partition" doc:"number of the partition, in a partition placement group" min:"1"`
	CapacityReservation *CapacityReservation `json:"capacity_reservation" doc:"which capacity reservation the machine uses" default:"any open one that fits"`
	Tags                map[string]string    `json:"tags" doc:"more tags of the machine, its volumes and its network interfaces, at most 40; those that begin with nstance: or aws: are not permitted"`
}

// A Volume is one EBS volume of a machine.
type Volume struct {
	Device          string `json:"device" doc:"device name, such as /dev/xvda" required:"true"`
	SizeGiB         int32  `json:"size_gib" doc:"size in GiB" default:"that of the snapshot" min:"1"`
	Type            string `json:"type" doc:"kind of volume" enum:"gp2|gp3|io1|io2|st1|sc1|standard" default:"gp2, or as the image says"`
	IOPS            int32  `json:"iops" doc:"operations a second; io1 and io2 need it" min:"100"`
	ThroughputMiB   int32  `json:"throughput_mib" doc:"MiB per second, of gp3" min:"125" max:"2000"`
	Encrypted       *bool  `json:"encrypted" doc:"whether the volume is encrypted" default:"as the snapshot and the account say"`
	KMSKeyID        string `json:"kms_key_id" doc:"ID, alias or ARN of the key, with encrypted" default:"the account's"`
	SnapshotID      string `json:"snapshot_id" doc:"ID of the snapshot that the volume is created from"`
	KeepAfterDelete bool   `json:"keep_after_delete" doc:"whether the volume stays, and is charged, when the machine is deleted" default:"false"`
}

// A NetworkInterface is one beside the first.
type NetworkInterface struct {
	Card             int32    `json:"card" doc:"index of the network card" min:"0" default:"0"`
	Device           *int32   `json:"device" doc:"index of the device on that card" min:"0" default:"1"`
	Type             string   `json:"type" doc:"efa has an Elastic Fabric Adapter; efa-only has that and no IP address" enum:"interface|efa|efa-only" default:"interface"`
	SecurityGroupIDs []string `json:"security_group_ids" doc:"IDs of its security groups" default:"those of the first"`
}

// PrivateDNS is how a machine is named in its VPC.
type PrivateDNS struct {
	HostnameType string `json:"hostname_type" doc:"what the host name is made of: the IPv4 address, or the instance ID" enum:"ip-name|resource-name" default:"as the subnet says"`
	ARecord      bool   `json:"a_record" doc:"whether the name by instance ID has an A record" default:"false"`
	AAAARecord   bool   `json:"aaaa_record" doc:"whether the name by instance ID has an AAAA record" default:"false"`
}

// CPU is what a machine has of its type's processor.
type CPU struct {
	Cores                int32 `json:"cores" doc:"number of cores, with threads_per_core" min:"1" default:"as the type says"`
	ThreadsPerCore       int32 `json:"threads_per_core" doc:"1 switches multithreading off; with cores" min:"1" max:"2" default:"as the type says"`
	AMDSEVSNP            bool  `json:"amd_sev_snp" doc:"whether AMD SEV-SNP encrypts the memory; types m6a, c6a and r6a" default:"false"`
	NestedVirtualization bool  `json:"nested_virtualization" doc:"whether the machine can run virtual machines" default:"false"`
}

// A CapacityReservation says which reservation a machine uses. At most one of the first
// three fields is set.
type CapacityReservation struct {
	Preference       string `json:"preference" doc:"without naming one" enum:"open|none|capacity-reservations-only"`
	ID               string `json:"id" doc:"ID of the reservation"`
	ResourceGroupARN string `json:"resource_group_arn" doc:"ARN of a resource group of reservations"`
	Block            bool   `json:"block" doc:"whether it is a capacity block, with id or resource_group_arn" default:"false"`
}

// BalancerArgs are what load_balancers.<name>.args may say of a target group.
type BalancerArgs struct {
	Port int32 `json:"port" doc:"port of the machines that the target group sends traffic to" min:"1" max:"65535" default:"the target group's"`
}

// managed are parameters of RunInstances that the system sets.
var managed = provider.Managed{
	"ami":                                  "set image in the template",
	"availability_zone":                    "a subnet has its zone: set subnet_pool in the template",
	"client_token":                         "leave it out",
	"disable_api_termination":              "set protect in the group",
	"hibernation":                          "set warm_pool.mode in the group",
	"hibernation_options":                  "set warm_pool.mode in the group",
	"http_tokens":                          "leave it out: session tokens are always required",
	"image":                                "set image in the template",
	"image_id":                             "set image in the template",
	"instance_initiated_shutdown_behavior": "leave it out: a machine that powers itself off is terminated",
	"instance_market_options":              "set market in the template",
	"instance_type":                        "set instance_type in the template",
	"market":                               "set market in the template",
	"max_count":                            "set size in the group",
	"max_price":                            "set market.max_price in the template",
	"min_count":                            "set size in the group",
	"region":                               "set shard.provider.region",
	"spot":                                 "set market.type to spot in the template",
	"spot_price":                           "set market.max_price in the template",
	"subnet":                               "set subnet_pool in the template",
	"subnet_id":                            "set subnet_pool in the template",
	"tag_specifications":                   "use tags",
	"user_data":                            "set userdata in the template",
}

// checkSpec refuses what EC2 would refuse, as far as that shows offline.
func checkSpec(_ provider.Settings, spec nstance.MachineSpec) error {
	_, err := decodeSpec(spec)
	return err
}

// decodeSpec checks spec and returns its arguments.
func decodeSpec(spec nstance.MachineSpec) (*Args, error) {
	if err := provider.ValidateSpec(spec, maxUserData); err != nil {
		return nil, err
	}
	var a Args
	if err := provider.DecodeArgs(spec.Args, &a, managed); err != nil {
		return nil, err
	}
	for _, err := range []error{
		checkImage(spec.Image), checkSubnet(spec.Subnet), checkType(spec.InstanceType),
		checkPrice(spec), a.check(), a.checkMarket(spec.Market), a.checkCredits(spec.InstanceType), a.checkIsolation(spec),
	} {
		if err != nil {
			return nil, err
		}
	}
	return &a, nil
}

// checkID accepts an empty ID, which only a running shard may have to fill in.
func checkID(field, prefix, id string) error {
	if id != "" && !strings.HasPrefix(id, prefix) {
		return nstance.FieldError(field, "use an ID such as "+prefix+"0123456789abcdef0", "%.64q is not such an ID of EC2", id)
	}
	return nil
}

// checkImage is checkID for an image, which images can name in another way.
func checkImage(id string) error {
	if strings.HasPrefix(id, parameterPrefix) {
		return nstance.FieldError("image", "write it as name in images, where it is looked up and pinned", "%.128q is no image ID", id)
	}
	return checkID("image", "ami-", id)
}

func checkSubnet(subnet string) error {
	if isSelector(subnet) {
		_, err := parseSubnet(subnet)
		return err
	}
	if subnet != "" && !strings.HasPrefix(subnet, "subnet-") {
		return nstance.FieldError("subnet", subnetRemedy, "%.64q is neither", subnet)
	}
	return nil
}

func checkType(name string) error {
	if family, size, ok := strings.Cut(name, "."); name != "" && (!ok || family == "" || size == "") {
		return nstance.FieldError("instance_type", "use a type such as m7g.large", "%.64q is not an instance type of EC2", name)
	}
	return nil
}

// minPrice is the lowest maximum price that EC2 accepts, in USD: it must be
// above this (SpotMarketOptions, EC2 API Reference).
const minPrice = 0.001

func checkPrice(spec nstance.MachineSpec) error {
	if spec.MaxPrice == "" || spec.Market != nstance.Spot {
		return nil
	}
	if price, err := strconv.ParseFloat(spec.MaxPrice, 64); err != nil || price <= minPrice {
		return nstance.FieldError("market.max_price", "leave it out for the on-demand price, or write more than 0.001", "%s is too low for EC2", spec.MaxPrice)
	}
	return nil
}

// Limits of tags ("Tag your Amazon EC2 resources", EC2 User Guide), counted in
// characters; 50 tags a resource, of which ours are 10.
const (
	maxTags     = 40
	maxTagKey   = 128
	maxTagValue = 256
)

func (a *Args) check() error {
	if err := a.checkNetwork(); err != nil {
		return err
	}
	if err := a.checkPlacement(); err != nil {
		return err
	}
	if err := a.CPU.check(); err != nil {
		return err
	}
	if err := oneOf("args.cpu_credits", a.CPUCredits, "standard", "unlimited"); err != nil {
		return err
	}
	if n := a.MetadataHopLimit; n < 0 || n > 64 {
		return nstance.FieldError("args.metadata_hop_limit", "use 1 to 64", "%d is out of range", n)
	}
	for i, v := range a.Volumes {
		if err := v.check(fmt.Sprintf("args.volumes[%d].", i)); err != nil {
			return err
		}
		same := func(w Volume) bool { return w.Device == v.Device }
		if slices.IndexFunc(a.Volumes, same) < i {
			return nstance.FieldError(fmt.Sprintf("args.volumes[%d].device", i), "use each device once", "%.64q is used twice", v.Device)
		}
	}
	if err := checkTags(a.Tags); err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(a.Tags)) {
		if a.MetadataTags && !metadataKey.MatchString(key) {
			return nstance.FieldError("args.metadata_tags", "leave it out, or use letters, digits and + - = . , _ : @ in keys", "the metadata service cannot show tag %.64q", key)
		}
	}
	return nil
}

// metadataKey matches keys of tags that the metadata service can show ("Access
// tags for your EC2 instances using instance metadata", EC2 User Guide).
var metadataKey = regexp.MustCompile(`^[a-zA-Z0-9+\-=.,_:@]+$`)

func (a *Args) checkNetwork() error {
	if err := checkGroups("args.security_group_ids", a.SecurityGroupIDs); err != nil {
		return err
	}
	if err := checkSelectorTags("args.security_group_tags", a.SecurityGroupTags); err != nil {
		return err
	}
	return a.checkInterfaces()
}

func checkGroups(field string, ids []string) error {
	for i, id := range ids {
		if !strings.HasPrefix(id, "sg-") {
			return nstance.FieldError(fmt.Sprintf("%s[%d]", field, i), "use an ID such as sg-0123456789abcdef0", "%.64q is not the ID of a security group", id)
		}
	}
	if len(ids) > maxSecurityGroups {
		return nstance.FieldError(field, fmt.Sprintf("use at most %d", maxSecurityGroups), "%d are more than a network interface can have", len(ids))
	}
	return nil
}

// maxInterfaces is what the largest types have beside the first ("Maximum IP addresses per
// network interface", EC2 User Guide).
const maxInterfaces = 63

// device is a place for a network interface.
type device struct{ card, index int32 }

func (n NetworkInterface) device() device {
	d := device{n.Card, 1}
	if n.Device != nil {
		d.index = *n.Device
	}
	return d
}

// checkInterfaces refuses what the types InstanceNetworkInterfaceSpecification and
// RunInstances (EC2 API Reference) exclude.
func (a *Args) checkInterfaces() error {
	if len(a.NetworkInterfaces) > maxInterfaces {
		return nstance.FieldError("args.network_interfaces", fmt.Sprintf("use at most %d", maxInterfaces), "%d are more than any type has", len(a.NetworkInterfaces))
	}
	if len(a.NetworkInterfaces) > 0 && a.PublicIP != nil && *a.PublicIP {
		return nstance.FieldError("args.public_ip", "leave it out", "a machine with several network interfaces gets no public address at launch")
	}
	used := map[device]bool{{}: true}
	for i, n := range a.NetworkInterfaces {
		path, at := fmt.Sprintf("args.network_interfaces[%d]", i), n.device()
		if used[at] {
			return nstance.FieldError(path+".device", "use each device of a card once; device 0 of card 0 is the first network interface", "device %d of card %d is used twice", at.index, at.card)
		}
		used[at] = true
		if err := checkGroups(path+".security_group_ids", n.SecurityGroupIDs); err != nil {
			return err
		}
	}
	return nil
}

// check refuses what no type permits ("CPU options for Amazon EC2 instances", EC2 User
// Guide: cores and threads are given together).
func (c *CPU) check() error {
	switch {
	case c == nil:
		return nil
	case *c == CPU{}:
		return nstance.FieldError("args.cpu", "set cores and threads_per_core, amd_sev_snp or nested_virtualization", "is empty")
	case (c.Cores == 0) != (c.ThreadsPerCore == 0):
		return nstance.FieldError("args.cpu", "set cores and threads_per_core, or neither", "EC2 takes them together only")
	}
	return nil
}

// checkIsolation refuses features that exclude each other ("AMD SEV-SNP for Amazon EC2
// instances", EC2 User Guide; "Requirements for Nitro Enclaves", Nitro Enclaves User Guide).
func (a *Args) checkIsolation(spec nstance.MachineSpec) error {
	snp := a.CPU != nil && a.CPU.AMDSEVSNP
	switch {
	case a.Enclaves && spec.Park == nstance.ParkHibernated:
		return nstance.FieldError("args.enclaves", "use warm_pool.mode stopped or running", "a machine with enclaves cannot hibernate")
	case snp && spec.Park == nstance.ParkHibernated:
		return nstance.FieldError("args.cpu.amd_sev_snp", "use warm_pool.mode stopped or running", "a machine with SEV-SNP cannot hibernate")
	case snp && a.Enclaves:
		return nstance.FieldError("args.enclaves", "leave it out, or cpu.amd_sev_snp", "a machine with SEV-SNP has no enclaves")
	case a.CPU != nil && (snp || a.CPU.NestedVirtualization) && spec.Arch == nstance.ARM64:
		return nstance.FieldError("args.cpu", "use arch amd64", "arm64 has neither SEV-SNP nor nested virtualization")
	}
	return nil
}

func (a *Args) checkPlacement() error {
	if err := oneOf("args.tenancy", a.Tenancy, "default", "dedicated", "host"); err != nil {
		return err
	}
	if a.HostID != "" && a.Tenancy != "host" {
		return nstance.FieldError("args.host_id", "set tenancy to host", "needs tenancy host")
	}
	if a.PlacementPartition < 0 || a.PlacementPartition > 0 && a.PlacementGroup == "" {
		return nstance.FieldError("args.placement_partition", "use 1 or more, with placement_group", "%d needs a placement group", a.PlacementPartition)
	}
	c := a.CapacityReservation
	if c == nil {
		return nil
	}
	if err := oneOf("args.capacity_reservation.preference", c.Preference, "open", "none", "capacity-reservations-only"); err != nil {
		return err
	}
	set := func(s string) bool { return s != "" }
	if given := []string{c.Preference, c.ID, c.ResourceGroupARN}; countFunc(given, set) != 1 {
		return nstance.FieldError("args.capacity_reservation", "set one of preference, id, resource_group_arn", "sets %d of its fields", countFunc(given, set))
	}
	if c.Block && c.Preference != "" {
		return nstance.FieldError("args.capacity_reservation.block", "set id or resource_group_arn", "a capacity block must be named")
	}
	return nil
}

func countFunc[T any](list []T, is func(T) bool) int {
	return len(slices.DeleteFunc(slices.Clone(list), func(v T) bool { return !is(v) }))
}

// checkMarket refuses what spot machines cannot have ("Spot Instances", EC2 User
// Guide: no dedicated hosts, no capacity reservations).
func (a *Args) checkMarket(m nstance.MarketType) error {
	if m != nstance.Spot {
		return nil
	}
	if a.Tenancy == "host" {
		return nstance.FieldError("args.tenancy", "use default or dedicated, or on-demand capacity", "spot machines cannot run on a dedicated host")
	}
	if c := a.CapacityReservation; c != nil && c.Preference != "none" {
		return nstance.FieldError("args.capacity_reservation", "leave it out, or use on-demand capacity", "spot machines cannot use a capacity reservation")
	}
	return nil
}

// checkCredits: "Burstable performance instances", EC2 User Guide, whose families begin
// with a t and a number.
func (a *Args) checkCredits(name string) error {
	if a.CPUCredits != "" && name != "" && !burstable.MatchString(name) {
		return nstance.FieldError("args.cpu_credits", "leave it out, or use a type such as t3.large", "%s earns no CPU credits", name)
	}
	return nil
}

var burstable = regexp.MustCompile(`^t[0-9]`)

// A volumeKind is what a type of volume may have, sizes in GiB (EbsBlockDevice, EC2 API
// Reference, and "Amazon EBS volume types", EBS User Guide).
type volumeKind struct {
	minGiB, maxGiB   int32
	minIOPS, maxIOPS int32 // 0: they cannot be given
	perGiB           int32 // IOPS
}

var volumeKinds = map[string]volumeKind{
	"gp2": {1, 16384, 0, 0, 0}, "gp3": {1, 65536, 3000, 80000, 500}, "io1": {4, 16384, 100, 64000, 50}, "io2": {4, 65536, 100, 256000, 1000},
	"st1": {125, 16384, 0, 0, 0}, "sc1": {125, 16384, 0, 0, 0}, "standard": {1, 1024, 0, 0, 0},
}

// freeIOPS are what a gp3 volume has in any case, and 4 of them carry a MiB/s of
// throughput.
const freeIOPS = 3000

// checkRange refuses what no volume of its type has.
func (v Volume) checkRange(path string) error {
	kind, known := volumeKinds[v.Type]
	switch {
	case !known:
		return nil
	case v.SizeGiB != 0 && (v.SizeGiB < kind.minGiB || v.SizeGiB > kind.maxGiB):
		return nstance.FieldError(path+"size_gib", fmt.Sprintf("use %d to %d", kind.minGiB, kind.maxGiB), "no volume of type %s has %d GiB", v.Type, v.SizeGiB)
	case v.IOPS != 0 && (v.IOPS < kind.minIOPS || v.IOPS > kind.maxIOPS):
		return nstance.FieldError(path+"iops", fmt.Sprintf("use %d to %d", kind.minIOPS, kind.maxIOPS), "no volume of type %s has %d IOPS", v.Type, v.IOPS)
	case v.IOPS != 0 && v.SizeGiB != 0 && int64(v.IOPS) > max(int64(kind.perGiB)*int64(v.SizeGiB), int64(kind.minIOPS)):
		return nstance.FieldError(path+"iops", fmt.Sprintf("use at most %d for each GiB", kind.perGiB), "%d are too many for %d GiB of type %s", v.IOPS, v.SizeGiB, v.Type)
	case v.ThroughputMiB != 0 && 4*v.ThroughputMiB > max(v.IOPS, freeIOPS):
		return nstance.FieldError(path+"throughput_mib", fmt.Sprintf("set iops to %d, or use at most %d", 4*v.ThroughputMiB, max(v.IOPS, freeIOPS)/4), "%d MiB/s need 4 IOPS each", v.ThroughputMiB)
	}
	return nil
}

func (v Volume) check(path string) error {
	if v.Device == "" {
		return nstance.FieldError(path+"device", "use a name such as /dev/xvda", "is empty")
	}
	if err := oneOf(path+"type", v.Type, "gp2", "gp3", "io1", "io2", "st1", "sc1", "standard"); err != nil {
		return err
	}
	provisioned := v.Type == "io1" || v.Type == "io2"
	switch {
	case v.SizeGiB < 0:
		return nstance.FieldError(path+"size_gib", "use 1 or more", "%d is negative", v.SizeGiB)
	case v.SizeGiB == 0 && v.SnapshotID == "" && provisioned:
		return nstance.FieldError(path+"size_gib", "give a size or a snapshot", "is empty")
	case provisioned && v.IOPS == 0:
		return nstance.FieldError(path+"iops", "use 100 or more", "is needed for type %s", v.Type)
	case v.IOPS != 0 && (v.IOPS < 100 || !provisioned && v.Type != "gp3"):
		return nstance.FieldError(path+"iops", "use 100 or more, with type gp3, io1 or io2", "%d does not fit type %q", v.IOPS, v.Type)
	case v.ThroughputMiB != 0 && (v.Type != "gp3" || v.ThroughputMiB < 125 || v.ThroughputMiB > 2000):
		return nstance.FieldError(path+"throughput_mib", "use 125 to 2000, with type gp3", "%d does not fit type %q", v.ThroughputMiB, v.Type)
	case v.KMSKeyID != "" && (v.Encrypted == nil || !*v.Encrypted):
		return nstance.FieldError(path+"kms_key_id", "set encrypted to true", "needs an encrypted volume")
	}
	return v.checkRange(path)
}

func checkTags(tags map[string]string) error {
	if len(tags) > maxTags {
		return nstance.FieldError("args.tags", fmt.Sprintf("use at most %d", maxTags), "%d tags are too many", len(tags))
	}
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		field, lower := fmt.Sprintf("args.tags.%.64s", key), strings.ToLower(key)
		switch {
		case strings.HasPrefix(lower, "aws:"):
			return nstance.FieldError(field, "use another prefix", "AWS keeps the prefix aws: to itself")
		case strings.HasPrefix(lower, tagPrefix):
			return nstance.FieldError(field, "use another prefix", "tags with the prefix %s are set by the system", tagPrefix)
		case key == "" || len([]rune(key)) > maxTagKey:
			return nstance.FieldError(field, fmt.Sprintf("use 1 to %d characters", maxTagKey), "the key has %d characters", len([]rune(key)))
		case len([]rune(tags[key])) > maxTagValue:
			return nstance.FieldError(field, fmt.Sprintf("use at most %d characters", maxTagValue), "the value has %d characters", len([]rune(tags[key])))
		}
	}
	return nil
}

func oneOf(field, word string, words ...string) error {
	if word != "" && !slices.Contains(words, word) {
		return nstance.FieldError(field, "use one of "+strings.Join(words, ", "), "%.64q is not known", word)
	}
	return nil
}
