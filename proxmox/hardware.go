package proxmox

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/nearest"
)

// A Disk is a further disk of a machine.
type Disk struct {
	Drive    string `json:"drive" required:"true" doc:"Drive of the disk, such as scsi1 or virtio1; the template has none there."`
	Size     int    `json:"size" required:"true" min:"1" max:"131072" doc:"Size in GiB."`
	Storage  string `json:"storage" required:"true" doc:"Storage with content type images."`
	SSD      bool   `json:"ssd" default:"false" doc:"Present the disk as an SSD; not with virtio."`
	Discard  bool   `json:"discard" default:"false" doc:"Give freed space back to the storage."`
	IOThread bool   `json:"iothread" default:"false" doc:"Use a thread of its own for the disk; only with scsi and virtio."`
}

// A Network is a further network card of a machine.
type Network struct {
	Bridge   string `json:"bridge" required:"true" doc:"Bridge or VNet of the network card."`
	Model    string `json:"model" default:"virtio" enum:"virtio|e1000|e1000e|rtl8139|vmxnet3" doc:"Model of the network card"`
	VLAN     int    `json:"vlan" min:"1" max:"4094" doc:"VLAN tag."`
	MTU      int    `json:"mtu" default:"chosen by Proxmox VE" min:"1" max:"65520" doc:"MTU, 1 for that of the bridge; needs model virtio."`
	Firewall bool   `json:"firewall" default:"false" doc:"Filter it by the firewall of Proxmox VE."`
}

// A PCIDevice is a device of the node that a machine gets.
type PCIDevice struct {
	Mapping    string `json:"mapping" required:"true" doc:"Name of the resource mapping, which lists devices of the nodes."`
	PCIe       bool   `json:"pcie" default:"false" doc:"Use the PCI Express bus; the template needs machine type q35."`
	MDev       string `json:"mdev" doc:"Type of mediated device, such as nvidia-63, for a share of a GPU."`
	PrimaryGPU bool   `json:"primary_gpu" default:"false" doc:"Make the device the machine's primary GPU."`
}

// How many cards and devices a machine may have (qemu-server, QemuServer/Network.pm and
// QemuServer/PCI.pm).
const (
	maxCards   = 32
	maxDevices = 16
)

var (
	diskName    = regexp.MustCompile(`^(ide[0-3]|sata[0-5]|scsi([12]?[0-9]|30)|virtio([0-9]|1[0-5]))$`)
	cpuType     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	configID    = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{1,63}$`) // pve-common, JSONSchema.pm pve-configid
	mdevType    = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	storageName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._-]*[A-Za-z0-9]$`) // pve-common, JSONSchema.pm parse_storage_id
	cardModels  = []string{"virtio", "e1000", "e1000e", "rtl8139", "vmxnet3"}
)

// checkPlaces checks which nodes and which resource pool are named.
func (pl *plan) checkPlaces(o Options) error {
	for i, n := range pl.args.Nodes {
		field := fmt.Sprintf("args.nodes[%d]", i)
		if !simpleName.MatchString(n) {
			return nstance.FieldError(field, "use the name of a node", "%.64q is not one", n)
		}
		if len(o.Nodes) > 0 && !slices.Contains(o.Nodes, n) {
			return nstance.FieldError(field, nearest.Remedy(n, o.Nodes), "%.64q is not in shard.provider.options.nodes", n)
		}
	}
	if pl.args.Pool != "" && !simpleName.MatchString(pl.args.Pool) {
		return nstance.FieldError("args.pool", "use the name of a resource pool", "%.64q is not one", pl.args.Pool)
	}
	return nil
}

// setSize sets processors and memory.
func (pl *plan) setSize(o Options) error {
	a, name := &pl.args, pl.spec.InstanceType
	t, ok := o.InstanceTypes[name]
	if name != "" && !ok {
		return nstance.FieldError("instance_type", nearest.Remedy(name, slices.Sorted(maps.Keys(o.InstanceTypes))), "%.64q is not in shard.provider.options.instance_types", name)
	}
	cores, memory := cmp.Or(a.Cores, t.Cores), cmp.Or(a.Memory, t.Memory)
	pl.memory, pl.cpus = uint64(memory)<<20, cores*max(a.Sockets, 1)
	switch {
	case cores < 0 || pl.cpus > 512:
		return nstance.FieldError("args.cores", "use 1 to 512, those of all sockets together", "%d is out of range", pl.cpus)
	case a.Sockets > 0 && cores == 0:
		return nstance.FieldError("args.sockets", "set args.cores too, or an instance type", "the number of cores is not given")
	case memory < 0 || memory > 0 && memory < 16:
		return nstance.FieldError("args.memory", "use at least 16", "%d MiB are too few", memory)
	case a.CPUType != "" && !cpuType.MatchString(a.CPUType):
		return nstance.FieldError("args.cpu_type", "use a type such as host or x86-64-v2-AES, without flags", "%.64q is not the name of a type", a.CPUType)
	}
	pl.config = map[string]string{"onboot": "0"}
	for key, set := range map[string]bool{"onboot": a.OnBoot, "numa": a.NUMA} {
		if set {
			pl.config[key] = "1"
		}
	}
	for key, n := range map[string]int{"cores": cores, "sockets": a.Sockets, "memory": memory} {
		if n > 0 {
			pl.config[key] = itoa(n)
		}
	}
	if a.CPUType != "" {
		pl.config["cpu"] = a.CPUType
	}
	return nil
}

// setCards sets the network cards. Without a subnet the first one is the template's.
func (pl *plan) setCards(Options) error {
	a := &pl.args
	first := Network{Bridge: pl.spec.Subnet, Model: a.Model, VLAN: a.VLAN, MTU: a.MTU, Firewall: a.Firewall}
	if first.Bridge == "" && first != (Network{}) {
		field := map[bool]string{true: "args.vlan", false: "args.model"}[a.VLAN != 0 || a.Firewall]
		return nstance.FieldError(field, "name a bridge in subnet_pool", "there is no subnet")
	}
	if len(a.Networks) > maxCards-1 {
		return nstance.FieldError("args.networks", "use at most 31", "%d are too many", len(a.Networks))
	}
	if first.Bridge != "" {
		if !bridgeName.MatchString(first.Bridge) {
			return nstance.FieldError("subnet", "use the name of a bridge such as vmbr0", "%.64q is not one", first.Bridge)
		}
		if err := first.check("args"); err != nil {
			return err
		}
		pl.config["net0"] = first.value(pl.mac(0))
	}
	for i, n := range a.Networks {
		field := fmt.Sprintf("args.networks[%d]", i)
		if !bridgeName.MatchString(n.Bridge) {
			return nstance.FieldError(field+".bridge", "use the name of a bridge such as vmbr0", "%.64q is not one", n.Bridge)
		}
		if err := n.check(field); err != nil {
			return err
		}
		pl.config["net"+itoa(i+1)] = n.value(pl.mac(i + 1))
	}
	return nil
}

// check refuses a card that Proxmox VE refuses (qemu-server, QemuServer/Network.pm), at the
// start of the machine only where its MTU is below 576 (QemuServer.pm print_netdevice_full).
func (n Network) check(field string) error {
	model := cmp.Or(n.Model, cardModels[0])
	switch {
	case !slices.Contains(cardModels, model):
		return nstance.FieldError(field+".model", nearest.Remedy(model, cardModels), "%.64q is not known", model)
	case n.VLAN < 0 || n.VLAN > 4094:
		return nstance.FieldError(field+".vlan", "use 1 to 4094", "%d is out of range", n.VLAN)
	case n.MTU < 0 || n.MTU > 65520 || n.MTU > 1 && n.MTU < 576:
		return nstance.FieldError(field+".mtu", "use 1 for that of the bridge, or 576 to 65520", "%d is out of range", n.MTU)
	case n.MTU != 0 && model != "virtio":
		return nstance.FieldError(field+".mtu", "use model virtio", "model %s has no MTU of its own", model)
	}
	return nil
}

// value returns the card as an option of the configuration. Without a MAC address Proxmox
// VE makes one.
func (n Network) value(mac string) string {
	out := cmp.Or(n.Model, cardModels[0])
	if mac != "" {
		out += "=" + mac
	}
	out += ",bridge=" + n.Bridge
	if n.VLAN != 0 {
		out += ",tag=" + itoa(n.VLAN)
	}
	if n.Firewall {
		out += ",firewall=1"
	}
	if n.MTU != 0 {
		out += ",mtu=" + itoa(n.MTU)
	}
	return out
}

// setDisks sets the further disks, each to be made when it is set.
func (pl *plan) setDisks(Options) error {
	if pl.args.Disk < 0 {
		return nstance.FieldError("args.disk", "use at least the template's size", "%d GiB are too few", pl.args.Disk)
	}
	for i, d := range pl.args.Disks {
		field := fmt.Sprintf("args.disks[%d]", i)
		bus := strings.TrimRight(d.Drive, "0123456789")
		switch {
		case !diskName.MatchString(d.Drive):
			return nstance.FieldError(field+".drive", "use ide0 to ide3, sata0 to sata5, scsi0 to scsi30 or virtio0 to virtio15", "%.64q is not a drive", d.Drive)
		case d.Drive == pl.seedDrive():
			return nstance.FieldError(field+".drive", "use another drive, or set args.seed_drive", "%s has the image with the user data", d.Drive)
		case pl.config[d.Drive] != "":
			return nstance.FieldError(field+".drive", "use another drive", "%s is given twice", d.Drive)
		case d.Size < 1:
			return nstance.FieldError(field+".size", "use at least 1", "%d GiB are too few", d.Size)
		case !storageName.MatchString(d.Storage):
			return nstance.FieldError(field+".storage", "name a storage with content type images", "%.64q is not the name of a storage", d.Storage)
		case d.SSD && bus == "virtio":
			return nstance.FieldError(field+".ssd", "use a scsi drive", "virtio disks cannot be presented as SSDs")
		case d.IOThread && bus != "scsi" && bus != "virtio":
			return nstance.FieldError(field+".iothread", "use a scsi or virtio drive", "%s disks have no threads of their own", bus)
		}
		pl.config[d.Drive] = d.value()
	}
	return nil
}

// value returns the disk as an option of the configuration that makes it.
func (d Disk) value() string {
	out := d.Storage + ":" + itoa(d.Size)
	for _, option := range []struct {
		set  bool
		text string
	}{{d.Discard, ",discard=on"}, {d.IOThread, ",iothread=1"}, {d.SSD, ",ssd=1"}} {
		if option.set {
			out += option.text
		}
	}
	return out
}

// setDevices sets the PCI devices.
func (pl *plan) setDevices(Options) error {
	if len(pl.args.PCI) > maxDevices {
		return nstance.FieldError("args.pci", "use at most 16", "%d are too many", len(pl.args.PCI))
	}
	for i, d := range pl.args.PCI {
		field := fmt.Sprintf("args.pci[%d]", i)
		switch {
		case !configID.MatchString(d.Mapping):
			return nstance.FieldError(field+".mapping", "use the name of a mapping under Datacenter, Resource Mappings", "%.64q is not one", d.Mapping)
		case d.MDev != "" && !mdevType.MatchString(d.MDev):
			return nstance.FieldError(field+".mdev", "use a type such as nvidia-63", "%.64q is not one", d.MDev)
		}
		value := "mapping=" + d.Mapping
		if d.MDev != "" {
			value += ",mdev=" + d.MDev
		}
		if d.PCIe {
			value += ",pcie=1"
		}
		if d.PrimaryGPU {
			value += ",x-vga=1"
		}
		pl.config["hostpci"+itoa(i)] = value
	}
	return nil
}

// maxNotes bounds a machine's notes, in bytes (qemu-server, QemuServer.pm, description).
const maxNotes = 8 << 10

// checkNotes refuses arguments that do not fit into a machine's notes.
func (pl *plan) checkNotes(Options) error {
	notes, err := pl.marks(maxVMID).notes()
	if err == nil && len(notes) > maxNotes-512 { // image and address come later
		err = nstance.FieldError("args", "use fewer disks, networks and devices", "the notes of the machine would have %d bytes of at most %d", len(notes), maxNotes-512)
	}
	return err
}
