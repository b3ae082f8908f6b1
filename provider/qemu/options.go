package qemu

import (
	"cmp"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/internal/rules"
	"github.com/nstance-go/nstance/provider"
)

// Options describe the cloud. Kernel, or one of Images, is required. The zero
// value of everything else is the default.
type Options struct {
	Kernel      string            `json:"kernel" doc:"path of the kernel of machines whose template names no image"`
	Initrd      string            `json:"initrd" doc:"path of the initramfs of that kernel"`
	Append      string            `json:"append" doc:"command line of that kernel" default:"console=ttyS0 quiet panic=-1"`
	Images      map[string]string `json:"images" doc:"paths of disk images, qcow2 or raw, by the names that templates use for them"`
	Types       map[string]Type   `json:"types" doc:"instance types; templates can name only these"`
	Dir         string            `json:"dir" doc:"existing folder to keep the machines' folders in" default:"the system's temporary folder"`
	Protocol    string            `json:"protocol" doc:"what the metadata services speak" enum:"aws|gcp" default:"aws"`
	Accel       string            `json:"accel" doc:"how instructions are executed: by the processor, by emulation, or by the processor if booting the kernel that way works within 10 s" enum:"auto|kvm|tcg" default:"auto"`
	Program     string            `json:"program" doc:"the QEMU program" default:"qemu-system-x86_64"`
	Relay       []string          `json:"relay" doc:"program that connects its standard input and output with the address and the port that follow its arguments" default:"busybox nc, or nc"`
	Grace       provider.Duration `json:"grace" doc:"how long a machine has to power itself off when it is deleted or stopped" default:"10s"`
	MaxMachines int               `json:"max_machines" doc:"how many machines there may be at the same time; one more is refused as sold out" default:"no limit" min:"0"`
	Endpoint    string            `json:"endpoint" doc:"socket of a cloud that another process serves; instead of everything else"`

	Console io.Writer `json:"-"` // also gets what machines print, whole lines; what it is too slow for is dropped; nil: discarded
}

// A Type is what a machine of an instance type has.
type Type struct {
	Memory int `json:"memory" doc:"MiB of memory" default:"256" min:"16"`
	CPUs   int `json:"cpus" doc:"number of processors" default:"1" min:"1"`
}

const (
	defaultAppend = "console=ttyS0 quiet panic=-1"
	defaultGrace  = 10 * time.Second
)

// The accelerators.
const (
	accelAuto = "auto"
	accelKVM  = "kvm"
	accelTCG  = "tcg"
)

// optionError names an option by its place in a configuration.
func optionError(name, remedy, format string, args ...any) error {
	return nstance.FieldError("options."+name, remedy, format, args...)
}

// check refuses what is wrong whatever this machine has.
func (o *Options) check() error {
	if found := rules.Duration(time.Duration(o.Grace), rules.LeastSetting, time.Hour); found != nil {
		return optionError("grace", found.Remedy, "%s", found.Msg)
	}
	switch {
	case o.Endpoint != "":
		return o.checkEndpoint()
	case o.Kernel == "" && len(o.Images) == 0:
		return optionError("kernel", "name a kernel, or images", "there is nothing to boot")
	case o.Kernel == "" && o.Initrd != "":
		return optionError("initrd", "name the kernel too", "an initramfs needs a kernel")
	case o.Protocol != "" && o.Protocol != imds.AWS && o.Protocol != imds.GCP:
		return optionError("protocol", "use aws or gcp", "%.64q is not known", o.Protocol)
	case !slices.Contains([]string{"", accelAuto, accelKVM, accelTCG}, o.Accel):
		return optionError("accel", "use auto, kvm or tcg", "%.64q is not known", o.Accel)
	case o.MaxMachines < 0:
		return optionError("max_machines", "use a positive number, or 0 for no limit", "%d is negative", o.MaxMachines)
	}
	for name, t := range o.Types {
		if err := checkSize("options.types."+name, t.Memory, t.CPUs); err != nil {
			return err
		}
	}
	return nil
}

func (o *Options) checkEndpoint() error {
	if o.Kernel != "" || len(o.Images) > 0 || o.Dir != "" || o.Program != "" {
		return optionError("endpoint", "leave out everything else", "is the cloud of another process, which decides about everything else")
	}
	return nil
}

// Limits of what QEMU's machine pc takes.
const (
	minMemory = 16
	maxMemory = 1 << 20 // 1 TiB
	maxCPUs   = 255
)

// checkSize refuses a machine that QEMU would refuse; 0 means the default.
func checkSize(field string, memory, cpus int) error {
	if memory != 0 && (memory < minMemory || memory > maxMemory) {
		return nstance.FieldError(field+".memory", "use 16 to 1048576", "%d MiB cannot be given", memory)
	}
	if cpus < 0 || cpus > maxCPUs {
		return nstance.FieldError(field+".cpus", "use 1 to 255", "%d processors cannot be given", cpus)
	}
	return nil
}

func (o Options) withDefaults() Options {
	o.Append = cmp.Or(o.Append, defaultAppend)
	o.Dir = cmp.Or(o.Dir, os.TempDir())
	o.Protocol = cmp.Or(o.Protocol, imds.AWS)
	o.Accel = cmp.Or(o.Accel, accelAuto)
	o.Program = cmp.Or(o.Program, "qemu-system-x86_64")
	o.Grace = cmp.Or(o.Grace, provider.Duration(defaultGrace))
	if o.Console == nil {
		o.Console = io.Discard
	}
	return o
}

// findPrograms resolves paths and refuses what is missing.
func (c *Cloud) findPrograms() (err error) {
	if !supported {
		return nstance.FieldError("kind", "use Linux", "machines cannot be tied to the life of this process on this system")
	}
	if c.qemu, err = findProgram(c.o.Program); err != nil {
		return optionError("program", "install QEMU (Debian: qemu-system-x86)", "%v", err)
	}
	if c.relay, err = findRelay(c.o.Relay); err != nil {
		return optionError("relay", "install busybox or netcat, or name a program", "%v", err)
	}
	if len(c.o.Images) > 0 {
		if _, err := exec.LookPath(imageTool); err != nil {
			return optionError("images", "install it (Debian: qemu-utils)", "%v", err)
		}
	}
	images := map[string]string{}
	for name, path := range c.o.Images {
		if images[name], err = findFile("images."+name, path); err != nil {
			return err
		}
	}
	c.o.Images = images
	if c.o.Kernel, err = findFile("kernel", c.o.Kernel); err != nil {
		return err
	}
	c.o.Initrd, err = findFile("initrd", c.o.Initrd)
	return err
}

func findProgram(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", err
	}
	return filepath.Abs(path)
}

func findRelay(command []string) ([]string, error) {
	candidates := [][]string{{"busybox", "nc"}, {"nc"}}
	if len(command) > 0 {
		candidates = [][]string{command}
	}
	var err error
	for _, c := range candidates {
		path, lerr := findProgram(c[0])
		if lerr == nil {
			return append([]string{path}, c[1:]...), nil
		}
		err = lerr
	}
	return nil, err
}

// findFile returns the absolute path of a file that can be read; "" for "".
func findFile(option, path string) (string, error) {
	if path == "" {
		return "", nil
	}
	f, err := os.Open(path)
	if err != nil {
		return "", optionError(option, "name a file that exists and may be read", "%v", err)
	}
	_ = f.Close() // nothing was written
	return filepath.Abs(path)
}
