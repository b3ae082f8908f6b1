package pvetest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"
)

// A powerSwitch starts, stops and destroys machines.
type powerSwitch struct {
	o       *Options
	cluster *cluster
	fleet   *fleet
	storage *storageSet
	devices *deviceSet
	tasks   *taskList
}

func (p *powerSwitch) current(r *call) (any, error) {
	v, err := p.fleet.machine(r, "VM.Audit")
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

// machine is what the calls below share: the machine, free of locks other than
// those named.
func (p *powerSwitch) machine(r *call, locks ...string) (*vm, error) {
	v, err := p.fleet.machine(r, "VM.PowerMgmt")
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

func (p *powerSwitch) start(r *call) (any, error) {
	v, err := p.machine(r, "suspended")
	if err != nil {
		return nil, err
	}
	if v.managed { // the task ends when the request is recorded
		return p.tasks.begin(r.vmTask(v, "hastart")), nil
	}
	return p.tasks.begin(r.vmTask(v, "qmstart"), step{p.o.Delays.Start, func() error {
		if v.running {
			return fmt.Errorf("VM %d already running", v.id)
		}
		if allowed := p.cluster.nodes[v.node].CPUs; v.cpus() > allowed { // qemu-server, QemuServer.pm config_to_command
			return fmt.Errorf("MAX %d vcpus allowed per VM on this node", allowed)
		}
		if err := cmp.Or(p.devices.assign(v), v.checkMTU(p.o.BridgeMTU), v.checkNodes()); err != nil {
			return err
		}
		delete(p.storage.volumes, v.config["vmstate"])
		delete(v.config, "lock")
		delete(v.config, "vmstate")
		return p.fleet.run(v)
	}}), nil
}

// stop of a stopped machine is no error.
func (p *powerSwitch) stop(r *call) (any, error) {
	v, err := p.machine(r, "suspended", "suspending")
	if err != nil {
		return nil, err
	}
	if v.managed {
		return p.tasks.begin(r.vmTask(v, "hastop")), nil
	}
	return p.tasks.begin(r.vmTask(v, "qmstop"), step{p.o.Delays.Stop, func() error {
		p.fleet.halt(v)
		return nil
	}}), nil
}

// shutdown fails for a guest that ignores it, unless the machine is to be stopped then
// (qemu-server, QemuServer.pm _do_vm_stop).
func (p *powerSwitch) shutdown(r *call) (any, error) {
	v, err := p.machine(r)
	if err != nil {
		return nil, err
	}
	forced := r.flag("forceStop")
	return p.tasks.begin(r.vmTask(v, "qmshutdown"), step{p.o.Delays.Stop, func() error {
		if v.running && v.ignoresShutdown && !forced {
			return errors.New("VM quit/powerdown failed - got timeout")
		}
		p.fleet.halt(v)
		return nil
	}}), nil
}

// suspend writes the memory to disk and ends the machine. A failed one leaves the
// lock "suspending" (qemu-server, RunState.pm).
func (p *powerSwitch) suspend(r *call) (any, error) {
	v, err := p.machine(r)
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
	if v.managed {
		return nil, refuse(500, "cannot suspend a HA managed VM to disk")
	}
	if !v.running {
		return nil, refuse(500, "VM %d not running", v.id)
	}
	v.config["lock"] = "suspending"
	return p.tasks.begin(r.vmTask(v, "qmsuspend"), step{p.o.Delays.Stop, func() error {
		v.config["lock"], v.config["vmstate"] = "suspended", fmt.Sprintf("shared:vm-%d-state-suspend", v.id)
		p.storage.volumes[v.config["vmstate"]] = v.id
		p.fleet.halt(v)
		return nil
	}}), nil
}

// destroy frees a machine's disks, and its configuration last. An image that was
// uploaded for it stays.
func (p *powerSwitch) destroy(r *call) (any, error) {
	v, err := p.fleet.machine(r, "VM.Allocate")
	if err == nil {
		err = r.mayDestroy(v)
	}
	if err != nil {
		return nil, err
	}
	unreferenced := r.flag("destroy-unreferenced-disks")
	return p.tasks.begin(r.vmTask(v, "qmdestroy"), step{0, func() error {
		for clone, base := range p.storage.bases {
			if base == v.id {
				return fmt.Errorf("base volume of VM %d is still in use by linked clone %d", v.id, clone)
			}
		}
		v.config["lock"] = "destroyed"
		return nil
	}}, step{p.o.Delays.Delete, func() error {
		p.fleet.remove(v, unreferenced)
		return nil
	}}), nil
}

func (r *call) mayDestroy(v *vm) error {
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
