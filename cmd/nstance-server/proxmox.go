package main

import (
	"net/http"
	"strings"
	"time"

	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/internal/testcloud"
	"github.com/nstance-go/nstance/internal/testcloud/pve"
	"github.com/nstance-go/nstance/provider/proxmox"
	"github.com/nstance-go/nstance/server/dev"
)

// devProxmox is Proxmox VE for single-machine mode. Its machines have a metadata
// service all the same: that is how a process here finds its user data.
func devProxmox() *dev.Cloud {
	return &dev.Cloud{
		Kind: proxmox.Kind(), Protocol: imds.AWS, Consistency: time.Second,
		Env: map[string]string{proxmox.TokenVariable: "root@pam!test=secret"},
		New: func(h testcloud.Hypervisor) (dev.TestServer, error) {
			return pve.New(&pve.Options{
				Hypervisor: h, FirstDisk: 50 * time.Millisecond, Clone: 100 * time.Millisecond,
				Delays: testcloud.Delays{Visible: 50 * time.Millisecond, Start: 100 * time.Millisecond, Stop: 100 * time.Millisecond, Delete: 100 * time.Millisecond},
			}), nil
		},
		Configure: func(_, shard, template map[string]any, api dev.API, _ int) {
			shard["provider"] = map[string]any{"options": map[string]any{
				"endpoint": api.Endpoint, "poll_interval": "100ms", "instance_types": map[string]any{"small": map[string]any{"cores": 1, "memory": 1024}},
			}}
			template["instance_type"], template["args"] = "small", map[string]any{"template": 9000}
			delete(template, "market")
		},
		Creates: func(r *http.Request, _ []byte) bool {
			return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/clone")
		},
	}
}
