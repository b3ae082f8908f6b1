package pvetest

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const configParams = "name tags description cores sockets vcpus cpu cpulimit cpuunits numa memory balloon shares onboot agent boot ciuser cipassword sshkeys cicustom " +
	"ipconfig* net* hostpci* ide* sata* scsi* virtio* protection startup autostart reboot startdate localtime ostype bios freeze hookscript args lock " +
	"machine scsihw vga watchdog hotplug delete digest background_delay skiplock force revert"

// configRights has the privilege that an option needs (qemu-server, API2/Qemu.pm,
// check_vm_modify_config_perm). No token may change those that it lacks.
var configRights = map[string]string{
	"name": "VM.Config.Options", "tags": "VM.Config.Options", "description": "VM.Config.Options", "onboot": "VM.Config.Options", "agent": "VM.Config.Options",
	"protection": "VM.Config.Options", "startup": "VM.Config.Options", "autostart": "VM.Config.Options", "reboot": "VM.Config.Options",
	"startdate": "VM.Config.Options", "localtime": "VM.Config.Options", "ostype": "VM.Config.Options", "bios": "VM.Config.Options",
	"boot": "VM.Config.Disk", "cores": "VM.Config.CPU", "sockets": "VM.Config.CPU", "vcpus": "VM.Config.CPU", "cpu": "VM.Config.CPU",
	"cpulimit": "VM.Config.CPU", "cpuunits": "VM.Config.CPU", "numa": "VM.Config.CPU", "memory": "VM.Config.Memory",
	"balloon": "VM.Config.Memory", "shares": "VM.Config.Memory", "net": "VM.Config.Network", "ciuser": "VM.Config.Cloudinit",
	"cipassword": "VM.Config.Cloudinit", "sshkeys": "VM.Config.Cloudinit", "cicustom": "VM.Config.Cloudinit", "freeze": "VM.PowerMgmt",
	"machine": "VM.Config.HWType", "scsihw": "VM.Config.HWType", "vga": "VM.Config.HWType", "watchdog": "VM.Config.HWType", "hotplug": "VM.Config.HWType",
}

var tagForm = regexp.MustCompile(`^[a-z0-9_][a-z0-9_\-+.]*$`)

// An editor shows and changes the configuration of machines.
type editor struct {
	fleet   *fleet
	storage *storageSet
	tasks   *taskList
	access  *accessControl
}

func (e *editor) get(r *call) (any, error) {
	v, err := e.fleet.machine(r, "VM.Audit")
	if err != nil {
		return nil, err
	}
	out := map[string]any{"digest": v.digest()}
	for key, value := range v.config {
		switch key {
		case "cores", "sockets", "onboot", "template": // numbers in the answer; memory is text since version 8
			out[key] = atoi(value)
		case "description":
			out[key] = value + "\n" // it ends with a line's end when it is read back
		default:
			out[key] = value
		}
	}
	return out, nil
}

// set changes options. It is done when the call returns, or, without
// background_delay, when its task has ended.
func (e *editor) set(r *call) (any, error) {
	v, err := e.fleet.machine(r)
	if err == nil {
		err = e.check(r, v)
	}
	if err != nil {
		return nil, err
	}
	return e.tasks.begin(r.vmTask(v, "qmconfig"), step{0, func() error {
		defer e.fleet.changed(v)
		return e.apply(v, r.params)
	}}), nil
}

func (e *editor) check(r *call, v *vm) error {
	for _, key := range slices.Sorted(maps.Keys(r.params)) {
		if slices.Contains([]string{"digest", "delete", "background_delay"}, key) {
			continue
		}
		if err := e.mayConfigure(r, v, key, r.params[key]); err != nil {
			return err
		}
	}
	for _, key := range listOf(r.params["delete"]) {
		if err := e.mayConfigure(r, v, key, v.config[key]); err != nil {
			return err
		}
		if driveKey.MatchString(key) {
			if err := v.protected("can't remove drive '" + key + "'"); err != nil {
				return err
			}
		}
	}
	if d := r.params["digest"]; d != "" && d != v.digest() {
		return refuse(500, "detected modified configuration - file changed by other user? Try again.")
	}
	if name := r.params["name"]; name != "" && !dnsName.MatchString(name) {
		return invalid("name", "invalid format - value does not look like a valid DNS name\n")
	}
	for _, tag := range splitTags(r.params["tags"]) {
		if !tagForm.MatchString(strings.ToLower(tag)) {
			return invalid("tags", fmt.Sprintf("invalid format - invalid characters in tag '%s'\n", tag))
		}
	}
	if len(r.params["description"]) > 8192 {
		return invalid("description", "value may only be 8192 characters long")
	}
	if err := checkFormats(r.params); err != nil {
		return err
	}
	if err := v.checkMemory(r.params); err != nil {
		return err
	}
	return v.locked()
}

// checkMemory refuses sizes that Proxmox VE refuses. What is deleted in the same call still
// counts against the new memory (qemu-server, API2/Qemu.pm update_vm_api).
func (v *vm) checkMemory(params map[string]string) error {
	for key, least := range map[string]int{"memory": 16, "cores": 1, "sockets": 1, "vcpus": 1} {
		if value := params[key]; value != "" && atoi(value) < least {
			return invalid(key, fmt.Sprintf("value must have a minimum value of %d", least))
		}
	}
	memory, balloon := v.number("memory", 512), v.number("balloon", 0)
	if m := params["memory"]; m != "" {
		memory = atoi(m)
	}
	if b := params["balloon"]; b != "" {
		balloon = atoi(b)
	}
	if (params["memory"] != "" || params["balloon"] != "") && balloon > memory {
		return refuse(500, "balloon value too large (must be smaller than assigned memory)")
	}
	return nil
}

func (e *editor) mayConfigure(r *call, v *vm, key, value string) error {
	switch {
	case pciKey.MatchString(key):
		return r.mayMap(v, key, value)
	case ipKey.MatchString(key): // either suffices
		if r.mayVM(v, "VM.Config.Cloudinit", "VM.Config.Network") {
			return nil
		}
		return denied("/vms/"+itoa(v.id), "VM.Config.Cloudinit", "VM.Config.Network")
	case key == "cpu":
		if err := r.mayUseCPU(v, value); err != nil {
			return err
		}
	}
	right, known := configRights[strings.TrimRight(key, "0123456789")]
	if driveKey.MatchString(key) {
		right = "VM.Config.Disk"
		if strings.Contains(value, "media=cdrom") {
			right = "VM.Config.CDROM"
		}
		if volume, _, _ := strings.Cut(value, ","); newDisk.MatchString(volume) {
			return e.storage.mayAllocate(r, v, newDisk.FindStringSubmatch(volume)[1])
		}
		return e.storage.mayMount(r, v, right, value)
	}
	if !known && r.user != "root@pam" { // a token of root's is not root
		return refuse(500, "only root can set '%s' config", key)
	}
	if key == "startup" && !r.may("/", "Sys.Modify") {
		return denied("/", "Sys.Modify")
	}
	if err := r.need(v, right); err != nil || !strings.HasPrefix(key, "net") {
		return err
	}
	_, bridge, _ := strings.Cut(value, "bridge=")
	bridge, _, _ = strings.Cut(bridge, ",")
	return r.require("/sdn/zones/localnetwork/"+bridge, "SDN.Use")
}

// apply writes the options, one after the other, until one is refused.
func (e *editor) apply(v *vm, params map[string]string) error {
	for _, key := range listOf(params["delete"]) {
		if driveKey.MatchString(key) {
			e.storage.detach(v, key)
		}
		delete(v.config, key)
	}
	for _, key := range slices.Sorted(maps.Keys(params)) {
		value, err := e.storage.allocate(v, key, params[key])
		if err != nil {
			return err
		}
		switch key {
		case "delete", "digest", "background_delay":
			continue
		case "tags":
			tags := splitTags(strings.ToLower(value))
			slices.Sort(tags)
			value = strings.Join(slices.Compact(tags), ";")
		}
		if driveKey.MatchString(key) {
			e.storage.detach(v, key)
		}
		if v.config[key] = value; value == "" {
			delete(v.config, key)
		}
	}
	return nil
}

// resize enlarges a disk (qemu-server, API2/Qemu.pm resize_vm).
func (e *editor) resize(r *call) (any, error) {
	v, err := e.fleet.machine(r, "VM.Config.Disk")
	if err != nil {
		return nil, err
	}
	disk, size := r.params["disk"], r.params["size"]
	if !driveKey.MatchString(disk) || strings.HasPrefix(disk, "unused") {
		return nil, invalid("disk", "value '"+disk+"' does not have a value in the enumeration")
	}
	if !sizeForm.MatchString(size) {
		return nil, invalid("size", "value does not match the regex pattern")
	}
	return e.tasks.begin(r.vmTask(v, "resize"), step{0, func() error { return e.grow(r, v, disk, size) }}), nil
}

func (e *editor) grow(r *call, v *vm, disk, size string) error {
	if err := v.locked(); err != nil {
		return err
	}
	p := properties("file", v.config[disk])
	name, _, managed := strings.Cut(p["file"], ":")
	switch {
	case v.config[disk] == "":
		return fmt.Errorf("disk '%s' does not exist", disk)
	case p["media"] == "cdrom":
		return errors.New("you can't resize a cdrom")
	case !managed:
		return fmt.Errorf("disk '%s' has no associated volume", disk)
	case !r.may("/storage/"+name, "Datastore.AllocateSpace"):
		err := denied("/storage/"+name, "Datastore.AllocateSpace")
		e.access.denied = append(e.access.denied, err.Error())
		return err
	case e.storage.find(name).NoSpace:
		return fmt.Errorf("out of space on storage '%s'", name)
	}
	old, want := bytesOf(p["size"]), bytesOf(strings.TrimPrefix(size, "+"))
	if strings.HasPrefix(size, "+") {
		want += old
	}
	if want < old {
		return errors.New("shrinking disks is not supported")
	}
	v.config[disk] = strings.Replace(v.config[disk], "size="+p["size"], "size="+itoa(int(want>>20))+"M", 1)
	if want%(1<<30) == 0 {
		v.config[disk] = strings.Replace(v.config[disk], "size="+itoa(int(want>>20))+"M", "size="+itoa(int(want>>30))+"G", 1)
	}
	return nil
}

func bytesOf(size string) uint64 {
	n, err := strconv.ParseFloat(strings.TrimRight(size, "KMGT"), 64)
	if err != nil {
		return 0
	}
	for range 1 + strings.Index("KMGT", size[len(size)-1:]) {
		n *= 1024
	}
	return uint64(n)
}

func splitTags(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ';' || r == ',' || r == ' ' })
}

func listOf(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ';' || r == ' ' })
}
