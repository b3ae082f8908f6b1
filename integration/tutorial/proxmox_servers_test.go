//go:build servers && linux

package tutorial_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/proxmox/pvetest"
)

// onProxmox returns a cluster of two nodes with the page's template, and the page's token with its
// rights.
func onProxmox(w *world) (*site, error) {
	text, err := w.read("proxmox-acl.json")
	if err != nil {
		return nil, err
	}
	var roles []struct {
		Path       string
		Privileges map[string]string
	}
	if err := json.Unmarshal(text, &roles); err != nil {
		return nil, err
	}
	token := pvetest.Token{Secret: "SECRET"}
	for _, r := range roles {
		token.ACL = append(token.ACL, pvetest.ACL{Path: r.Path, Privileges: slices.Collect(maps.Keys(r.Privileges))})
	}
	c := pvetest.New(&pvetest.Options{
		Nodes: []pvetest.Node{{Name: "pve1", Memory: 64 << 30, CPUs: 16}, {Name: "pve2", Memory: 64 << 30, CPUs: 16}}, Tokens: map[string]pvetest.Token{"nstance@pve!server": token},
		Templates: []pvetest.Template{{VMID: 9000, Name: "debian-13"}}, Delays: delays, Hypervisor: w.hypervisor,
	})
	return &site{
		Cloud: c, port: "8006", hosts: []string{"pve1.example.org", "pve2.example.org"}, api: c,
		commands: commands{
			prepared: []string{
				"qm create 9000 --name debian-13 --memory 2048 --cores 2 --net0 virtio,bridge=vmbr0 --scsihw virtio-scsi-single --serial0 socket",
				"qm set 9000 --scsi0 shared:0,import-from=/root/debian-13-agent.qcow2",
				"qm set 9000 --boot order=scsi0",
				"qm template 9000",
			},
			acts: map[string]func(string) (string, error){
				"scp root@pve1.example.org:/etc/pve/pve-root-ca.pem /etc/nstance/": func(string) (string, error) {
					text, err := os.ReadFile(w.caFile())
					if err != nil {
						return "", err
					}
					return "", os.WriteFile("/etc/nstance/pve-root-ca.pem", text, 0o600)
				},
				"qm list": func(string) (string, error) {
					out := "      VMID NAME                 STATUS     MEM(MB)    BOOTDISK(GB) PID       \n"
					for _, m := range c.Machines() {
						if m.Status == nstance.StatusRunning {
							out += fmt.Sprintf("%10s %-20s %-10s %-10d %12.2f %-10d\n", m.Handle, m.ID, "running", 4096, 4.0, 1)
						}
					}
					return out, nil
				},
				"qm stop ": func(vmid string) (string, error) { return "", c.Fail(strings.TrimSpace(vmid)) },
			},
		},
	}, nil
}
