package proxmox

import (
	"cmp"
	"errors"
	"maps"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/validate"
	"github.com/nstance-go/nstance/provider"
)

// TokenVariable is where the API token is when no file is named.
const TokenVariable = "PROXMOX_TOKEN"

// The VMIDs that Proxmox VE has (pve-common, JSONSchema.pm), from the floor on
// below which users number their own machines.
const (
	defaultMinVMID = 10_000
	maxVMID        = 999_999_999
)

// Options are shard.provider.options of kind proxmox.
type Options struct {
	Endpoint          string                  `json:"endpoint" required:"true" doc:"Base URL of a node, such as https://pve1.example.org:8006."`
	FallbackEndpoints []string                `json:"fallback_endpoints" doc:"Base URLs of more nodes of the cluster, used in turn when one does not answer."`
	CAFile            string                  `json:"ca_file" doc:"File with the authorities that verify the nodes' certificates, such as a copy of /etc/pve/pve-root-ca.pem; absent: those of the system."`
	TokenFile         string                  `json:"token_file" default:"environment variable PROXMOX_TOKEN" doc:"File that holds the API token as user@realm!id=secret."`
	Nodes             []string                `json:"nodes" default:"all" doc:"Nodes that machines may run on."`
	Pool              string                  `json:"pool" doc:"Resource pool that machines are put into."`
	ISOStorage        string                  `json:"iso_storage" default:"local" doc:"Storage with content type iso, for the images that carry user data; shared where machines may move between nodes."`
	MinVMID           int                     `json:"vmid_min" default:"10000" min:"100" max:"999999999" doc:"Lowest VMID of machines."`
	MaxVMID           int                     `json:"vmid_max" default:"999999999" min:"100" max:"999999999" doc:"Highest VMID of machines; leave room for at least 10,000."`
	InstanceTypes     map[string]InstanceType `json:"instance_types" doc:"Definitions of the instance types that groups and templates name."`
	AddressPools      map[string]AddressPool  `json:"address_pools" doc:"Static addresses for machines, by the names that args.address_pool uses."`
	MemoryPercent     int                     `json:"memory_percent" default:"100" min:"10" max:"1000" doc:"Share of a node's memory that machines may be assigned to, in percent: less leaves memory to the node, more than 100 overcommits it."`
	PollInterval      provider.Duration       `json:"poll_interval" default:"1s" doc:"Interval at which a task is polled until it ends, up to 1m."`
	NoticeInterval    provider.Duration       `json:"notice_interval" default:"10s" doc:"Interval at which the nodes' states are polled, up to 1h."`
}

// An InstanceType is a size of machine.
type InstanceType struct {
	Cores  int `json:"cores" min:"1" max:"512" required:"true" doc:"Processor cores."`
	Memory int `json:"memory" min:"16" required:"true" doc:"Memory in MiB."`
}

// Args are the args of templates and groups for kind proxmox.
type Args struct {
	Template     int         `json:"template" min:"100" max:"999999999" doc:"VMID of the template to clone; exactly one of template, template_name and the image of the machine template is given."`
	TemplateName string      `json:"template_name" doc:"Name of the template to clone; there may be one on each node."`
	Full         bool        `json:"full" default:"false" doc:"Make full clones; else they share the template's disk."`
	Storage      string      `json:"storage" default:"that of the template" doc:"Storage for the disks of full clones."`
	AnyNode      bool        `json:"any_node" default:"false" doc:"Put clones on other nodes than the template's; all its drives must be on shared storage."`
	Nodes        []string    `json:"nodes" default:"those of the options" doc:"Nodes that these machines may run on."`
	Pool         string      `json:"pool" default:"that of the options" doc:"Resource pool that these machines are put into."`
	Cores        int         `json:"cores" default:"that of the template" min:"1" max:"512" doc:"Processor cores of a socket, before those of the instance type."`
	Sockets      int         `json:"sockets" default:"1, or that of the template without cores" min:"1" max:"16" doc:"Processor sockets; needs cores, here or in the instance type."`
	CPUType      string      `json:"cpu_type" default:"that of the template" doc:"Type of the processor, such as host, x86-64-v2-AES or custom-NAME."`
	NUMA         bool        `json:"numa" default:"that of the template" doc:"Emulate a NUMA node for each socket."`
	Memory       int         `json:"memory" default:"that of the template" min:"16" doc:"Memory in MiB, before that of the instance type."`
	Disk         int         `json:"disk" default:"that of the template" min:"1" max:"131072" doc:"Size in GiB that the boot disk is enlarged to; at least that of the template."`
	Disks        []Disk      `json:"disks" doc:"Further disks, made empty and deleted with the machine."`
	Model        string      `json:"model" default:"virtio" enum:"virtio|e1000|e1000e|rtl8139|vmxnet3" doc:"Model of the network card; needs a subnet"`
	VLAN         int         `json:"vlan" min:"1" max:"4094" doc:"VLAN tag of the network card; needs a subnet, which names the bridge."`
	MTU          int         `json:"mtu" default:"chosen by Proxmox VE" min:"1" max:"65520" doc:"MTU of the network card, 1 for that of the bridge; needs model virtio and a subnet."`
	Firewall     bool        `json:"firewall" default:"false" doc:"Filter the network card by the firewall of Proxmox VE; needs a subnet."`
	Networks     []Network   `json:"networks" doc:"Further network cards, from net1 on."`
	AddressPool  string      `json:"address_pool" doc:"Pool in shard.provider.options.address_pools that the network card's address is from; needs a subnet. Absent: the guest decides, by DHCP as a rule."`
	PCI          []PCIDevice `json:"pci" doc:"PCI devices of the node, such as GPUs, by their mappings, from hostpci0 on."`
	OnBoot       bool        `json:"on_boot" default:"true" doc:"Start the machine again when its node has booted."`
	SeedDrive    string      `json:"seed_drive" default:"ide2" doc:"Drive that the image with the user data is put into; a cloud-init drive of the template there is replaced."`
}

// managed are args that the system sets itself.
var managed = provider.Managed{
	"vmid": "the provider chooses it, between vmid_min and vmid_max", "newid": "the provider chooses it, between vmid_min and vmid_max",
	"name": "it is the instance ID", "tags": "they mark the owner", "description": "it holds the marks of the machine",
	"node": "list the permitted ones in nodes", "target": "list the permitted ones in nodes",
	"user_data": "use userdata of the template", "cicustom": "use userdata of the template",
	"bridge": "use subnet_pool", "instance_type": "use instance_type of the group or template", "ipconfig0": "use address_pool",
}

var (
	simpleName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)
	typeName   = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,62}$`)
	driveName  = regexp.MustCompile(`^(ide[0-3]|sata[0-5]|scsi([12]?[0-9]|30))$`)
	bridgeName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,14}$`)
)

func (o Options) check() error {
	if o.Endpoint == "" {
		return nstance.FieldError("options.endpoint", "give the base URL of a node, such as https://pve1.example.org:8006", "is missing")
	}
	for _, e := range append([]string{o.Endpoint}, o.FallbackEndpoints...) {
		if u, err := url.Parse(e); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || strings.Trim(u.Path, "/") != "" {
			return nstance.FieldError("options.endpoint", "write it as https://pve1.example.org:8006, without a path", "%.64q is not the base URL of a node", e)
		}
	}
	for _, n := range append(slices.Clone(o.Nodes), cmp.Or(o.Pool, "-"), cmp.Or(o.ISOStorage, "-")) {
		if n != "-" && !simpleName.MatchString(n) {
			return nstance.FieldError("options.nodes", "use letters, digits, dots, hyphens and underscores in names of nodes, pools and storage", "%.64q is not a name", n)
		}
	}
	if err := errors.Join(
		validate.Setting("options.poll_interval", time.Duration(o.PollInterval), time.Minute),
		validate.Setting("options.notice_interval", time.Duration(o.NoticeInterval), time.Hour),
	); err != nil {
		return err
	}
	o = o.withDefaults()
	if o.MinVMID < 100 || o.MaxVMID > maxVMID || o.MaxVMID < o.MinVMID {
		return nstance.FieldError("options.vmid_min", "use a range between 100 and 999999999", "%d to %d is not a range of VMIDs", o.MinVMID, o.MaxVMID)
	}
	for _, name := range slices.Sorted(maps.Keys(o.InstanceTypes)) {
		if t := o.InstanceTypes[name]; !typeName.MatchString(name) || t.Cores < 1 || t.Memory < 16 {
			return nstance.FieldError("options.instance_types", "use lower-case names, at least one core and 16 MiB", "%.64q is not a usable type", name)
		}
	}
	if o.MemoryPercent < 10 || o.MemoryPercent > 1000 {
		return nstance.FieldError("options.memory_percent", "use 10 to 1000", "%d is out of range", o.MemoryPercent)
	}
	return o.checkAddressPools()
}

func (o Options) withDefaults() Options {
	o.ISOStorage = cmp.Or(o.ISOStorage, "local")
	o.MemoryPercent = cmp.Or(o.MemoryPercent, 100)
	o.MinVMID, o.MaxVMID = cmp.Or(o.MinVMID, defaultMinVMID), cmp.Or(o.MaxVMID, maxVMID)
	o.PollInterval = cmp.Or(o.PollInterval, provider.Duration(time.Second))
	o.NoticeInterval = cmp.Or(o.NoticeInterval, provider.Duration(10*time.Second))
	return o
}

// token returns the API token.
func (o Options) token() (string, error) {
	token, from := os.Getenv(TokenVariable), "$"+TokenVariable
	if o.TokenFile != "" {
		b, err := os.ReadFile(o.TokenFile)
		if err != nil {
			return "", nstance.FieldError("options.token_file", "name a file that the server may read", "%v", err)
		}
		token, from = string(b), o.TokenFile
	}
	token = strings.TrimSpace(token)
	user, secret, ok := strings.Cut(token, "=")
	if !ok || secret == "" || !strings.Contains(user, "@") || !strings.Contains(user, "!") {
		return "", nstance.FieldError("options.token_file", "make one with pveum user token add and write it as user@realm!id=secret", "%s holds no API token", from)
	}
	return token, nil
}

// A plan is a checked spec.
type plan struct {
	spec   nstance.MachineSpec
	args   Args
	print  string            // of the whole spec
	config map[string]string // what is set after the clone, marks, image and address apart
	memory uint64            // bytes; 0: that of the template
	cpus   int               // of all sockets; 0: those of the template
	pool   *addressPool      // nil: the machine gets no static address
}

// plan refuses what Create would refuse, as far as that shows offline.
func (o Options) plan(spec nstance.MachineSpec) (plan, error) {
	pl := plan{spec: spec, args: Args{OnBoot: true}, print: provider.Fingerprint(spec)[:20]}
	anyHost := spec
	anyHost.HostLimit = 0
	if err := provider.ValidateSpec(anyHost, maxUserData); err != nil {
		return pl, err
	}
	if spec.HostLimit < 0 {
		return pl, nstance.FieldError("spread.max_share", "use a share such as 34%, or leave spread out", "is negative")
	}
	if spec.Market == nstance.Spot {
		return pl, nstance.FieldError("market.type", "use on-demand", "Proxmox VE has no spot capacity")
	}
	if err := provider.DecodeArgs(spec.Args, &pl.args, managed); err != nil {
		return pl, err
	}
	if err := checkOwner(spec.Owner); err != nil {
		return pl, err
	}
	if spec.Arch != "" && spec.Arch != nstance.AMD64 && spec.Arch != nstance.ARM64 {
		return pl, nstance.FieldError("arch", "use amd64 or arm64", "%.64q is not known", spec.Arch)
	}
	for _, check := range []func(Options) error{pl.checkTemplate, pl.checkPlaces, pl.setSize, pl.setCards, pl.setDisks, pl.setDevices, pl.setAddressPool, pl.checkNotes} {
		if err := check(o); err != nil {
			return pl, err
		}
	}
	return pl, nil
}

// checkTemplate requires exactly one template.
func (pl *plan) checkTemplate(Options) error {
	a := &pl.args
	given := 0
	for _, set := range []bool{a.Template != 0, a.TemplateName != "", pl.spec.Image != ""} {
		if set {
			given++
		}
	}
	switch {
	case given != 1:
		return nstance.FieldError("args.template", "give exactly one of args.template, args.template_name and image", "%d templates are named", given)
	case a.Template != 0 && (a.Template < 100 || a.Template > maxVMID):
		return nstance.FieldError("args.template", "use the template's VMID", "%d is not a VMID", a.Template)
	case a.Storage != "" && !a.Full:
		return nstance.FieldError("args.storage", "set args.full, or leave it out", "linked clones are on the template's storage")
	case a.Storage != "" && !simpleName.MatchString(a.Storage):
		return nstance.FieldError("args.storage", "", "%.64q is not the name of a storage", a.Storage)
	case a.SeedDrive != "" && !driveName.MatchString(a.SeedDrive):
		return nstance.FieldError("args.seed_drive", "use ide0 to ide3, sata0 to sata5 or scsi0 to scsi30", "%.64q is not a drive", a.SeedDrive)
	}
	if pl.spec.Image != "" {
		a.TemplateName = pl.spec.Image
		if id := atoi(pl.spec.Image); id >= 100 {
			a.Template, a.TemplateName = id, ""
		}
	}
	return nil
}
