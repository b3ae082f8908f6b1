package main

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nstance-go/nstance/internal/dev"
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/provider/testcloud"
	"github.com/nstance-go/nstance/proxmox"
	"github.com/nstance-go/nstance/proxmox/pvetest"
)

// proxmoxNodes are the nodes of the cluster. Machines are placed on the node with the
// most free memory: on the last one only while the others are under maintenance.
var proxmoxNodes = []pvetest.Node{
	{Name: "pve1", Memory: 1 << 40, CPUs: 256}, {Name: "pve2", Memory: 1 << 40, CPUs: 256}, {Name: "pve3", Memory: 1 << 40, CPUs: 256},
	{Name: "pve4", Memory: 600 << 30, CPUs: 256},
}

// A proxmoxRig is a cluster whose nodes can be put under maintenance.
type proxmoxRig struct {
	cloud *pvetest.Cloud

	mu    sync.Mutex
	under []string // nodes under maintenance
}

// devProxmox is Proxmox VE for single-machine mode. Its machines have a metadata
// service too, from which a process here reads its user data.
func devProxmox() *dev.Cloud {
	rig := &proxmoxRig{}
	return &dev.Cloud{
		Kind: proxmox.Kind(), Protocol: imds.AWS, Consistency: time.Second,
		Env: map[string]string{proxmox.TokenVariable: "root@pam!test=secret"},
		New: func(h testcloud.Hypervisor) (dev.TestServer, error) {
			rig.cloud = pvetest.New(&pvetest.Options{
				Nodes: proxmoxNodes, Hypervisor: h, FirstDisk: 50 * time.Millisecond, Clone: 100 * time.Millisecond,
				Delays: testcloud.Delays{Visible: 50 * time.Millisecond, Start: 100 * time.Millisecond, Stop: 100 * time.Millisecond, Delete: 100 * time.Millisecond},
			})
			return rig.cloud, nil
		},
		Maintain: rig.maintain,
		Configure: func(_, shard, template map[string]any, api dev.API, _ int) {
			shard["provider"] = map[string]any{"options": map[string]any{
				"endpoint": api.Endpoint, "poll_interval": "100ms", "notice_interval": "1s",
				"instance_types": map[string]any{"small": map[string]any{"cores": 1, "memory": 1024}},
			}}
			template["instance_type"], template["args"] = "small", map[string]any{"template": 9000, "any_node": true}
			delete(template, "market")
		},
		Creates: func(r *http.Request, _ []byte) bool {
			return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/clone")
		},
	}
}

// maintain puts the nodes of machines under maintenance. It ends the
// maintenance of nodes that are empty.
func (r *proxmoxRig) maintain(machines []testcloud.Machine) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.cloud.Machines()
	r.under = slices.DeleteFunc(r.under, func(node string) bool {
		return !slices.ContainsFunc(all, func(m testcloud.Machine) bool { return m.Zone == node })
	})
	for _, m := range machines {
		if !slices.Contains(r.under, m.Zone) {
			r.under = append(r.under, m.Zone)
		}
	}
	r.cloud.Maintain(r.under)
	return nil
}
