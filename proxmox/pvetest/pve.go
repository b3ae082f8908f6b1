// Package pvetest is a cluster of Proxmox VE for tests and for single-machine mode:
// a server of the REST API below /api2/json with several nodes, templates,
// storage, tasks, API tokens, tickets and permissions by path. It refuses what
// Proxmox VE refuses, in its words, and is independent of the provider that is
// tested against it.
//
// Its rules are those of qemu-server 9.2.6, pve-manager, pve-storage 9.1.7 and
// pve-http-server (git.proxmox.com). The answers have the fields and types that
// go-proxmox recorded from real clusters; a test compares them. Clusters are safe for
// concurrent use.
package pvetest

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// Options describe a cluster. Nil and zero fields mean the defaults named here.
type Options struct {
	// Nodes of the cluster. One named pve1 with 64 GiB and 16 processors.
	Nodes []Node

	// Storages of the cluster. "shared" for disks and images on every node,
	// and "local" for images on each.
	Storages []Storage

	// Pools are the resource pools that exist.
	Pools []string

	// BridgeMTU is the MTU of every bridge, in bytes. 1500.
	BridgeMTU int

	// Mappings are the resource mappings of PCI devices.
	Mappings []Mapping

	// Templates are there from the beginning. One with VMID 9000 named debian
	// on the first node, its disk in "shared".
	Templates []Template

	// Tokens by their ID such as root@pam!ci. One root@pam!test with the
	// secret "secret" that may do everything.
	Tokens map[string]Token

	// Passwords of users that may request tickets, by user such as root@pam.
	// Their rights are those of a Token with the same name.
	Passwords map[string]string

	// Delays: Visible is how long name, status and template stay out of
	// /cluster/resources (pvestatd), Start, Stop and Delete are the tasks of
	// these names.
	Delays testcloud.Delays

	// FirstDisk and Clone are how long a clone takes until its name and
	// description show, and until it ends.
	FirstDisk, Clone time.Duration

	// LoginDelay is how late a wrong token is refused; 3 s at Proxmox VE.
	LoginDelay time.Duration

	// NoReason leaves the message out of the status line, as a proxy that
	// speaks HTTP/2 does.
	NoReason bool

	// NoMessage leaves the message out of the body, as versions before 8 do.
	NoMessage bool

	// Faults make calls fail, by method and path such as
	// "POST /nodes/{node}/qemu/{vmid}/clone". Nil: none.
	Faults *testcloud.Faults

	// Hypervisor runs the machines. Nil: they are entries in a table.
	Hypervisor testcloud.Hypervisor
}

// A Node is a member of the cluster.
type Node struct {
	Name   string
	Memory uint64 // bytes
	CPUs   int
}

// A Storage holds disks and images.
type Storage struct {
	Name    string
	Shared  bool     // one content for all nodes; else each node has its own
	Content []string // images, iso
	NoSpace bool     // a new disk finds no space
	Nodes   []string // that have it; nil: all
}

// A Template is what machines are cloned from.
type Template struct {
	VMID        int
	Name        string
	Node        string
	Tags        string
	Description string
	Storage     string // of its disk
	Seed        bool   // it has a cloud-init drive on the node's own storage
	Memory      int    // MiB
	Cores       int
}

// A Token is an API token with its rights.
type Token struct {
	Secret string
	ACL    []ACL // nil: everything
}

// An ACL gives privileges below a path. The longest path that fits decides.
type ACL struct {
	Path       string
	Privileges []string
}

// A Cloud is a cluster. It is safe for concurrent use.
type Cloud struct {
	o  *Options
	mu sync.Mutex // guards the options' delays and all parts, whose methods need it

	timers  *testcloud.Timers
	access  *accessControl
	cluster *cluster
	tasks   *taskList
	storage *storageSet
	fleet   *fleet
	gateway *gateway
}

var _ testcloud.Cloud = (*Cloud)(nil)

// New returns a cluster. Close ends its machines.
func New(o *Options) *Cloud {
	c := &Cloud{o: &Options{}}
	if o != nil {
		*c.o = *o
	}
	c.o.setDefaults()
	c.timers = testcloud.NewTimers(&c.mu)
	c.access = &accessControl{o: c.o, mu: &c.mu, tickets: map[string]ticket{}}
	c.cluster = newCluster(c.o.Nodes)
	c.tasks = &taskList{timers: c.timers, all: map[string]*task{}, failing: map[string][]string{}}
	c.storage = &storageSet{o: c.o, tasks: c.tasks, volumes: map[string]int{}, bases: map[int]int{}, images: map[string][]byte{}}
	c.fleet = &fleet{o: c.o, mu: &c.mu, timers: c.timers, storage: c.storage, vms: map[int]*vm{}}
	for _, t := range c.o.Templates {
		c.fleet.addTemplate(t)
	}
	inventory, devices := &inventory{o: c.o, cluster: c.cluster, fleet: c.fleet}, &deviceSet{o: c.o, fleet: c.fleet}
	configs := &editor{fleet: c.fleet, storage: c.storage, tasks: c.tasks, access: c.access}
	clones := &cloner{o: c.o, cluster: c.cluster, fleet: c.fleet, storage: c.storage, tasks: c.tasks}
	power := &powerSwitch{o: c.o, cluster: c.cluster, fleet: c.fleet, storage: c.storage, devices: devices, tasks: c.tasks}
	c.gateway = newGateway(c, c.routes(inventory, configs, devices, clones, power))
	return c
}

func (o *Options) setDefaults() {
	if len(o.Nodes) == 0 {
		o.Nodes = []Node{{Name: "pve1", Memory: 64 << 30, CPUs: 16}}
	}
	if len(o.Storages) == 0 {
		o.Storages = []Storage{{Name: "shared", Shared: true, Content: []string{"images", "iso"}}, {Name: "local", Content: []string{"images", "iso"}}}
	}
	if len(o.Templates) == 0 {
		o.Templates = []Template{{VMID: 9000, Name: "debian"}}
	}
	if len(o.Tokens) == 0 {
		o.Tokens = map[string]Token{"root@pam!test": {Secret: "secret"}}
	}
	if o.Faults == nil {
		o.Faults = &testcloud.Faults{}
	}
	o.BridgeMTU = cmp.Or(o.BridgeMTU, 1500)
}

// SetDelays changes how long the cloud takes for what is asked of it from now on.
func (c *Cloud) SetDelays(d testcloud.Delays) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.o.Delays = d
}

// Faults returns what makes calls fail.
func (c *Cloud) Faults() *testcloud.Faults { return c.o.Faults }

// FailTasks has the next tasks of a type such as qmclone end with these exit
// statuses, one each, without effect.
func (c *Cloud) FailTasks(kind string, exits ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tasks.failing[kind] = append(c.tasks.failing[kind], exits...)
}

// SetMemory changes how much memory a node has, in bytes.
func (c *Cloud) SetMemory(name string, bytes uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cluster.nodes[name].Memory = bytes
}

// SetQuorum sets whether the cluster has a quorum.
func (c *Cloud) SetQuorum(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cluster.quorum = on
}

// SetOffline takes a node out of the cluster, or brings it back. Its machines
// stay listed.
func (c *Cloud) SetOffline(name string, off bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cluster.nodes[name].offline, c.cluster.nodes[name].offlineAt = off, time.Now()
}

// SetDead takes a node out of the cluster as of a while ago. Five minutes after its
// death the listing shows its machines without name, status and template.
func (c *Cloud) SetDead(name string, ago time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cluster.nodes[name].offline, c.cluster.nodes[name].offlineAt = true, time.Now().Add(-ago)
}

// AddDisk puts a disk into a storage that carries a VMID in its name and that no machine of
// this cluster refers to, as another cluster does that uses the same storage. It returns
// the volume's ID.
func (c *Cloud) AddDisk(storage string, vmid int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := storage + ":vm-" + itoa(vmid) + "-disk-" + itoa(1000+len(c.storage.volumes))
	c.storage.volumes[id] = vmid
	return id
}

// SetMaintenance puts a node into maintenance mode, as ha-manager crm-command
// does, or takes it out.
func (c *Cloud) SetMaintenance(name string, on bool) {
	state := "online"
	if on {
		state = "maintenance"
	}
	c.SetHAState(name, state)
}

// SetHAState sets how high availability sees a node: online, maintenance, unknown, fence or
// gone (pve-ha-manager, PVE/HA/NodeStatus.pm).
func (c *Cloud) SetHAState(name, state string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cluster.nodes[name].haState = state
}

// Maintain has exactly these nodes under maintenance.
func (c *Cloud) Maintain(names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, n := range c.cluster.nodes {
		if n.haState = "online"; slices.Contains(names, name) {
			n.haState = "maintenance"
		}
	}
}

// SetManaged puts a machine under high availability, or takes it out.
func (c *Cloud) SetManaged(vmid int, on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fleet.vms[vmid].managed = on
}

// SetConfig writes values into a machine's configuration, as root with an editor
// does; an empty value removes its key.
func (c *Cloud) SetConfig(vmid int, values map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.fleet.vms[vmid]
	for key, value := range values {
		if v.config[key] = value; value == "" {
			delete(v.config, key)
		}
	}
	v.show()
}

// Add puts a stopped machine with that configuration on a node.
func (c *Cloud) Add(vmid int, node string, config map[string]string) {
	c.mu.Lock()
	v := newVM(vmid, node)
	c.fleet.vms[vmid] = v
	c.mu.Unlock()
	c.SetConfig(vmid, config)
}

// SetRunning starts a machine, as its owner does.
func (c *Cloud) SetRunning(vmid int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.fleet.vms[vmid]
	v.running, v.started = true, time.Now()
	v.show()
}

// IgnoreShutdown has a machine's guest do nothing when it is asked to power itself off.
func (c *Cloud) IgnoreShutdown(vmid int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fleet.vms[vmid].ignoresShutdown = true
}

// Config returns a machine's configuration, or nil if there is none.
func (c *Cloud) Config(vmid int) map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.fleet.vms[vmid]
	if v == nil {
		return nil
	}
	return maps.Clone(v.config)
}

// Volumes returns the IDs of all disks and images, templates' own left out.
func (c *Cloud) Volumes() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for id, vmid := range c.storage.volumes {
		if v := c.fleet.vms[vmid]; v == nil || !v.template {
			out = append(out, id)
		}
	}
	for place := range c.storage.images {
		out = append(out, place)
	}
	slices.Sort(out)
	return out
}

// Denied returns the messages of all calls that a missing privilege refused.
func (c *Cloud) Denied() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.access.denied)
}

// Running returns how many tasks have not ended.
func (c *Cloud) Running() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, t := range c.tasks.all {
		if t.exit == "" {
			n++
		}
	}
	return n
}

// Machines implements [testcloud.Cloud]. Templates are no machines.
func (c *Cloud) Machines() []testcloud.Machine {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []testcloud.Machine
	for _, v := range c.fleet.vms {
		if v.template {
			continue
		}
		m := testcloud.Machine{Handle: itoa(v.id), Zone: v.node, Status: nstance.StatusStopped}
		m.ID, _ = nstance.ParseInstanceID(v.config["name"])
		switch {
		case v.config["lock"] == "clone":
			m.Status = nstance.StatusPending
		case v.running:
			m.Status = nstance.StatusRunning
		}
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b testcloud.Machine) int { return strings.Compare(a.Handle, b.Handle) })
	return out
}

// Reclaim implements [testcloud.Cloud]: Proxmox VE has no spot capacity.
func (c *Cloud) Reclaim(handle string, _ time.Duration) error {
	return c.withMachine(handle, func(*vm) error { return nstance.Errorf(nstance.Invalid, "machine %s is not spot capacity", handle) })
}

// Fail implements [testcloud.Cloud]: the machine's process dies.
func (c *Cloud) Fail(handle string) error {
	return c.withMachine(handle, func(v *vm) error {
		c.fleet.halt(v)
		return nil
	})
}

// withMachine calls fn with the machine of that handle, under the lock.
func (c *Cloud) withMachine(handle string, fn func(*vm) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.fleet.vms[atoi(handle)]
	if v == nil {
		return nstance.Errorf(nstance.NotFound, "no machine %.64q", handle)
	}
	return fn(v)
}

// Close implements [testcloud.Cloud].
func (c *Cloud) Close() error {
	c.mu.Lock()
	c.timers.Stop()
	c.mu.Unlock()
	c.timers.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range c.fleet.vms {
		c.fleet.halt(v)
	}
	return nil
}
