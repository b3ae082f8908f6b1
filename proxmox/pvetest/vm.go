package pvetest

import (
	"cmp"
	"crypto/sha1" //nolint:gosec // the digest that Proxmox VE computes of a configuration
	"encoding/hex"
	"iter"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/nocloud"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// A vm is one machine or template. Its fields are guarded by the cloud's lock.
type vm struct {
	id       int
	node     string
	config   map[string]string
	template bool
	running  bool
	managed  bool // by high availability
	pool     string
	started  time.Time
	guest    testcloud.Guest
	devices  map[string]bool // PCI devices that it got with its last start, by path
	boot     int             // counts starts, so that a late exit of an earlier one is recognised

	ignoresShutdown bool

	// What pvestatd knew when it last looked.
	shownName     string
	shownStatus   string
	shownTemplate bool
	shownOnce     bool
}

func newVM(id int, node string) *vm { return &vm{id: id, node: node, config: map[string]string{}} }

// show is one look of pvestatd.
func (v *vm) show() {
	v.shownOnce, v.shownName, v.shownStatus, v.shownTemplate = true, v.config["name"], v.status(), v.template
}

func (v *vm) status() string {
	if v.running {
		return "running"
	}
	return "stopped"
}

func (v *vm) setNumber(key string, n int) { v.config[key] = itoa(n) }

// number reads a number of the configuration.
func (v *vm) number(key string, def int) int {
	if n, err := strconv.Atoi(v.config[key]); err == nil {
		return n
	}
	return def
}

func (v *vm) cpus() int { return v.number("cores", 1) * v.number("sockets", 1) }

func (v *vm) memory() uint64 { return uint64(v.number("memory", 512)) << 20 }

// locked is the refusal of whatever must not happen under a lock.
func (v *vm) locked() error {
	if lock := v.config["lock"]; lock != "" {
		return refuse(500, "VM is locked (%s)", lock)
	}
	return nil
}

// protected is the refusal of whatever would remove a machine or a disk of it
// (qemu-server, QemuConfig.pm check_protection).
func (v *vm) protected(what string) error {
	if v.config["protection"] == "1" {
		return refuse(500, "%s - protection mode enabled", what)
	}
	return nil
}

var driveKey = regexp.MustCompile(`^(ide|sata|scsi|virtio|efidisk|tpmstate|unused)\d+$`)

// drives yields the keys and volume IDs of all drives.
func (v *vm) drives() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for _, key := range slices.Sorted(maps.Keys(v.config)) {
			volume, _, _ := strings.Cut(v.config[key], ",")
			if driveKey.MatchString(key) && volume != "none" && !yield(key, volume) {
				return
			}
		}
	}
}

func (v *vm) digest() string {
	h := sha1.New() //nolint:gosec // as above
	for _, key := range slices.Sorted(maps.Keys(v.config)) {
		h.Write([]byte(key + ": " + v.config[key] + "\n"))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// A fleet is the machines and templates of the cluster.
type fleet struct {
	o       *Options
	mu      *sync.Mutex
	timers  *testcloud.Timers
	storage *storageSet
	vms     map[int]*vm
}

func (f *fleet) addTemplate(t Template) {
	t.Node, t.Storage = cmp.Or(t.Node, f.o.Nodes[0].Name), cmp.Or(t.Storage, "shared")
	v := newVM(t.VMID, t.Node)
	v.template = true
	v.config["name"], v.config["tags"], v.config["description"] = t.Name, t.Tags, t.Description
	v.setNumber("memory", cmp.Or(t.Memory, 2048))
	v.setNumber("cores", cmp.Or(t.Cores, 2))
	v.config["net0"] = "virtio=BC:24:11:00:00:01,bridge=vmbr0"
	v.config["scsi0"] = t.Storage + ":base-" + itoa(t.VMID) + "-disk-0,size=4G"
	v.config["template"] = "1"
	f.storage.volumes[t.Storage+":base-"+itoa(t.VMID)+"-disk-0"] = t.VMID
	if t.Seed {
		v.config["ide2"] = "local:vm-" + itoa(t.VMID) + "-cloudinit,media=cdrom"
	}
	maps.DeleteFunc(v.config, func(_, value string) bool { return value == "" })
	v.show()
	f.vms[t.VMID] = v
}

// machine returns the machine that a call names, for a caller with each of the privileges.
func (f *fleet) machine(r *call, each ...string) (*vm, error) {
	id, node := atoi(r.PathValue("vmid")), r.PathValue("node")
	v := f.vms[id]
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

// nextID suggests the lowest free VMID and reserves nothing.
func (f *fleet) nextID(r *call) (any, error) {
	if want := r.params["vmid"]; want != "" {
		if f.vms[atoi(want)] != nil {
			return nil, invalid("vmid", "VM "+want+" already exists")
		}
		return want, nil
	}
	for id := 100; id < 1_000_000; id++ {
		if f.vms[id] == nil {
			return itoa(id), nil
		}
	}
	return nil, refuse(500, "unable to get any free VMID in range [100, 1000000]")
}

// changed has pvestatd see the machine in its own time.
func (f *fleet) changed(v *vm) { f.timers.After(f.o.Delays.Visible, v.show) }

// run starts a machine's inside. It releases the lock while the hypervisor does so.
func (f *fleet) run(v *vm) error {
	defer f.changed(v)
	v.running, v.started = true, time.Now()
	v.boot++
	if f.o.Hypervisor == nil {
		return nil
	}
	boot := v.boot
	b := testcloud.Boot{Handle: itoa(v.id), Zone: v.node, UserData: f.userData(v), Address: netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	b.ID, _ = nstance.ParseInstanceID(v.config["name"])
	b.Exited = func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if v.boot == boot {
			v.running, v.guest = false, nil
		}
		f.changed(v)
	}
	f.mu.Unlock()
	guest, err := f.o.Hypervisor.Start(b)
	f.mu.Lock()
	switch {
	case err != nil:
		v.running = false
	case v.boot == boot && v.running:
		v.guest = guest
	}
	return err
}

// halt ends a machine's inside. It releases the lock while it waits for that.
func (f *fleet) halt(v *vm) {
	guest := v.guest
	v.running, v.guest = false, nil
	v.boot++
	if guest != nil {
		f.mu.Unlock()
		guest.Kill()
		f.mu.Lock()
	}
	f.changed(v)
}

// remove frees a machine's disks and its VMID. Disks that its configuration does not name
// are freed on demand, also while another machine uses them (qemu-server, QemuServer.pm destroy_vm).
func (f *fleet) remove(v *vm, unreferenced bool) {
	named := map[string]bool{v.config["vmstate"]: true}
	for _, volume := range v.drives() {
		named[volume] = true
	}
	for id, owner := range f.storage.volumes {
		if owner == v.id && (unreferenced || named[id]) {
			delete(f.storage.volumes, id)
		}
	}
	delete(f.storage.bases, v.id)
	delete(f.vms, v.id)
}

// userData returns the user data that cloud-init finds on the machine's CD.
func (f *fleet) userData(v *vm) []byte { return f.seed(v, nocloud.UserData) }

// seed returns a file that cloud-init finds on the machine's CD.
func (f *fleet) seed(v *vm, file string) []byte {
	for _, volume := range v.drives() {
		if image, ok := f.storage.images[f.storage.place(v.node, volume)]; ok {
			if b, err := nocloud.ReadFile(image, file); err == nil {
				return b
			}
		}
	}
	return nil
}

// UserData returns what the machine with that handle reads at its first boot.
func (c *Cloud) UserData(handle string) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v := c.fleet.vms[atoi(handle)]; v != nil && v.running {
		return c.fleet.userData(v)
	}
	return nil
}

// NetworkConfig returns the configuration of the network that the machine with that handle
// reads at its first boot, or nil.
func (c *Cloud) NetworkConfig(handle string) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v := c.fleet.vms[atoi(handle)]; v != nil {
		return c.fleet.seed(v, nocloud.NetworkConfig)
	}
	return nil
}

// PoolOf returns the resource pool that a machine is in.
func (c *Cloud) PoolOf(handle string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v := c.fleet.vms[atoi(handle)]; v != nil {
		return v.pool
	}
	return ""
}

func itoa(n int) string { return strconv.Itoa(n) }

func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return -1
	}
	return n
}
