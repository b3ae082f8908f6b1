package pvetest

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
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

// machine returns the machine that a call names, for a caller with a privilege.
// It needs c.mu.
func (c *Cloud) machine(r *call, each ...string) (*vm, error) {
	id, node := atoi(r.PathValue("vmid")), r.PathValue("node")
	v := c.vms[id]
	if v == nil {
		v = &vm{id: id}
	}
	if err := r.need(v, each...); err != nil {
		return nil, err
	}
	if v.node != node {
		return nil, refuse(500, "Configuration file 'nodes/%s/qemu-server/%s.conf' does not exist", node, r.PathValue("vmid"))
	}
	return v, nil
}

func (c *Cloud) getConfig(r *call) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.machine(r, "VM.Audit")
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

// setConfig changes options. It is done when the call returns, or, without
// background_delay, when its task has ended.
func (c *Cloud) setConfig(r *call) (any, error) {
	c.mu.Lock()
	v, err := c.machine(r)
	if err == nil {
		err = c.checkConfig(r, v)
	}
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	params := maps.Clone(r.params)
	return c.work(r.user, v.node, "qmconfig", itoa(v.id), "", nil, step{0, func() error {
		c.mu.Lock()
		err := c.apply(v, params)
		c.mu.Unlock()
		c.changed(v)
		return err
	}}), nil
}

func (c *Cloud) checkConfig(r *call, v *vm) error {
	for _, key := range slices.Sorted(maps.Keys(r.params)) {
		if slices.Contains([]string{"digest", "delete", "background_delay"}, key) {
			continue
		}
		if err := c.mayConfigure(r, v, key, r.params[key]); err != nil {
			return err
		}
	}
	for _, key := range listOf(r.params["delete"]) {
		if err := c.mayConfigure(r, v, key, v.config[key]); err != nil {
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

func (c *Cloud) mayConfigure(r *call, v *vm, key, value string) error {
	switch {
	case pciKey.MatchString(key):
		return c.mayMap(r, v, key, value)
	case ipKey.MatchString(key): // either suffices
		if r.mayVM(v, "VM.Config.Cloudinit", "VM.Config.Network") {
			return nil
		}
		return denied("/vms/"+itoa(v.id), "VM.Config.Cloudinit", "VM.Config.Network")
	case key == "cpu":
		if err := c.mayUseCPU(r, v, value); err != nil {
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
			return c.mayAllocate(r, v, newDisk.FindStringSubmatch(volume)[1])
		}
		return c.mayMount(r, v, right, value)
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
	if path := "/sdn/zones/localnetwork/" + bridge; !r.may(path, "SDN.Use") {
		return denied(path, "SDN.Use")
	}
	return nil
}

// mayMount checks a drive's volume.
func (c *Cloud) mayMount(r *call, v *vm, right, value string) error {
	if err := r.need(v, right); err != nil {
		return err
	}
	volume, _, _ := strings.Cut(value, ",")
	name, file, ok := strings.Cut(volume, ":")
	if !ok {
		return nil
	}
	if !r.may("/storage/"+name, "Datastore.AllocateSpace", "Datastore.Audit") {
		return denied("/storage/"+name, "Datastore.AllocateSpace", "Datastore.Audit")
	}
	if c.storage(name) == nil {
		return refuse(500, "storage '%s' does not exist", name)
	}
	if strings.HasPrefix(file, "iso/") && c.images[c.place(v.node, volume)] == nil {
		return refuse(500, "volume '%s' does not exist", volume)
	}
	return nil
}

// apply writes the options, one after the other, until one is refused. It needs c.mu.
func (c *Cloud) apply(v *vm, params map[string]string) error {
	for _, key := range listOf(params["delete"]) {
		if driveKey.MatchString(key) {
			c.detach(v, key)
		}
		delete(v.config, key)
	}
	for _, key := range slices.Sorted(maps.Keys(params)) {
		value, err := c.allocate(v, key, params[key])
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
			c.detach(v, key)
		}
		if v.config[key] = value; value == "" {
			delete(v.config, key)
		}
	}
	return nil
}

// detach takes a volume out of a drive: a cloud-init drive is freed, a disk becomes unused
// (qemu-server, QemuServer.pm vmconfig_register_unused_drive). It needs c.mu.
func (c *Cloud) detach(v *vm, key string) {
	volume, _, _ := strings.Cut(v.config[key], ",")
	switch owner, known := c.volumes[volume]; {
	case !known || owner != v.id:
	case strings.HasSuffix(volume, "cloudinit"):
		delete(c.volumes, volume)
	default:
		for i := 0; ; i++ {
			if unused := "unused" + itoa(i); v.config[unused] == "" {
				v.config[unused] = volume
				break
			}
		}
	}
	delete(v.config, key)
}

func splitTags(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ';' || r == ',' || r == ' ' })
}

func listOf(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ';' || r == ' ' })
}
