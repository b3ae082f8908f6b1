package pvetest

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

var dnsName = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?(\.[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?)*$`)

// A cloning is a checked request for a clone.
type cloning struct {
	from    *vm
	newID   int
	node    string // that holds the template; the clone is there until its end
	target  string
	storage string
	linked  bool
	params  map[string]string
}

// A cloner makes machines from templates.
type cloner struct {
	o       *Options
	cluster *cluster
	fleet   *fleet
	storage *storageSet
	tasks   *taskList
}

// clone makes a machine from a template (qemu-server, API2/Qemu.pm clone_vm).
func (c *cloner) clone(r *call) (any, error) {
	cl, err := c.check(r)
	if err != nil {
		return nil, err
	}
	// On another node the VMID's owner shows only when the worker writes the file.
	if v := c.fleet.vms[cl.newID]; v != nil && v.node == cl.node {
		return nil, refuse(500, "unable to create VM %d: config file already exists", cl.newID)
	}
	var v *vm
	t := r.vmTask(cl.from, "qmclone")
	t.log = []string{fmt.Sprintf("creating a clone of VM %d with ID %d", cl.from.id, cl.newID)}
	t.undo = func() {
		if v != nil {
			c.fleet.remove(v, false)
		}
	}
	return c.tasks.begin(t,
		step{0, func() (err error) { v, err = c.reserve(cl); return err }},
		step{c.o.FirstDisk, func() error { return c.copyDisks(cl, v) }},
		step{c.o.Clone - c.o.FirstDisk, func() error { c.finish(cl, v); return nil }},
	), nil
}

func (c *cloner) check(r *call) (*cloning, error) {
	cl := &cloning{node: r.PathValue("node"), newID: atoi(r.params["newid"]), params: r.params, storage: r.params["storage"]}
	if cl.newID < 100 || cl.newID > 999_999_999 {
		return nil, invalid("newid", "invalid format - value does not look like a valid VM ID\n")
	}
	if name := r.params["name"]; name != "" && !dnsName.MatchString(name) {
		return nil, invalid("name", "invalid format - value does not look like a valid DNS name\n")
	}
	if len(r.params["description"]) > 8192 {
		return nil, invalid("description", "value may only be 8192 characters long")
	}
	cl.from = c.fleet.vms[atoi(r.PathValue("vmid"))]
	if cl.from == nil || cl.from.node != cl.node {
		return nil, refuse(500, "unable to find configuration file for VM %s on node '%s'", r.PathValue("vmid"), cl.node)
	}
	if err := c.mayClone(r, cl); err != nil {
		return nil, err
	}
	cl.linked = cl.from.template && !r.flag("full")
	if cl.linked && (r.params["storage"] != "" || r.params["format"] != "") {
		return nil, invalid("storage", "parameter 'storage' not allowed for linked clones")
	}
	cl.target = cmp.Or(r.params["target"], cl.node)
	if n := c.cluster.nodes[cl.target]; n == nil || n.offline {
		return nil, refuse(500, "target node '%s' is not online", cl.target)
	}
	for _, volume := range cl.from.drives() {
		name, _, _ := strings.Cut(volume, ":")
		if s := c.storage.find(cl.storage); cl.target != cl.node && (!c.storage.shared(name) || s != nil && !s.Shared) {
			return nil, refuse(500, "can't clone VM to node '%s' (VM uses local storage)", cl.target)
		}
	}
	return cl, cl.from.locked()
}

func (c *cloner) mayClone(r *call, cl *cloning) error {
	pool := r.params["pool"]
	switch {
	case pool != "" && !slices.Contains(c.o.Pools, pool): // pve-access-control, RPCEnvironment.pm check_pool_exist
		return refuse(403, "Permission check failed (pool '%s' does not exist)", pool)
	case !r.mayVM(cl.from, "VM.Clone"):
		return denied("/vms/"+itoa(cl.from.id), "VM.Clone")
	case !r.may("/vms/"+itoa(cl.newID), "VM.Allocate") && (pool == "" || !r.may("/pool/"+pool, "VM.Allocate")):
		return denied("/vms/"+itoa(cl.newID), "VM.Allocate")
	case !r.may("/sdn/zones/localnetwork/vmbr0", "SDN.Use"):
		return denied("/sdn/zones/localnetwork/vmbr0", "SDN.Use")
	}
	for key, value := range cl.from.config { // qemu-server, QemuServer.pm check_mapping_access
		if id := properties("host", value)["mapping"]; pciKey.MatchString(key) && !r.may("/mapping/pci/"+id, "Mapping.Use") {
			return denied("/mapping/pci/"+id, "Mapping.Use")
		}
	}
	for _, volume := range cl.from.drives() {
		name, _, _ := strings.Cut(volume, ":")
		if err := r.require("/storage/"+cmp.Or(r.params["storage"], name), "Datastore.AllocateSpace"); err != nil {
			return err
		}
	}
	return nil
}

// reserve writes the configuration file with nothing but its lock.
func (c *cloner) reserve(cl *cloning) (*vm, error) {
	if c.fleet.vms[cl.newID] != nil {
		return nil, fmt.Errorf("unable to create VM %d: unable to open file '/etc/pve/nodes/%s/qemu-server/%d.conf.tmp' - File exists", cl.newID, cl.node, cl.newID)
	}
	v := newVM(cl.newID, cl.node)
	v.config["lock"] = "clone"
	c.fleet.vms[cl.newID] = v
	return v, nil
}

// copyDisks copies the disks, and with the first of them the configuration.
func (c *cloner) copyDisks(cl *cloning, v *vm) error {
	for key, value := range cl.from.config {
		if key != "template" && key != "lock" && key != "description" {
			v.config[key] = value
		}
	}
	v.config["lock"] = "clone"
	v.config["name"] = cmp.Or(cl.params["name"], "Copy-of-VM-"+cl.from.config["name"])
	if d := cmp.Or(cl.params["description"], cl.from.config["description"]); d != "" {
		v.config["description"] = d
	}
	for key, volume := range cl.from.drives() {
		_, rest, _ := strings.Cut(v.config[key], ",")
		place, name, _ := strings.Cut(volume, ":")
		if strings.HasSuffix(name, ".iso") {
			continue
		}
		if s := c.storage.find(cmp.Or(cl.storage, place)); s == nil || s.NoSpace {
			return fmt.Errorf("clone failed: unable to create image: out of space on storage '%s'", cmp.Or(cl.storage, place))
		}
		kind := "disk-" + itoa(len(c.storage.volumes))
		if strings.HasSuffix(name, "cloudinit") {
			kind = "cloudinit"
		}
		id := fmt.Sprintf("%s:vm-%d-%s", cmp.Or(cl.storage, place), v.id, kind)
		c.storage.volumes[id] = v.id
		v.config[key] = id + "," + rest
	}
	if cl.linked {
		c.storage.bases[v.id] = cl.from.id
	}
	v.config["net0"] = "virtio=BC:24:11:00:00:02,bridge=vmbr0"
	return nil
}

func (c *cloner) finish(cl *cloning, v *vm) {
	delete(v.config, "lock")
	v.node, v.pool = cl.target, cl.params["pool"]
	c.fleet.changed(v)
}
