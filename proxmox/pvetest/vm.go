package pvetest

import (
	"crypto/sha1" //nolint:gosec // the digest that Proxmox VE computes of a configuration
	"encoding/hex"
	"iter"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/nocloud"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// A vm is one machine or template. Its fields are guarded by Cloud.mu.
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

// changed has pvestatd see the machine in its own time. The caller does not hold
// c.mu.
func (c *Cloud) changed(v *vm) {
	c.after(c.delays().Visible, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		v.show()
	})
}

// run starts a machine's inside.
func (c *Cloud) run(v *vm) error {
	c.mu.Lock()
	v.running, v.started = true, time.Now()
	v.boot++
	boot := v.boot
	b := testcloud.Boot{Handle: itoa(v.id), Zone: v.node, UserData: c.userData(v), Address: netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	b.ID, _ = nstance.ParseInstanceID(v.config["name"])
	b.Exited = func() {
		c.mu.Lock()
		if v.boot == boot {
			v.running, v.guest = false, nil
		}
		c.mu.Unlock()
		c.changed(v)
	}
	h := c.o.Hypervisor
	c.mu.Unlock()
	defer c.changed(v)
	if h == nil {
		return nil
	}
	guest, err := h.Start(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		v.running = false
		return err
	}
	if v.boot == boot && v.running {
		v.guest = guest
	}
	return nil
}

// halt ends a machine's inside.
func (c *Cloud) halt(v *vm) {
	c.mu.Lock()
	guest := v.guest
	v.running, v.guest = false, nil
	v.boot++
	c.mu.Unlock()
	if guest != nil {
		guest.Kill()
	}
	c.changed(v)
}

// userData returns the user data that cloud-init finds on the machine's CD. It needs c.mu.
func (c *Cloud) userData(v *vm) []byte { return c.seed(v, nocloud.UserData) }

// seed returns a file that cloud-init finds on the machine's CD. It needs c.mu.
func (c *Cloud) seed(v *vm, file string) []byte {
	for _, volume := range v.drives() {
		if image, ok := c.images[c.place(v.node, volume)]; ok {
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
	if v := c.vms[atoi(handle)]; v != nil && v.running {
		return c.userData(v)
	}
	return nil
}

// NetworkConfig returns the configuration of the network that the machine with that handle
// reads at its first boot, or nil.
func (c *Cloud) NetworkConfig(handle string) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v := c.vms[atoi(handle)]; v != nil {
		return c.seed(v, nocloud.NetworkConfig)
	}
	return nil
}

// PoolOf returns the resource pool that a machine is in.
func (c *Cloud) PoolOf(handle string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v := c.vms[atoi(handle)]; v != nil {
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
