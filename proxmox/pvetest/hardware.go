package pvetest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// cpuTypes are some of the types that are built in (qemu-server, QemuServer/CPUConfig.pm).
var cpuTypes = strings.Fields("host max kvm64 kvm32 qemu64 qemu32 x86-64-v2 x86-64-v2-AES x86-64-v3 x86-64-v4 Skylake-Server Cascadelake-Server " +
	"Icelake-Server SapphireRapids EPYC EPYC-Rome EPYC-Milan EPYC-Genoa")

// cardModels are those of network cards (qemu-server, QemuServer/Network.pm).
var cardModels = strings.Fields("e1000 e1000-82540em e1000-82544gc e1000-82545em e1000e i82551 i82557b i82559er ne2k_isa ne2k_pci pcnet rtl8139 virtio vmxnet3")

var (
	newDisk   = regexp.MustCompile(`^([^/:\s]+):(\d+(?:\.\d+)?)$`) // qemu-server, QemuServer/Drive.pm NEW_DISK_RE
	sizeForm  = regexp.MustCompile(`^\+?\d+(\.\d+)?[KMGT]?$`)
	macForm   = regexp.MustCompile(`(?i)^[a-f0-9][02468ace](:[a-f0-9]{2}){5}$`)
	pciKey    = regexp.MustCompile(`^hostpci([0-9]|1[0-5])$`)
	nodeKey   = regexp.MustCompile(`^numa\d+$`)
	flagForm  = regexp.MustCompile(`^[01]$`)
	cardKey   = regexp.MustCompile(`^net([12]?[0-9]|3[01])$`)
	ipKey     = regexp.MustCompile(`^ipconfig([12]?[0-9]|3[01])$`)
	numberMax = regexp.MustCompile(`^\d{1,5}$`)
)

// A Mapping is a resource mapping of PCI devices.
type Mapping struct {
	ID  string
	Map []string // such as "node=pve1,path=0000:01:00.0,id=10de:1db6"
}

// paths returns the devices of the mapping on a node.
func (m *Mapping) paths(node string) []string {
	var out []string
	for _, entry := range m.Map {
		if p := properties("map", entry); p["node"] == node {
			out = append(out, p["path"])
		}
	}
	return out
}

// properties parses a property string. A part without a key has the default key.
func properties(key, s string) map[string]string {
	out := map[string]string{}
	for i, part := range strings.Split(s, ",") {
		name, value, ok := strings.Cut(part, "=")
		if !ok && i == 0 {
			name, value = key, part
		}
		out[name] = value
	}
	return out
}

// A deviceSet is the PCI devices of the nodes.
type deviceSet struct {
	o     *Options
	fleet *fleet
}

func (d *deviceSet) list(r *call) (any, error) {
	out := []map[string]any{}
	for _, m := range d.o.Mappings {
		if r.may("/mapping/pci/"+m.ID, "Mapping.Modify", "Mapping.Use", "Mapping.Audit") {
			out = append(out, map[string]any{"id": m.ID, "map": m.Map, "digest": "0"})
		}
	}
	return out, nil
}

func (d *deviceSet) mapping(id string) *Mapping {
	for i := range d.o.Mappings {
		if d.o.Mappings[i].ID == id {
			return &d.o.Mappings[i]
		}
	}
	return nil
}

// mayMap checks the rights on a device that is passed through (qemu-server, API2/Qemu.pm
// check_hostpci_perm).
func (r *call) mayMap(v *vm, key, value string) error {
	p := properties("host", value)
	switch {
	case r.user == "root@pam":
		return nil
	case p["host"] != "":
		return refuse(500, "only root can set '%s' config for non-mapped devices", key)
	case p["mapping"] == "":
		return refuse(500, "either 'host' or 'mapping' must be set.")
	}
	return cmp.Or(r.require("/mapping/pci/"+p["mapping"], "Mapping.Use"), r.need(v, "VM.Config.HWType"))
}

// mayUseCPU checks the rights on a type of processor that the cluster defines itself
// (qemu-server, API2/Qemu.pm check_cpu_model_access).
func (r *call) mayUseCPU(v *vm, value string) error {
	typ := properties("cputype", value)["cputype"]
	name, custom := strings.CutPrefix(typ, "custom-")
	if custom && properties("cputype", v.config["cpu"])["cputype"] != typ {
		return r.require("/mapping/cpu/"+name, "Mapping.Use")
	}
	return nil
}

// checkFormats refuses values that the schema of the API refuses.
func checkFormats(params map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(params)) {
		if err := checkFormat(key, params[key]); err != nil {
			return err
		}
	}
	return nil
}

func checkFormat(key, value string) error {
	switch {
	case value == "":
		return nil
	case key == "numa" || key == "onboot" || key == "protection":
		if !flagForm.MatchString(value) {
			return invalid(key, "type check ('boolean') failed - got '"+value+"'")
		}
	case key == "cpu":
		return checkCPU(value)
	case cardKey.MatchString(key):
		return checkCard(key, value)
	case ipKey.MatchString(key):
		return checkIPConfig(key, value)
	case pciKey.MatchString(key):
		return checkKeys(key, properties("host", value), "host mapping pcie rombar romfile x-vga mdev legacy-igd vendor-id device-id sub-vendor-id sub-device-id driver")
	case driveKey.MatchString(key):
		return checkDrive(key, value)
	}
	return nil
}

// checkKeys refuses a property string with keys that it does not have.
func checkKeys(key string, p map[string]string, known string) error {
	for name := range p {
		if !slices.Contains(strings.Fields(known), name) {
			return invalid(key, "invalid format - format error\n"+key+"."+name+": property is not defined in schema and the schema does not allow additional properties")
		}
	}
	return nil
}

func checkCPU(value string) error {
	p := properties("cputype", value)
	if typ := p["cputype"]; !slices.Contains(cpuTypes, typ) && !strings.HasPrefix(typ, "custom-") {
		return invalid("cpu", "invalid format - Built-in cputype '"+typ+"' is not defined (missing 'custom-' prefix?)\n")
	}
	return checkKeys("cpu", p, "cputype flags hidden hv-vendor-id guest-phys-bits phys-bits")
}

func checkCard(key, value string) error {
	p := properties("model", value)
	for _, model := range cardModels { // model=MAC is short for both
		if mac, ok := p[model]; ok {
			delete(p, model)
			p["model"], p["macaddr"] = model, mac
		}
	}
	if !slices.Contains(cardModels, p["model"]) {
		return invalid(key, "invalid format - format error\n"+key+".model: value '"+p["model"]+"' does not have a value in the enumeration")
	}
	if mac := p["macaddr"]; mac != "" && !macForm.MatchString(mac) {
		return invalid(key, "invalid format - format error\n"+key+".macaddr: value does not look like a valid unicast MAC address")
	}
	for name, bounds := range map[string][2]int{"tag": {1, 4094}, "mtu": {1, 65520}} {
		if n := p[name]; n != "" && (!numberMax.MatchString(n) || atoi(n) < bounds[0] || atoi(n) > bounds[1]) {
			return invalid(key, fmt.Sprintf("invalid format - format error\n%s.%s: value must be between %d and %d", key, name, bounds[0], bounds[1]))
		}
	}
	return checkKeys(key, p, "model macaddr bridge tag firewall mtu queues rate trunks link_down")
}

func checkIPConfig(key, value string) error {
	p := properties("", value)
	if ip := p["ip"]; ip != "" && ip != "dhcp" {
		if prefix, err := netip.ParsePrefix(ip); err != nil || !prefix.Addr().Is4() {
			return invalid(key, "invalid format - format error\n"+key+".ip: value does not look like a valid ipv4 network configuration")
		}
	}
	if gw := p["gw"]; gw != "" {
		if a, err := netip.ParseAddr(gw); err != nil || !a.Is4() || p["ip"] == "" {
			return invalid(key, "invalid format - format error\n"+key+".gw: value does not look like a valid ipv4 address")
		}
	}
	return checkKeys(key, p, "ip gw ip6 gw6")
}

// checkDrive refuses options that a bus does not have (qemu-server, QemuServer/Drive.pm).
func checkDrive(key, value string) error {
	known := "file size media discard cache backup format replicate aio serial snapshot"
	switch strings.TrimRight(key, "0123456789") {
	case "scsi":
		known += " ssd iothread"
	case "ide", "sata":
		known += " ssd"
	case "virtio":
		known += " iothread"
	}
	if checkKeys(key, properties("file", value), known) != nil {
		return invalid(key, "unable to parse drive options")
	}
	return nil
}

// checkMTU refuses a start with an MTU that the bridge does not have (qemu-server,
// QemuServer.pm print_netdevice_full).
func (v *vm) checkMTU(most int) error {
	for _, key := range slices.Sorted(maps.Keys(v.config)) {
		mtu := atoi(properties("model", v.config[key])["mtu"])
		switch {
		case !cardKey.MatchString(key) || mtu <= 1 || !strings.HasPrefix(v.config[key], "virtio"):
		case mtu < 576:
			return fmt.Errorf("netdev %s: MTU '%d' is smaller than the IP minimum MTU '576'", key, mtu)
		case mtu > most:
			return fmt.Errorf("netdev %s: MTU '%d' is bigger than the bridge MTU '%d' - adjust the MTU for the network device", key, mtu, most)
		}
	}
	return nil
}

// checkNodes refuses a start whose NUMA nodes have not all of the memory (qemu-server,
// QemuServer/Memory.pm).
func (v *vm) checkNodes() error {
	total := 0
	for key, value := range v.config {
		if nodeKey.MatchString(key) {
			total += atoi(properties("cpus", value)["memory"])
		}
	}
	if total != 0 && total != v.number("memory", 512) {
		return errors.New("total memory for NUMA nodes must be equal to vm static memory")
	}
	return nil
}

// assign refuses a start without the devices that the machine is to get: a device is
// of one running machine (qemu-server, QemuServer/PCI.pm).
func (d *deviceSet) assign(v *vm) error {
	held := map[string]int{}
	for _, other := range d.fleet.vms {
		if other.node == v.node && other.running && other != v {
			for path := range other.devices {
				held[path] = other.id
			}
		}
	}
	v.devices = map[string]bool{}
	for _, key := range slices.Sorted(maps.Keys(v.config)) {
		if pciKey.MatchString(key) {
			if err := d.takeOne(v, key, held); err != nil {
				v.devices = nil
				return err
			}
		}
	}
	return nil
}

func (d *deviceSet) takeOne(v *vm, key string, held map[string]int) error {
	p := properties("host", v.config[key])
	m := d.mapping(p["mapping"])
	if m == nil || len(m.paths(v.node)) == 0 {
		return fmt.Errorf("PCI device mapping not found for '%s'", p["mapping"])
	}
	if p["pcie"] == "1" && !strings.Contains(v.config["machine"], "q35") {
		return errors.New("q35 machine model is not enabled")
	}
	if p["mdev"] != "" {
		return nil
	}
	paths := m.paths(v.node)
	for _, path := range paths {
		if held[path] == 0 && !v.devices[path] {
			v.devices[path] = true
			return nil
		}
	}
	if len(paths) == 1 && held[paths[0]] != 0 {
		return fmt.Errorf("PCI device '%s' already in use by VMID '%d'", paths[0], held[paths[0]])
	}
	return fmt.Errorf("could not find a free device for '%s'", key)
}
