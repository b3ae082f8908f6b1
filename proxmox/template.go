package proxmox

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/nstance-go/nstance"
)

// checkInherited refuses a template whose clones could not become what is asked for: a
// failure after the clone would leave a machine that never starts.
func (p *Provider) checkInherited(ctx context.Context, template resource, pl plan) error {
	c, err := p.api.config(ctx, template.Node, template.VMID)
	if err != nil {
		return movedOrGone(template, err)
	}
	// Its clones would run it on their node, and no token may take it from them: only
	// root@pam itself can (qemu-server, API2/Qemu.pm check_vm_modify_config_perm).
	if hook := c.all["hookscript"]; hook != "" {
		return nstance.FieldError("args.template", "remove it from the template with qm set "+itoa(template.VMID)+" --delete hookscript",
			"template %d has the hook script %.64q, which clones inherit and no token can remove", template.VMID, hook)
	}
	if card := c.all["net0"]; pl.config["net0"] == "" && strings.Contains(card, "link_down=1") {
		return nstance.FieldError("args.template", "connect it with qm set and --net0, or set a subnet_pool",
			"template %d has its first network card disconnected, and clones inherit that: %.128q", template.VMID, card)
	}
	if err := pl.checkBootDisk(c.all); err != nil {
		return err
	}
	for i, d := range pl.args.Disks {
		if volume := c.all[d.Drive]; volume != "" {
			return nstance.FieldError(fmt.Sprintf("args.disks[%d].drive", i), "use another drive", "template %d has %.64q there", template.VMID, volume)
		}
	}
	for i, d := range pl.args.PCI {
		if d.PCIe && !strings.Contains(c.all["machine"], "q35") { // qemu-server, QemuServer/PCI.pm
			return nstance.FieldError(fmt.Sprintf("args.pci[%d].pcie", i), "use a template of machine type q35, or leave pcie out", "template %d has another machine type", template.VMID)
		}
	}
	return nil
}

// checkBootDisk refuses a size below that of the template's boot disk: disks only grow.
func (pl *plan) checkBootDisk(template map[string]string) error {
	if pl.args.Disk == 0 {
		return nil
	}
	drive := bootDisk(template)
	if drive == "" {
		return nstance.FieldError("args.disk", "set the boot order of the template with qm set and --boot order=scsi0", "the template does not say which of its disks it boots from")
	}
	if has := sizeOf(template[drive]); has > uint64(pl.args.Disk)<<30 {
		return nstance.FieldError("args.disk", "use at least "+itoa(int((has-1)>>30)+1)+" GiB", "the disk %s of the template is larger than %d GiB, and disks only grow", drive, pl.args.Disk)
	}
	return nil
}

// isDisk reports whether a value of a drive is a disk.
func isDisk(value string) bool {
	return value != "" && !strings.HasPrefix(value, "none") && !strings.Contains(value, "media=cdrom") && !strings.Contains(value, "cloudinit")
}

// bootDisk returns the drive that a machine boots from: the first disk in its boot order,
// else its only disk (qemu-server, QemuServer.pm, boot and bootdisk). Empty: it is unknown.
func bootDisk(config map[string]string) string {
	drives := []string{config["bootdisk"]}
	for part := range strings.SplitSeq(config["boot"], ",") {
		if order, ok := strings.CutPrefix(part, "order="); ok {
			drives = strings.Split(order, ";")
		}
	}
	for _, drive := range drives {
		if diskName.MatchString(drive) && isDisk(config[drive]) {
			return drive
		}
	}
	all := slices.DeleteFunc(slices.Sorted(maps.Keys(config)), func(key string) bool { return !diskName.MatchString(key) || !isDisk(config[key]) })
	if len(all) == 1 {
		return all[0]
	}
	return ""
}

// sizeOf returns the size of a disk in bytes, from its option; 0: it is not there.
func sizeOf(value string) uint64 {
	for part := range strings.SplitSeq(value, ",") {
		size, ok := strings.CutPrefix(part, "size=")
		if !ok {
			continue
		}
		shift := 10 * (1 + strings.Index("KMGT", size[max(len(size)-1, 0):]))
		if n := atoi(strings.TrimRight(size, "KMGT")); n > 0 {
			return uint64(n) << shift
		}
	}
	return 0
}

// grow enlarges the boot disk of a clone. It comes before the first configuration, so that
// whoever finishes the machine knows that it was done.
func (p *Provider) grow(ctx context.Context, f *found) error {
	drive := bootDisk(f.config)
	if f.Disk == 0 || drive == "" || sizeOf(f.config[drive]) >= uint64(f.Disk)<<30 {
		return nil
	}
	return p.api.resize(ctx, vmPath(f.node, f.VMID), drive, f.Disk)
}

// inherited are options that a clone must not have from its template, although it gets
// every option of it (qemu-server, API2/Qemu.pm clone_vm: "copy everything else"): a guest
// that does not run, that ends when it reboots, or whose clock is wrong.
var inherited = []string{"freeze", "reboot", "startdate", "autostart"}

// numaNode names the options that divide memory and processors. Their memory must be all of the
// machine's, or it is not started (qemu-server, QemuServer/Memory.pm).
var numaNode = regexp.MustCompile(`^numa\d+$`)

// matching returns the options whose names match, sorted.
func matching(config map[string]string, name *regexp.Regexp) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(config)), func(key string) bool { return !name.MatchString(key) })
}

// firstConfig returns what is set after the clone: marks, size, image, and what the
// template would decide otherwise.
func (f *found) firstConfig() map[string]string {
	config := map[string]string{"tags": f.marks.tags(true)}
	var remove []string
	for _, key := range inherited {
		if f.config[key] != "" {
			remove = append(remove, key)
		}
	}
	if f.Config["cores"] != "" { // the type's cores are all that it has
		config["sockets"] = "1"
		if f.config["vcpus"] != "" {
			remove = append(remove, "vcpus")
		}
	}
	if f.Config["cores"] != "" || f.Config["memory"] != "" { // the template's nodes of processors and memory do not fit
		remove = append(remove, matching(f.config, numaNode)...)
	}
	if memory := f.Config["memory"]; memory != "" && atoi(f.config["balloon"]) > 0 {
		config["balloon"] = memory // the template's may be more, which is refused
	}
	for key, value := range f.config { // another one would be read in place of the image
		if driveName.MatchString(key) && strings.Contains(value, "cloudinit") && f.Config[key] == "" {
			config[key] = "none,media=cdrom"
		}
	}
	if maps.Copy(config, f.Config); len(remove) > 0 {
		config["delete"] = strings.Join(remove, ",")
	}
	for key := range f.Config { // a disk is made each time that it is set
		if diskName.MatchString(key) && isDisk(f.Config[key]) && isDisk(f.config[key]) {
			delete(config, key)
		}
	}
	return config
}
