package qemu

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/nearest"
	"github.com/nstance-go/nstance/provider"
)

// maxUserData bounds user data: 1 MiB.
const maxUserData = 1 << 20

// defaultMemory is in MiB.
const defaultMemory = 256

// Args are what a template's args may say.
type Args struct {
	Memory int    `json:"memory" doc:"MiB of memory" default:"that of the instance type, or 256" min:"16"`
	CPUs   int    `json:"cpus" doc:"number of processors" default:"that of the instance type, or 1" min:"1"`
	Disk   int    `json:"disk" doc:"GiB that the disk of an image is enlarged to" default:"the image's own size" min:"0"`
	Append string `json:"append" doc:"more words for the kernel's command line; not with an image"`
}

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
	return shape{
		memory: cmp.Or(a.Memory, kind.Memory, defaultMemory), cpus: cmp.Or(a.CPUs, kind.CPUs, 1), disk: a.Disk,
		image: path, append: joinWords(cmp.Or(o.Append, defaultAppend), a.Append),
	}, nil
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
