package ec2test

// machineItem is the type Instance of the API.
type machineItem struct {
	ID              string          `xml:"instanceId"`
	Image           string          `xml:"imageId"`
	State           stateItem       `xml:"instanceState"`
	PrivateName     string          `xml:"privateDnsName"`
	PublicName      string          `xml:"dnsName"`
	Transition      string          `xml:"reason"`
	Key             string          `xml:"keyName,omitempty"`
	LaunchIndex     int             `xml:"amiLaunchIndex"`
	Type            string          `xml:"instanceType"`
	Launched        string          `xml:"launchTime"`
	Placement       placementItem   `xml:"placement"`
	Monitoring      stateOnly       `xml:"monitoring"`
	Subnet          string          `xml:"subnetId,omitempty"`
	VPC             string          `xml:"vpcId,omitempty"`
	Address         string          `xml:"privateIpAddress,omitempty"`
	Groups          []groupItem     `xml:"groupSet>item"`
	Reason          *StateReason    `xml:"stateReason"`
	Architecture    string          `xml:"architecture"`
	RootType        string          `xml:"rootDeviceType"`
	RootName        string          `xml:"rootDeviceName"`
	Devices         []deviceItem    `xml:"blockDeviceMapping>item"`
	Virtualization  string          `xml:"virtualizationType"`
	Lifecycle       string          `xml:"instanceLifecycle,omitempty"`
	SpotRequest     string          `xml:"spotInstanceRequestId,omitempty"`
	Token           string          `xml:"clientToken"`
	Tags            []tagItem       `xml:"tagSet>item"`
	Hypervisor      string          `xml:"hypervisor"`
	Interfaces      []interfaceItem `xml:"networkInterfaceSet>item"`
	Profile         *profileItem    `xml:"iamInstanceProfile"`
	EBSOptimized    bool            `xml:"ebsOptimized"`
	ENA             bool            `xml:"enaSupport"`
	CPU             cpuItem         `xml:"cpuOptions"`
	Hibernation     configuredItem  `xml:"hibernationOptions"`
	MetadataOptions metadataItem    `xml:"metadataOptions"`
	Enclave         enclaveItem     `xml:"enclaveOptions"`
	PrivateDNS      privateDNSItem  `xml:"privateDnsNameOptions"`
	Reservation     string          `xml:"capacityReservationId,omitempty"`
}

type enclaveItem struct {
	Enabled bool `xml:"enabled"`
}

type privateDNSItem struct {
	Kind string `xml:"hostnameType"`
	A    bool   `xml:"enableResourceNameDnsARecord"`
	AAAA bool   `xml:"enableResourceNameDnsAAAARecord"`
}

type stateItem struct {
	Code state  `xml:"code"`
	Name string `xml:"name"`
}

type stateOnly struct {
	State string `xml:"state"`
}

type placementItem struct {
	Zone    string `xml:"availabilityZone"`
	Group   string `xml:"groupName"`
	Tenancy string `xml:"tenancy"`
}

type groupItem struct {
	ID   string `xml:"groupId"`
	Name string `xml:"groupName"`
}

type deviceItem struct {
	Name string `xml:"deviceName"`
	EBS  struct {
		Volume   string `xml:"volumeId"`
		Status   string `xml:"status"`
		Attached string `xml:"attachTime"`
		Delete   bool   `xml:"deleteOnTermination"`
	} `xml:"ebs"`
}

type profileItem struct {
	ARN string `xml:"arn"`
	ID  string `xml:"id"`
}

type cpuItem struct {
	Cores   int    `xml:"coreCount"`
	Threads int    `xml:"threadsPerCore"`
	SNP     string `xml:"amdSevSnp,omitempty"`
}

// cpu is what a machine has of its type's processor.
func (m *machine) cpu() cpuItem {
	o := m.launch.CpuOptions
	if o.CoreCount == 0 {
		return cpuItem{max(1, m.kind.VCPUs/2), 2, o.AmdSevSnp}
	}
	return cpuItem{o.CoreCount, o.ThreadsPerCore, o.AmdSevSnp}
}

type configuredItem struct {
	Configured bool `xml:"configured"`
}

type metadataItem struct {
	State    string `xml:"state"`
	Tokens   string `xml:"httpTokens"`
	HopLimit int    `xml:"httpPutResponseHopLimit"`
	Endpoint string `xml:"httpEndpoint"`
	Tags     string `xml:"instanceMetadataTags"`
}

// interfaceItem is the type InstanceNetworkInterface, and most of the type
// NetworkInterface.
type interfaceItem struct {
	ID          string             `xml:"networkInterfaceId"`
	Subnet      string             `xml:"subnetId"`
	VPC         string             `xml:"vpcId"`
	Zone        string             `xml:"availabilityZone,omitempty"`
	Description string             `xml:"description"`
	Owner       string             `xml:"ownerId"`
	Status      string             `xml:"status"`
	Address     string             `xml:"privateIpAddress"`
	PrivateName string             `xml:"privateDnsName"`
	SourceCheck bool               `xml:"sourceDestCheck"`
	Groups      []groupItem        `xml:"groupSet>item"`
	Attachment  attachmentItem     `xml:"attachment"`
	Addresses   []interfaceAddress `xml:"privateIpAddressesSet>item"`
	Kind        string             `xml:"interfaceType"`
	Prefixes    []prefixItem       `xml:"ipv4PrefixSet>item"`
}

type prefixItem struct {
	Prefix string `xml:"ipv4Prefix"`
}

type attachmentItem struct {
	ID       string `xml:"attachmentId"`
	Machine  string `xml:"instanceId,omitempty"`
	Index    int    `xml:"deviceIndex"`
	Status   string `xml:"status"`
	Attached string `xml:"attachTime"`
	Delete   bool   `xml:"deleteOnTermination"`
	Card     int    `xml:"networkCardIndex"`
}

type interfaceAddress struct {
	Address string `xml:"privateIpAddress"`
	Name    string `xml:"privateDnsName"`
	Primary bool   `xml:"primary"`
}

// item is a machine in answers. A terminated one has no network.
func (m *machine) item(o *Options, tags bool) machineItem {
	in := m.launch
	out := machineItem{
		ID: m.id, Image: m.image.ID, State: m.state.item(), Transition: m.transition, Key: in.KeyName, LaunchIndex: m.launchIndex,
		Type: m.kind.Name, Launched: stamp(m.launched), Placement: placementItem{m.zone, in.Placement.GroupName, "default"},
		Monitoring: stateOnly{"disabled"}, Reason: m.reason, Architecture: m.image.Arch, RootType: "ebs", RootName: rootDevice,
		Virtualization: "hvm", Token: in.ClientToken, Hypervisor: "xen", EBSOptimized: in.EbsOptimized, ENA: true, CPU: m.cpu(),
		Hibernation: configuredItem{in.HibernationOptions.Configured}, MetadataOptions: in.MetadataOptions.item(),
		Enclave: enclaveItem{in.EnclaveOptions.Enabled}, Reservation: m.capacityReservation,
		PrivateDNS: privateDNSItem{orElse(in.PrivateDnsNameOptions.HostnameType, "ip-name"), in.PrivateDnsNameOptions.EnableResourceNameDnsARecord, in.PrivateDnsNameOptions.EnableResourceNameDnsAAAARecord},
	}
	if in.inBlock() {
		out.Lifecycle = "capacity-block"
	}
	if in.Monitoring.Enabled {
		out.Monitoring.State = "enabled"
	}
	if in.Placement.Tenancy != "" {
		out.Placement.Tenancy = in.Placement.Tenancy
	}
	if m.spot != nil {
		out.Lifecycle, out.SpotRequest = "spot", m.spot.id
	}
	if tags {
		out.Tags = tagItems(m.tags)
	}
	if name := in.IamInstanceProfile.Name; name != "" {
		out.Profile = &profileItem{"arn:aws:iam::" + o.Account + ":instance-profile/" + name, "AIPA0123456789EXAMPLE"}
	} else if arn := in.IamInstanceProfile.Arn; arn != "" {
		out.Profile = &profileItem{arn, "AIPA0123456789EXAMPLE"}
	}
	if len(m.interfaces) > 0 {
		out.Subnet, out.VPC, out.Address = m.subnet().ID, o.Catalog.VPC, m.address().String()
		out.PrivateName = privateName(m.address(), o.Region)
		out.Groups = groupItems(m.interfaces[0].groups)
		var root deviceItem
		root.Name, root.EBS.Volume, root.EBS.Status, root.EBS.Attached, root.EBS.Delete = rootDevice, m.volume, "attached", stamp(m.created), true
		out.Devices = []deviceItem{root}
	}
	for _, i := range m.interfaces {
		n := i.item(o)
		n.Zone, n.Attachment.Machine = "", "" // not part of InstanceNetworkInterface
		out.Interfaces = append(out.Interfaces, n)
	}
	return out
}

func (s state) item() stateItem { return stateItem{s, s.String()} }

func (m metadataInput) item() metadataItem {
	out := metadataItem{State: "applied", Tokens: orElse(m.HttpTokens, "optional"), HopLimit: 1, Endpoint: orElse(m.HttpEndpoint, "enabled"), Tags: orElse(m.InstanceMetadataTags, "disabled")}
	if m.HttpPutResponseHopLimit != nil {
		out.HopLimit = *m.HttpPutResponseHopLimit
	}
	return out
}

func groupItems(ids []string) []groupItem {
	var out []groupItem
	for _, id := range ids {
		out = append(out, groupItem{id, "default"})
	}
	return out
}

func (i *netInterface) item(o *Options) interfaceItem {
	out := interfaceItem{
		ID: i.id, Subnet: i.subnet.ID, VPC: o.Catalog.VPC, Zone: i.subnet.Zone, Description: i.description, Owner: o.Account, Status: "in-use",
		SourceCheck: true, Groups: groupItems(i.groups),
		Attachment: attachmentItem{i.attachment, i.machine.id, i.deviceIndex, "attached", stamp(i.attached), true, i.card}, Kind: orElse(i.kind, "interface"),
	}
	for _, p := range i.prefixes {
		out.Prefixes = append(out.Prefixes, prefixItem{p.String()})
	}
	if len(i.addresses) == 0 {
		return out
	}
	out.Address, out.PrivateName = i.addresses[0].String(), privateName(i.addresses[0], o.Region)
	for n, a := range i.addresses {
		out.Addresses = append(out.Addresses, interfaceAddress{a.String(), privateName(a, o.Region), n == 0})
	}
	return out
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
