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
	"github.com/nstance-go/nstance/internal/nearest"
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
	FallbackEndpoints []string                `json:"fallback_endpoints" doc:"Base URLs of more nodes of the cluster, used in turn when the first does not take the connection."`
	CAFile            string                  `json:"ca_file" doc:"File with the authorities that verify the nodes' certificates, such as a copy of /etc/pve/pve-root-ca.pem; absent: those of the system."`
	TokenFile         string                  `json:"token_file" default:"environment variable PROXMOX_TOKEN" doc:"File that holds the API token as user@realm!id=secret."`
	Nodes             []string                `json:"nodes" default:"all" doc:"Nodes that machines may run on."`
	Pool              string                  `json:"pool" doc:"Resource pool that machines are put into."`
	ISOStorage        string                  `json:"iso_storage" default:"local" doc:"Storage with content type iso, for the images that carry user data; shared where machines may move between nodes."`
	MinVMID           int                     `json:"vmid_min" default:"10000" min:"100" max:"999999999" doc:"Lowest VMID of machines."`
	MaxVMID           int                     `json:"vmid_max" default:"999999999" min:"100" max:"999999999" doc:"Highest VMID of machines; leave room for at least 10,000."`
	InstanceTypes     map[string]InstanceType `json:"instance_types" doc:"Definitions of the instance types that groups and templates name."`
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
	Template     int    `json:"template" min:"100" max:"999999999" doc:"VMID of the template to clone; exactly one of template, template_name and the image of the machine template is given."`
	TemplateName string `json:"template_name" doc:"Name of the template to clone; there may be one on each node."`
	Full         bool   `json:"full" default:"false" doc:"Make full clones; else they share the template's disk."`
	Storage      string `json:"storage" default:"that of the template" doc:"Storage for the disks of full clones."`
	AnyNode      bool   `json:"any_node" default:"false" doc:"Put clones on other nodes than the template's; all its drives must be on shared storage."`
	Cores        int    `json:"cores" default:"that of the template" min:"1" max:"512" doc:"Processor cores, before those of the instance type."`
	Memory       int    `json:"memory" default:"that of the template" min:"16" doc:"Memory in MiB, before that of the instance type."`
	VLAN         int    `json:"vlan" min:"1" max:"4094" doc:"VLAN tag of the network card; needs a subnet, which names the bridge."`
	Firewall     bool   `json:"firewall" default:"false" doc:"Filter the network card by the firewall of Proxmox VE; needs a subnet."`
	OnBoot       bool   `json:"on_boot" default:"true" doc:"Start the machine again when its node has booted."`
	SeedDrive    string `json:"seed_drive" default:"ide2" doc:"Drive that the image with the user data is put into; a cloud-init drive of the template there is replaced."`
}

// managed are args that the system sets itself.
var managed = provider.Managed{
	"vmid": "the provider chooses it, between vmid_min and vmid_max", "newid": "the provider chooses it, between vmid_min and vmid_max",
	"name": "it is the instance ID", "tags": "they mark the owner", "description": "it holds the marks of the machine",
	"node": "list the permitted ones in shard.provider.options.nodes", "target": "list the permitted ones in shard.provider.options.nodes",
	"user_data": "use userdata of the template", "cicustom": "use userdata of the template", "pool": "set shard.provider.options.pool",
	"bridge": "use subnet_pool", "instance_type": "use instance_type of the group or template",
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
	return nil
}

func (o Options) withDefaults() Options {
	o.ISOStorage = cmp.Or(o.ISOStorage, "local")
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
	config map[string]string // what is set after the clone, marks and image apart
	memory uint64            // bytes; 0: that of the template
	cores  int               // 0: those of the template
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
	if err := pl.checkTemplate(); err != nil {
		return pl, err
	}
	return pl, pl.size(o)
}

// checkTemplate requires exactly one template.
func (pl *plan) checkTemplate() error {
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

// size finds out what the machine is to have.
func (pl *plan) size(o Options) error {
	a, name := &pl.args, pl.spec.InstanceType
	t, ok := o.InstanceTypes[name]
	if name != "" && !ok {
		return nstance.FieldError("instance_type", nearest.Remedy(name, slices.Sorted(maps.Keys(o.InstanceTypes))), "%.64q is not in shard.provider.options.instance_types", name)
	}
	cores, memory := cmp.Or(a.Cores, t.Cores), cmp.Or(a.Memory, t.Memory)
	switch {
	case cores < 0 || cores > 512:
		return nstance.FieldError("args.cores", "use 1 to 512", "%d is out of range", cores)
	case memory < 0 || memory > 0 && memory < 16:
		return nstance.FieldError("args.memory", "use at least 16", "%d MiB are too few", memory)
	case (a.VLAN != 0 || a.Firewall) && pl.spec.Subnet == "":
		return nstance.FieldError("args.vlan", "name a bridge in subnet_pool", "there is no subnet")
	case a.VLAN < 0 || a.VLAN > 4094:
		return nstance.FieldError("args.vlan", "use 1 to 4094", "%d is out of range", a.VLAN)
	case pl.spec.Subnet != "" && !bridgeName.MatchString(pl.spec.Subnet):
		return nstance.FieldError("subnet", "use the name of a bridge such as vmbr0", "%.64q is not one", pl.spec.Subnet)
	}
	pl.memory, pl.cores = uint64(memory)<<20, cores
	pl.config = map[string]string{"onboot": "0"}
	if a.OnBoot {
		pl.config["onboot"] = "1"
	}
	if cores > 0 {
		pl.config["cores"] = itoa(cores)
	}
	if memory > 0 {
		pl.config["memory"] = itoa(memory)
	}
	if pl.spec.Subnet != "" {
		net := "virtio,bridge=" + pl.spec.Subnet
		if a.VLAN != 0 {
			net += ",tag=" + itoa(a.VLAN)
		}
		if a.Firewall {
			net += ",firewall=1"
		}
		pl.config["net0"] = net
	}
	return nil
}
