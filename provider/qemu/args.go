package qemu

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/nearest"
	"github.com/nstance-go/nstance/provider"
)

// maxUserData bounds user data: 1 MiB.
const maxUserData = 1 << 20

// defaultMemory is in MiB.
const defaultMemory = 256

const (
	defaultCPU   = "max"
	defaultModel = "virtio"
)

// Args are what a template's args may say.
type Args struct {
	Memory int    `json:"memory" doc:"MiB of memory" default:"that of the instance type, or 256" min:"16"`
	CPUs   int    `json:"cpus" doc:"number of processors" default:"that of the instance type, or 1" min:"1"`
	Disk   int    `json:"disk" doc:"GiB that the disk of an image is enlarged to" default:"the image's own size" min:"0"`
	Append string `json:"append" doc:"more words for the kernel's command line; not with an image"`

	Sockets  int       `json:"sockets" doc:"number of sockets that the processors are on; must divide their number" default:"1" min:"1" max:"16"`
	CPUType  string    `json:"cpu_type" doc:"type of the processors, such as qemu64 or Haswell; host needs KVM" default:"max"`
	Disks    []Disk    `json:"disks" doc:"further disks, made empty and deleted with the machine"`
	Networks []Network `json:"networks" doc:"further network cards, each on a network of its own with an address by DHCP and nothing else on it"`
}

// A Disk is a further disk of a machine.
type Disk struct {
	Size int `json:"size" doc:"GiB" required:"true" min:"1" max:"65536"`
}

// A Network is a further network card of a machine.
type Network struct {
	Model string `json:"model" doc:"model of the card" enum:"virtio|e1000|e1000e|rtl8139|vmxnet3" default:"virtio"`
	MTU   int    `json:"mtu" doc:"MTU that the card offers; needs model virtio" default:"1500" min:"576" max:"65520"`
}

// How many disks and cards fit on the PCI bus of QEMU's machine pc, beside its own devices.
const (
	maxDisks    = 8
	maxNetworks = 8
)

// devices are QEMU's names of the models of network cards.
var devices = map[string]string{
	"virtio": "virtio-net-pci", "e1000": "e1000", "e1000e": "e1000e", "rtl8139": "rtl8139", "vmxnet3": "vmxnet3",
}

var cpuType = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// managed are arguments that the system sets itself.
var managed = provider.Managed{
	"image":         "use the template's image",
	"instance_type": "use the template's instance_type",
	"user_data":     "use the template's userdata",
	"kernel":        "use options.kernel",
	"initrd":        "use options.initrd",
	"name":          "leave it out: machines are called by their instance IDs",
}

// A shape is what a machine consists of.
type shape struct {
	memory int    // MiB
	cpus   int    //
	disk   int    // GiB; 0: as large as the image
	image  string // path; empty: the kernel
	append string // the kernel's command line

	sockets  int
	cpuType  string
	disks    []Disk
	networks []Network
}

// plan refuses what no repeat can help, and returns what spec asks for.
func (o *Options) plan(spec nstance.MachineSpec) (s shape, err error) {
	if err := provider.ValidateSpec(spec, maxUserData); err != nil {
		return s, err
	}
	var a Args
	if err := provider.DecodeArgs(spec.Args, &a, managed); err != nil {
		return s, err
	}
	if err := checkSize("args", a.Memory, a.CPUs); err != nil {
		return s, err
	}
	if err := a.checkDevices(); err != nil {
		return s, err
	}
	image := spec.Image != ""
	switch {
	case spec.Arch != "" && spec.Arch != nstance.AMD64:
		return s, nstance.FieldError("arch", "use amd64", "%s machines are not supported", spec.Arch)
	case spec.Subnet != "":
		return s, nstance.FieldError("subnet_pool", "leave it out", "every machine has a network of its own")
	case spec.MaxPrice != "":
		return s, nstance.FieldError("market.max_price", "leave it out", "there are no prices")
	case !image && o.Kernel == "" && o.Endpoint == "":
		return s, nstance.FieldError("image", nearest.Remedy("", slices.Sorted(maps.Keys(o.Images))), "is empty, and there is no options.kernel")
	case image && a.Append != "":
		return s, nstance.FieldError("args.append", "leave it out", "an image has its own kernel and command line")
	case !image && a.Disk != 0:
		return s, nstance.FieldError("args.disk", "leave it out, or name an image", "there is no disk to enlarge")
	case a.Disk < 0:
		return s, nstance.FieldError("args.disk", "use a positive number, or 0", "%d is negative", a.Disk)
	}
	path, known := o.Images[spec.Image]
	if image && !known && o.Endpoint == "" {
		return s, nstance.FieldError("image", nearest.Remedy(spec.Image, slices.Sorted(maps.Keys(o.Images))), "%.64q is not among options.images", spec.Image)
	}
	kind, known := o.Types[spec.InstanceType]
	if spec.InstanceType != "" && !known && o.Endpoint == "" {
		return s, nstance.FieldError("instance_type", nearest.Remedy(spec.InstanceType, slices.Sorted(maps.Keys(o.Types))), "%.64q is not among options.types", spec.InstanceType)
	}
	s = shape{
		memory: cmp.Or(a.Memory, kind.Memory, defaultMemory), cpus: cmp.Or(a.CPUs, kind.CPUs, 1), disk: a.Disk,
		image: path, append: joinWords(cmp.Or(o.Append, defaultAppend), a.Append),
		sockets: max(a.Sockets, 1), cpuType: cmp.Or(a.CPUType, defaultCPU), disks: a.Disks, networks: a.Networks,
	}
	// The types of a cloud that another process serves are not known here.
	if sized := a.CPUs > 0 || o.Endpoint == ""; sized && s.cpus%s.sockets != 0 {
		return s, nstance.FieldError("args.sockets", "use a number that divides it", "%d processors cannot be on %d sockets", s.cpus, s.sockets)
	}
	return s, nil
}

// checkDevices refuses processors, disks and cards that QEMU would refuse.
func (a *Args) checkDevices() error {
	switch {
	case a.CPUType != "" && !cpuType.MatchString(a.CPUType):
		return nstance.FieldError("args.cpu_type", "use a type that qemu-system-x86_64 -cpu help lists, without flags", "%.64q is not the name of a type", a.CPUType)
	case len(a.Disks) > maxDisks:
		return nstance.FieldError("args.disks", fmt.Sprintf("use at most %d", maxDisks), "%d are too many", len(a.Disks))
	case len(a.Networks) > maxNetworks:
		return nstance.FieldError("args.networks", fmt.Sprintf("use at most %d", maxNetworks), "%d are too many", len(a.Networks))
	}
	for i, d := range a.Disks {
		if d.Size < 1 {
			return nstance.FieldError(fmt.Sprintf("args.disks[%d].size", i), "use at least 1", "%d GiB are too few", d.Size)
		}
	}
	for i, n := range a.Networks {
		if n.MTU != 0 && cmp.Or(n.Model, defaultModel) != defaultModel {
			return nstance.FieldError(fmt.Sprintf("args.networks[%d].mtu", i), "use model virtio", "model %s offers no MTU", n.Model)
		}
	}
	return nil
}

func joinWords(a, b string) string {
	if b == "" {
		return a
	}
	return a + " " + b
}

// TypeArchs implements [nstance.TypeLister].
func (c *Cloud) TypeArchs(ctx context.Context, names []string) (map[string][]nstance.Arch, error) {
	c.machines.Lock()
	defer c.machines.Unlock()
	if err := c.machines.Available(ctx); err != nil {
		return nil, err
	}
	archs := map[string][]nstance.Arch{}
	for _, name := range names {
		if _, ok := c.o.Types[name]; ok {
			archs[name] = []nstance.Arch{nstance.AMD64}
		}
	}
	return archs, nil
}
