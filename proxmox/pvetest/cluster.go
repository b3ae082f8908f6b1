package pvetest

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

func (c *Cloud) version(*call) (any, error) {
	return map[string]any{"release": "9.2", "version": "9.2.6", "repoid": "b7a2a6d4"}, nil
}

func (c *Cloud) nodeFields(r *call, n *node) map[string]any {
	out := map[string]any{"id": "node/" + n.Name, "node": n.Name, "type": "node", "status": "online", "level": ""}
	if n.offline {
		out["status"] = "offline"
	}
	if n.offline || !r.may("/nodes/"+n.Name, "Sys.Audit") {
		return out
	}
	var used uint64
	for _, v := range c.vms {
		if v.node == n.Name && v.running {
			used += v.memory() / 2
		}
	}
	maps.Copy(out, map[string]any{
		"cpu": 0.01, "maxcpu": n.CPUs, "mem": used, "maxmem": n.Memory, "disk": 1 << 30, "maxdisk": 100 << 30, "uptime": 1000,
	})
	return out
}

func (c *Cloud) listNodes(r *call) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := []map[string]any{}
	for _, n := range c.sortedNodes() {
		f := c.nodeFields(r, n)
		f["ssl_fingerprint"] = strings.TrimSuffix(strings.Repeat("00:", 32), ":")
		out = append(out, f)
	}
	return out, nil
}

func (c *Cloud) nodeStatus(r *call) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[r.PathValue("node")]
	if !r.may("/nodes/"+n.Name, "Sys.Audit") {
		return nil, denied("/nodes/"+n.Name, "Sys.Audit")
	}
	part := func(total uint64) map[string]any {
		return map[string]any{"total": total, "free": total / 2, "used": total / 2}
	}
	root := part(100 << 30)
	root["avail"] = root["free"]
	return map[string]any{
		"pveversion": "pve-manager/9.2.6/b7a2a6d4", "kversion": "Linux 6.17.2-1-pve #1 SMP", "uptime": 1000, "cpu": 0.01, "wait": 0, "idle": 0,
		"loadavg": []string{"0.00", "0.00", "0.00"}, "memory": part(n.Memory), "swap": part(0), "rootfs": root, "ksm": map[string]any{"shared": 0},
		"cpuinfo": map[string]any{"model": "test", "mhz": "3000.000", "sockets": 1, "cores": n.CPUs, "cpus": n.CPUs, "hvm": "1", "user_hz": 100, "flags": "vmx"},
	}, nil
}

func (c *Cloud) sortedNodes() []*node {
	return slices.SortedFunc(maps.Values(c.nodes), func(a, b *node) int { return cmp.Compare(a.id, b.id) })
}

func (c *Cloud) clusterStatus(*call) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	quorate := 0
	if c.quorum {
		quorate = 1
	}
	out := []map[string]any{{"type": "cluster", "id": "cluster", "name": "test", "version": 1, "quorate": quorate, "nodes": len(c.nodes)}}
	for i, n := range c.sortedNodes() {
		online, local := 1, 0
		if n.offline {
			online = 0
		}
		if i == 0 {
			local = 1
		}
		out = append(out, map[string]any{"type": "node", "id": "node/" + n.Name, "name": n.Name, "nodeid": n.id, "ip": "192.0.2." + itoa(n.id),
			"online": online, "local": local, "level": ""})
	}
	return out, nil
}

// nextID suggests the lowest free VMID and reserves nothing.
func (c *Cloud) nextID(r *call) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if want := r.params["vmid"]; want != "" {
		if c.vms[atoi(want)] != nil {
			return nil, invalid("vmid", "VM "+want+" already exists")
		}
		return want, nil
	}
	for id := 100; id < 1_000_000; id++ {
		if c.vms[id] == nil {
			return itoa(id), nil
		}
	}
	return nil, refuse(500, "unable to get any free VMID in range [100, 1000000]")
}

// resources lists what the caller may see; the rest is left out without a word.
func (c *Cloud) resources(r *call) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kind, out := r.params["type"], []map[string]any{}
	if kind == "" || kind == "vm" {
		for _, id := range slices.Sorted(maps.Keys(c.vms)) {
			if v := c.vms[id]; r.mayVM(v, "VM.Audit") {
				out = append(out, c.vmFields(v))
			}
		}
	}
	if kind == "" || kind == "node" {
		for _, n := range c.sortedNodes() {
			f := c.nodeFields(r, n)
			if f["cgroup-mode"] = 2; n.haState != "" {
				f["hastate"] = n.haState
			}
			out = append(out, f)
		}
	}
	if kind == "" || kind == "storage" {
		for _, s := range c.o.Storages {
			if r.may("/storage/"+s.Name, "Datastore.Audit", "Datastore.AllocateSpace") {
				out = append(out, c.storageFields(s)...)
			}
		}
	}
	return out, nil
}

// vmFields has what the configuration store knows, and what pvestatd saw last.
func (c *Cloud) vmFields(v *vm) map[string]any {
	out := map[string]any{"id": "qemu/" + itoa(v.id), "type": "qemu", "vmid": v.id, "node": v.node, "status": "unknown"}
	for key, value := range map[string]string{"tags": v.config["tags"], "lock": v.config["lock"], "pool": v.pool} {
		if value != "" {
			out[key] = value
		}
	}
	if v.managed {
		out["hastate"] = "started"
	}
	if n := c.nodes[v.node]; !v.shownOnce || n != nil && n.stale() {
		return out
	}
	template, used, uptime := 0, uint64(0), 0
	if v.shownTemplate {
		template = 1
	}
	if v.shownStatus == "running" {
		used, uptime = v.memory()/2, int(time.Since(v.started).Seconds())
	}
	maps.Copy(out, map[string]any{
		"name": cmp.Or(v.shownName, "VM "+itoa(v.id)), "status": v.shownStatus, "template": template, "maxcpu": v.cpus(), "maxmem": v.memory(),
		"mem": used, "cpu": 0.0, "disk": 0, "maxdisk": 4 << 30, "diskread": 0, "diskwrite": 0, "netin": 0, "netout": 0, "uptime": uptime,
	})
	return out
}

func (c *Cloud) storageFields(s Storage) []map[string]any {
	out, shared := []map[string]any{}, 0
	if s.Shared {
		shared = 1
	}
	for _, n := range c.sortedNodes() {
		if !s.on(n.Name) {
			continue
		}
		out = append(out, map[string]any{"id": "storage/" + n.Name + "/" + s.Name, "type": "storage", "storage": s.Name, "node": n.Name, "shared": shared,
			"status": "available", "plugintype": "dir", "content": strings.Join(s.Content, ","), "disk": 1 << 30, "maxdisk": 100 << 30})
	}
	return out
}
