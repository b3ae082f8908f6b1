package pvetest

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

// A cluster is the nodes.
type cluster struct {
	quorum bool
	nodes  map[string]*node
}

type node struct {
	Node
	id        int
	offline   bool
	offlineAt time.Time
	haState   string // as high availability sees it; empty: it does not run
}

// staleAfter is how old the data of pvestatd may be that a listing shows: five minutes
// after a node has died its machines have no name and status any more (pve-cluster,
// status.c; pve-manager, PVE/API2Tools.pm extract_vm_stats).
const staleAfter = 5 * time.Minute

// stale reports whether what pvestatd said of the node's machines has expired.
func (n *node) stale() bool { return n.offline && time.Since(n.offlineAt) >= staleAfter }

func newCluster(nodes []Node) *cluster {
	c := &cluster{quorum: true, nodes: map[string]*node{}}
	for i, n := range nodes {
		c.nodes[n.Name] = &node{Node: n, id: i + 1}
	}
	return c
}

func (c *cluster) sorted() []*node {
	return slices.SortedFunc(maps.Values(c.nodes), func(a, b *node) int { return cmp.Compare(a.id, b.id) })
}

// reach refuses what needs a node or a quorum that is not there.
func (c *cluster) reach(name string, write bool) error {
	if n := c.nodes[name]; name != "" && n == nil {
		return refuse(500, "hostname lookup '%s' failed - failed to get address info for: %s: Name or service not known", name, name)
	} else if n != nil && n.offline {
		return unreachable()
	}
	if write && !c.quorum {
		return refuse(500, "cluster not ready - no quorum?")
	}
	return nil
}

// An inventory shows what the caller may see of the cluster.
type inventory struct {
	o       *Options
	cluster *cluster
	fleet   *fleet
}

func (i *inventory) version(*call) (any, error) {
	return map[string]any{"release": "9.2", "version": "9.2.6", "repoid": "b7a2a6d4"}, nil
}

func (i *inventory) nodeFields(r *call, n *node) map[string]any {
	out := map[string]any{"id": "node/" + n.Name, "node": n.Name, "type": "node", "status": "online", "level": ""}
	if n.offline {
		out["status"] = "offline"
	}
	if n.offline || !r.may("/nodes/"+n.Name, "Sys.Audit") {
		return out
	}
	var used uint64
	for _, v := range i.fleet.vms {
		if v.node == n.Name && v.running {
			used += v.memory() / 2
		}
	}
	maps.Copy(out, map[string]any{
		"cpu": 0.01, "maxcpu": n.CPUs, "mem": used, "maxmem": n.Memory, "disk": 1 << 30, "maxdisk": 100 << 30, "uptime": 1000,
	})
	return out
}

func (i *inventory) nodes(r *call) (any, error) {
	out := []map[string]any{}
	for _, n := range i.cluster.sorted() {
		f := i.nodeFields(r, n)
		f["ssl_fingerprint"] = strings.TrimSuffix(strings.Repeat("00:", 32), ":")
		out = append(out, f)
	}
	return out, nil
}

func (i *inventory) nodeStatus(r *call) (any, error) {
	n := i.cluster.nodes[r.PathValue("node")]
	if err := r.require("/nodes/"+n.Name, "Sys.Audit"); err != nil {
		return nil, err
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

func (i *inventory) clusterStatus(*call) (any, error) {
	quorate := 0
	if i.cluster.quorum {
		quorate = 1
	}
	out := []map[string]any{{"type": "cluster", "id": "cluster", "name": "test", "version": 1, "quorate": quorate, "nodes": len(i.cluster.nodes)}}
	for at, n := range i.cluster.sorted() {
		online, local := 1, 0
		if n.offline {
			online = 0
		}
		if at == 0 {
			local = 1
		}
		out = append(out, map[string]any{"type": "node", "id": "node/" + n.Name, "name": n.Name, "nodeid": n.id, "ip": "192.0.2." + itoa(n.id),
			"online": online, "local": local, "level": ""})
	}
	return out, nil
}

// resources lists what the caller may see; the rest is left out without a word.
func (i *inventory) resources(r *call) (any, error) {
	kind, out := r.params["type"], []map[string]any{}
	if kind == "" || kind == "vm" {
		for _, id := range slices.Sorted(maps.Keys(i.fleet.vms)) {
			if v := i.fleet.vms[id]; r.mayVM(v, "VM.Audit") {
				out = append(out, i.vmFields(v))
			}
		}
	}
	if kind == "" || kind == "node" {
		for _, n := range i.cluster.sorted() {
			f := i.nodeFields(r, n)
			if f["cgroup-mode"] = 2; n.haState != "" {
				f["hastate"] = n.haState
			}
			out = append(out, f)
		}
	}
	if kind == "" || kind == "storage" {
		for _, s := range i.o.Storages {
			if r.may("/storage/"+s.Name, "Datastore.Audit", "Datastore.AllocateSpace") {
				out = append(out, i.storageFields(s)...)
			}
		}
	}
	return out, nil
}

// vmFields has what the configuration store knows, and what pvestatd saw last.
func (i *inventory) vmFields(v *vm) map[string]any {
	out := map[string]any{"id": "qemu/" + itoa(v.id), "type": "qemu", "vmid": v.id, "node": v.node, "status": "unknown"}
	for key, value := range map[string]string{"tags": v.config["tags"], "lock": v.config["lock"], "pool": v.pool} {
		if value != "" {
			out[key] = value
		}
	}
	if v.managed {
		out["hastate"] = "started"
	}
	if n := i.cluster.nodes[v.node]; !v.shownOnce || n != nil && n.stale() {
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

func (i *inventory) storageFields(s Storage) []map[string]any {
	out, shared := []map[string]any{}, 0
	if s.Shared {
		shared = 1
	}
	for _, n := range i.cluster.sorted() {
		if !s.on(n.Name) {
			continue
		}
		out = append(out, map[string]any{"id": "storage/" + n.Name + "/" + s.Name, "type": "storage", "storage": s.Name, "node": n.Name, "shared": shared,
			"status": "available", "plugintype": "dir", "content": strings.Join(s.Content, ","), "disk": 1 << 30, "maxdisk": 100 << 30})
	}
	return out
}
