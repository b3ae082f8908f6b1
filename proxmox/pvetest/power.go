package pvetest

import (
	"cmp"
	"fmt"
	"maps"
	"strings"
	"time"
)

func (c *Cloud) current(r *call) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.machine(r, "VM.Audit")
	if err != nil {
		return nil, err
	}
	managed := 0
	if v.managed {
		managed = 1
	}
	out := map[string]any{
		"vmid": v.id, "name": v.config["name"], "status": v.status(), "qmpstatus": v.status(), "cpus": v.cpus(), "cpu": 0.0, "mem": 0, "maxmem": v.memory(),
		"disk": 0, "maxdisk": 4 << 30, "diskread": 0, "diskwrite": 0, "netin": 0, "netout": 0, "uptime": 0, "ha": map[string]any{"managed": managed},
	}
	for _, key := range []string{"lock", "tags"} {
		if v.config[key] != "" {
			out[key] = v.config[key]
		}
	}
	if v.template {
		out["template"] = 1
	}
	if v.running {
		maps.Copy(out, map[string]any{"pid": 4242 + v.id, "uptime": int(time.Since(v.started).Seconds()), "mem": v.memory() / 2,
			"running-machine": "pc-i440fx-9.2+pve1", "running-qemu": "9.2.0"})
	}
	return out, nil
}

// power is what the calls below share: the machine, free of locks other than
// those named.
func (c *Cloud) power(r *call, locks ...string) (*vm, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.machine(r, "VM.PowerMgmt")
	if err != nil {
		return nil, err
	}
	if v.template {
		return nil, refuse(500, "you can't start a vm if it's a template")
	}
	for _, lock := range locks {
		if v.config["lock"] == lock {
			return v, nil
		}
	}
	return v, v.locked()
}

func (c *Cloud) start(r *call) (any, error) {
	v, err := c.power(r, "suspended")
	if err != nil {
		return nil, err
	}
	if v.managed { // the task ends when the request is recorded
		return c.work(r.user, v.node, "hastart", itoa(v.id), "", nil), nil
	}
	return c.work(r.user, v.node, "qmstart", itoa(v.id), "", nil, step{c.delays().Start, func() error {
		c.mu.Lock()
		running, allowed := v.running, c.nodes[v.node].CPUs
		var devices error
		if !running {
			devices = cmp.Or(c.checkDevices(v), c.checkMTU(v))
		}
		if v.cpus() <= allowed && !running && devices == nil {
			delete(c.volumes, v.config["vmstate"])
			delete(v.config, "lock")
			delete(v.config, "vmstate")
		}
		tooMany := v.cpus() > allowed
		c.mu.Unlock()
		switch {
		case running:
			return fmt.Errorf("VM %d already running", v.id)
		case tooMany: // qemu-server, QemuServer.pm config_to_command
			return fmt.Errorf("MAX %d vcpus allowed per VM on this node", allowed)
		case devices != nil:
			return devices
		}
		return c.run(v)
	}}), nil
}

// stop of a stopped machine is no error.
func (c *Cloud) stop(r *call) (any, error) {
	v, err := c.power(r, "suspended", "suspending")
	if err != nil {
		return nil, err
	}
	if v.managed {
		return c.work(r.user, v.node, "hastop", itoa(v.id), "", nil), nil
	}
	return c.work(r.user, v.node, "qmstop", itoa(v.id), "", nil, step{c.delays().Stop, func() error {
		c.halt(v)
		return nil
	}}), nil
}

func (c *Cloud) shutdown(r *call) (any, error) {
	v, err := c.power(r)
	if err != nil {
		return nil, err
	}
	return c.work(r.user, v.node, "qmshutdown", itoa(v.id), "", nil, step{c.delays().Stop, func() error {
		c.halt(v)
		return nil
	}}), nil
}

// suspend writes the memory to disk and ends the machine. A failed one leaves the
// lock "suspending" (qemu-server, RunState.pm).
func (c *Cloud) suspend(r *call) (any, error) {
	v, err := c.power(r)
	if err != nil {
		return nil, err
	}
	if !r.flag("todisk") {
		return nil, refuse(501, "suspend without todisk is not served here")
	}
	if err := r.need(v, "VM.Config.Disk"); err != nil {
		return nil, err
	}
	if !r.may("/storage/shared", "Datastore.AllocateSpace") && !r.may("/storage/local", "Datastore.AllocateSpace") {
		return nil, denied("/storage/shared", "Datastore.AllocateSpace")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if v.managed {
		return nil, refuse(500, "cannot suspend a HA managed VM to disk")
	}
	if !v.running {
		return nil, refuse(500, "VM %d not running", v.id)
	}
	v.config["lock"] = "suspending"
	c.mu.Unlock()
	defer c.mu.Lock()
	return c.work(r.user, v.node, "qmsuspend", itoa(v.id), "", nil, step{c.delays().Stop, func() error {
		c.mu.Lock()
		v.config["lock"], v.config["vmstate"] = "suspended", fmt.Sprintf("shared:vm-%d-state-suspend", v.id)
		c.volumes[v.config["vmstate"]] = v.id
		c.mu.Unlock()
		c.halt(v)
		return nil
	}}), nil
}

// destroy frees a machine's disks, and its configuration last. An image that was
// uploaded for it stays.
func (c *Cloud) destroy(r *call) (any, error) {
	c.mu.Lock()
	v, err := c.machine(r, "VM.Allocate")
	if err == nil {
		err = c.mayDestroy(r, v)
	}
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	unreferenced := r.flag("destroy-unreferenced-disks")
	return c.work(r.user, v.node, "qmdestroy", itoa(v.id), "", nil, step{0, func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		for clone, base := range c.bases {
			if base == v.id {
				return fmt.Errorf("base volume of VM %d is still in use by linked clone %d", v.id, clone)
			}
		}
		v.config["lock"] = "destroyed"
		return nil
	}}, step{c.delays().Delete, func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.remove(v, unreferenced)
		return nil
	}}), nil
}

func (c *Cloud) mayDestroy(r *call, v *vm) error {
	if err := v.protected(fmt.Sprintf("can't remove VM %d", v.id)); err != nil {
		return err
	}
	if v.managed && !r.flag("purge") {
		return refuse(500, "unable to remove VM %d - used in HA resources and purge parameter not set.", v.id)
	}
	if v.running {
		return refuse(500, "VM %d is running - destroy failed", v.id)
	}
	if lock := v.config["lock"]; lock != "suspended" && !strings.HasPrefix(lock, "destroyed") {
		return v.locked()
	}
	return nil
}
