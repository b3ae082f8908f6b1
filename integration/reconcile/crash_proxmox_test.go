//go:build servers

package reconcile_test

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/testcloud"
	"github.com/nstance-go/nstance/proxmox"
	"github.com/nstance-go/nstance/proxmox/pvetest"
)

// VMIDs, task names and image names in paths.
var numbers = regexp.MustCompile(`/(\d+|UPID:[^/]*|[^/]*\.iso)(/|$)`)

// proxmoxSite is Proxmox VE with clones that take longer than a create waits, names that
// appear only after the first disk, and stale listings.
func proxmoxSite(token string) func(h testcloud.Hypervisor) *site {
	return func(h testcloud.Hypervisor) *site {
		const perMachine = 2 << 30
		cloud := pvetest.New(&pvetest.Options{
			Hypervisor: h, Nodes: []pvetest.Node{{Name: "pve1", Memory: 10 * perMachine, CPUs: 16}}, FirstDisk: 3 * time.Second, Clone: 6 * time.Second,
			Delays: testcloud.Delays{Visible: 10 * time.Second, Start: 14 * time.Second, Stop: 2 * time.Second, Delete: 3 * time.Second},
		})
		return &site{
			cloud: cloud,
			provider: func(url string, client *http.Client) nstance.Provider {
				p, err := proxmox.New(proxmox.Options{Endpoint: url, TokenFile: token,
					PollInterval:  provider.Duration(5 * time.Second),
					InstanceTypes: map[string]proxmox.InstanceType{"small": {Cores: 1, Memory: perMachine >> 20}, "medium": {Cores: 2, Memory: perMachine >> 20}}}, client.Transport, nil)
				if err != nil {
					panic(err)
				}
				return p
			},
			shape: func(s *nstance.MachineSpec) {
				s.Image, s.InstanceType, s.Market = "9000", "small", nstance.OnDemand
			},
			setCapacity: func(n int) { cloud.SetMemory("pve1", uint64(n)*perMachine) },
			unsupported: []string{"reclaimed", "drain", "load balancer"}, // no spot capacity, no load balancers
			operation: func(r *http.Request, _ []byte) (string, bool) {
				path := strings.TrimPrefix(r.URL.Path, "/api2/json")
				for numbers.MatchString(path) {
					path = numbers.ReplaceAllString(path, "/*$2")
				}
				return r.Method + " " + path, r.Method != http.MethodGet
			},
		}
	}
}

func TestServersCrashOnProxmox(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("root@pam!test=secret"), 0o600))
	crashOverHTTP(t, proxmoxSite(token))
}
